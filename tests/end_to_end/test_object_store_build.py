"""Builds from s3:// sources to s3:// output: the bytes of a local build, stops survived, nothing half visible."""

from __future__ import annotations

import bz2
import json
import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import killed_build
from corpora import make_documents, write_text, write_vocabulary
from dumps import dump, head, page
from object_store import bucket, gs_bucket, gs_server, s3_server, upload_tree
from pipeline import storage
from pipeline.audit.run import audit
from pipeline.config.schema import SourceConfig
from pipeline.dataset.manifest import open_data_set
from pipeline.documents import Document, Drop
from pipeline.run import main
from pipeline.sources.fingerprints import fingerprint_inputs
from pipeline.sources.listing import list_files
from pipeline.sources.splits import list_splits, read_documents, split_file
from pipeline.storage.lease import release, take

__all__ = ["bucket", "gs_bucket", "gs_server", "s3_server"]
KILLED = Path(killed_build.__file__)


def text_of(documents: list[list[str]]) -> str:
    return "\n".join(". ".join(document) + "." for document in documents)


def write_corpus(folder: Path) -> Path:
    """Every kind of source and of file below `folder`, about 100 documents."""
    documents = make_documents(140, sentences=(3, 6))
    documents[20] = [*documents[0], "ba be bi"]  # nearly the same
    write_text(folder / "text" / "0.txt", documents[:20])
    write_text(folder / "text" / "deep" / "1.txt", documents[20:40])
    folder.joinpath("records").mkdir()
    rows = [{"text": text_of([document])} for document in documents[40:60]]
    (folder / "records" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="ascii")
    pq.write_table(pa.table({"text": [row["text"] for row in rows[:15]]}), folder / "a.parquet", row_group_size=4)
    for number, document in enumerate(documents[60:72]):
        (folder / f"book-{number}.txt").write_text(text_of([document]), encoding="ascii")
    books = sorted(folder.glob("book-*.txt"))
    with zipfile.ZipFile(folder / "b.zip", "w") as archive, tarfile.open(folder / "b.tar", "w") as plain:
        for path in books[:4]:
            archive.write(path, path.name)
        for path in books[4:8]:
            plain.add(path, path.name)
    with tarfile.open(folder / "b.tar.xz", "w:xz") as packed:
        for path in books[8:]:
            packed.add(path, path.name)
    for path in books:
        path.unlink()
    pages = [page(f"P{number}", text_of([document])) for number, document in enumerate(documents[72:112])]
    streams = [head(), "".join(pages[:20]), "".join(pages[20:]), "</mediawiki>\n"]
    (folder / "m.xml.bz2").write_bytes(b"".join(bz2.compress(stream.encode()) for stream in streams))
    (folder / "one.xml.bz2").write_bytes(bz2.compress(dump(*pages[:3]).encode()))
    return folder


def read_all(source: SourceConfig, *, split_bytes: int | None = None) -> list[Document | Drop]:
    files = list_files(source, label="source")
    splits = [split for path in files for split in split_file(path, source=source, index=0, split_bytes=split_bytes)]
    return [item for split in splits for item in read_documents(split, source)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus")


@pytest.mark.parametrize(
    ("kind", "path", "split_bytes", "settings"),
    [
        ("text", "text", 300, {}),
        ("jsonl", "records/*.jsonl", 300, {}),
        ("parquet", "a.parquet", 300, {}),
        ("books", "b.zip", 100, {}),
        ("books", "b.tar", 100, {}),
        ("books", "b.tar.xz", None, {"unit": "chapter"}),
        ("wikipedia", "m.xml.bz2", 1_000, {}),
        ("wikipedia", "one.xml.bz2", None, {}),
    ],
)
def test_every_kind_of_source_reads_the_same_from_a_store(
    kind: str, path: str, split_bytes: int | None, settings: dict[str, str], corpus: Path, bucket: str
) -> None:
    upload_tree(corpus, f"{bucket}/in")
    local = SourceConfig(kind=kind, path=str(corpus / path), **settings)
    stored = SourceConfig(kind=kind, path=f"{bucket}/in/{path}", clean_documents=f"{bucket}/clean", **settings)
    expected = read_all(local, split_bytes=split_bytes)
    assert any(isinstance(item, Document) for item in expected)
    assert read_all(stored, split_bytes=split_bytes) == expected
    kept = storage.list_files(f"{bucket}/clean")
    assert kept
    assert read_all(stored, split_bytes=split_bytes) == expected  # from the cleaned documents
    assert storage.list_files(f"{bucket}/clean") == kept


def test_listing_by_url_is_that_of_folders_and_globs(
    corpus: Path, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    (corpus / "text" / ".hidden.txt").write_text("x")
    (corpus / "text" / ".git").mkdir()
    (corpus / "text" / ".git" / "x.txt").write_text("x")
    (corpus / "text" / "notes.md").write_text("x")
    url = upload_tree(corpus, f"{bucket}/in")

    def listed(root: str, path: str, kind: str = "text") -> list[str]:
        source = SourceConfig(kind=kind, path=path if "://" in path else f"{root}/{path}")
        return [file.removeprefix(root) for file in list_files(source, label="sources.0")]

    patterns = ["text", "text/*.txt", "text/**/*.txt", "**/*.txt", "text/*/?.txt", "text/[0-9].txt", "text/0.txt"]
    for pattern in patterns:
        assert listed(url, pattern) == listed(str(corpus), pattern), pattern
    assert listed(url, "*.xml.bz2", "wikipedia") == ["/m.xml.bz2", "/one.xml.bz2"]
    assert listed(url, "", "books") == listed(str(corpus), "", "books")
    assert "not of kind text: notes.md" in caplog.text
    for path, fault in {
        "*.md": rf"sources\.0: the glob {bucket}/in/\*\.md matches no file; check the URL",
        "nothing": rf"no such file or folder: {bucket}/in/nothing; check the URL",
        "records": rf"no file for kind text below the folder {bucket}/in/records",
        "s3://no-such-bucket-1/x": r"there is no bucket s3://no-such-bucket-1; correct the name",
        "s3://no-such-bucket-1/*.txt": r"there is no bucket s3://no-such-bucket-1; correct the name",
    }.items():
        with pytest.raises((ValueError, OSError), match=fault):
            listed(url, path)
    storage.write_bytes(f"{url}/empty.txt", b"")
    with pytest.raises(ValueError, match=rf"{bucket}/in/empty.txt is empty; remove it or fetch it again"):
        listed(url, "empty.txt")
    with pytest.raises(ValueError, match=r"is also read by sources\.0 \(text\); list it once"):
        list_splits([SourceConfig(kind="text", path=f"{url}/text/0.txt")] * 2)


def test_a_changed_object_is_another_input(bucket: str) -> None:
    url = f"{bucket}/a.txt"
    storage.write_bytes(url, b"one")
    first = fingerprint_inputs([url])
    storage.write_bytes(url, b"one")
    assert fingerprint_inputs([url]) == first
    storage.write_bytes(url, b"two")
    assert fingerprint_inputs([url]) != first
    storage.delete(url)
    with pytest.raises(storage.AbsentError, match=rf"{url}: there is no such object"):
        fingerprint_inputs([url])


def write_config(folder: Path, *, root: str, output: str) -> str:
    """Sources of all kinds below `root`; near duplicates, cleaned documents, rejects and a trained vocabulary."""
    tree = {
        "sources": [
            {"kind": "text", "path": f"{root}/text"},
            {"kind": "jsonl", "path": f"{root}/records/*.jsonl"},
            {"kind": "parquet", "path": f"{root}/a.parquet"},
            {"kind": "books", "path": [f"{root}/b.zip", f"{root}/b.tar", f"{root}/b.tar.xz"]},
            {"kind": "wikipedia", "path": f"{root}/m.xml.bz2", "clean_documents": f"{output}-clean"},
        ],
        "vocabulary": {"size": 200},
        "cleaning": {"near_duplicates": {"permutations": 16, "threshold": 0.5}, "keep_rejects": f"{output}-rejects"},
        "output": output,
        "max_seq_length": 32,
        "validation_fraction": 0.1,
        "shards": 2,
        "workers": 2,
    }
    path = folder / "c.yaml"
    path.write_text(json.dumps(tree))
    return str(path)


def check_same(stored: str, local: str | Path) -> None:
    """Both hold the same set, byte for byte but for what tells of the run, and nothing else."""
    found, expected = open_data_set(stored, full=True), open_data_set(local, full=True)
    assert found == expected
    assert {shard.path: shard.sha256 for shard in found.shards} == {s.path: s.sha256 for s in expected.shards}
    names = [[file.name for file in storage.list_files(root)] for root in (stored, local)]
    assert names[0] == names[1]
    assert storage.list_names(stored) == storage.list_names(local)


def test_a_build_from_a_store_to_a_store_gives_the_bytes_of_a_local_one(
    corpus: Path, tmp_path: Path, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In two worker processes, with everything that leaves files."""
    upload_tree(corpus, f"{bucket}/in")
    config = write_config(tmp_path, root=str(corpus), output=str(tmp_path / "out"))
    assert main(["--config", config, "workers=1"]) == 0
    config = write_config(tmp_path, root=f"{bucket}/in", output=f"{bucket}/sets/out")
    assert main(["--config", config]) == 0
    check_same(f"{bucket}/sets/out", tmp_path / "out")
    rejects = storage.read_bytes(f"{bucket}/sets/out-rejects/rejects.jsonl")
    assert rejects == (tmp_path / "out-rejects" / "rejects.jsonl").read_bytes()
    assert b"like" in rejects
    capsys.readouterr()
    assert main(["--config", config]) == 0
    assert f"{bucket}/sets/out: already complete, nothing to do" in capsys.readouterr().out
    assert main(["--config", config, "seed=9"]) == 2
    assert "contains a data set built with different settings or input: config.seed: " in capsys.readouterr().err
    found, expected = (audit(root, workers=1) for root in (f"{bucket}/sets/out", tmp_path / "out"))
    assert (found.rows, found.findings) == (expected.rows, expected.findings)


@pytest.fixture
def small(tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """c.yaml for two shards from four files below the bucket; whole/ is the set of it."""
    monkeypatch.chdir(tmp_path)
    documents = make_documents(200)
    for number in range(4):
        write_text(tmp_path / "text" / f"{number}.txt", documents[number::4])
    write_vocabulary(tmp_path / "vocab.txt")
    upload_tree(tmp_path / "text", f"{bucket}/text")
    storage.store_file(tmp_path / "vocab.txt", f"{bucket}/vocab.txt")
    (tmp_path / "c.yaml").write_text(
        f"sources: [{{kind: text, path: {bucket}/text}}]\nvocabulary: {{path: {bucket}/vocab.txt}}\n"
        f"output: {bucket}/out\nmax_seq_length: 32\nvalidation_fraction: 0.1\nshards: 2\nworkers: 1\n"
    )
    return f"{bucket}/out"


def kill_build(module: str, name: str, *, count: int) -> None:
    """Run c.yaml in a process that is killed at the COUNT-th call of MODULE.NAME."""
    command = [sys.executable, KILLED, module, name, str(count), "--config", "c.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(KILLED.parents[2])}
    assert subprocess.run(command, check=False, env=environment, capture_output=True).returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("module", "name", "count", "kept"),
    [
        ("pipeline.shuffle.spill", "SpillWriter.add", 120, "resumed: 2 of 4 splits and 0 of 3 shards kept"),
        ("pipeline.build.write_shard", "verify_written", 2, "resumed: 4 of 4 splits and 1 of 3 shards kept"),
    ],
)
def test_a_killed_build_goes_on_and_nothing_half_written_is_visible(
    module: str, name: str, count: int, kept: str, small: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", "c.yaml", "output=whole"]) == 0
    kill_build(module, name, count=count)
    assert storage.find_file(f"{small}/manifest.json") is None
    whole = {shard.path: shard.sha256 for shard in open_data_set("whole").shards}
    for file in storage.list_files(f"{small}/data"):
        assert storage.find_file(f"{small}/data/{file.name}") is not None
        with storage.open_parquet(f"{small}/data/{file.name}") as shard:
            assert shard.read().num_rows
    capsys.readouterr()
    assert main(["--config", "c.yaml", "seed=5"]) == 2
    assert "contains an unfinished build with different settings or input: config.seed: " in capsys.readouterr().err
    assert main(["--config", "c.yaml"]) == 0
    assert kept in capsys.readouterr().out
    check_same(small, "whole")
    assert {shard.path: shard.sha256 for shard in open_data_set(small).shards} == whole


def test_a_damaged_shard_of_a_stopped_build_is_made_again(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    kill_build("pipeline.build.recipe", "write_manifest", count=1)
    name = storage.list_files(f"{small}/data")[0].name
    data = storage.read_bytes(f"{small}/data/{name}")
    storage.write_bytes(f"{small}/data/{name}", data[:100] + b"X" + data[101:])
    storage.write_bytes(f"{small}/data/stray.parquet", b"of nobody")
    assert main(["--config", "c.yaml"]) == 0
    assert "resuming: found records of 4 of 4 splits and of 3 shards" in (said := capsys.readouterr().out)
    assert f"damaged, so rebuilt: {small}/data/{name}: changed since it was written" in said
    assert storage.read_bytes(f"{small}/data/{name}") == data
    assert open_data_set(small, full=True).num_rows("train")
    assert not storage.exists(f"{small}/data/stray.parquet")


def test_a_refused_build_leaves_nothing_and_says_why(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    bucket = small.rpartition("/")[0]

    def refused(*words: str) -> str:
        before = storage.list_files(bucket)
        capsys.readouterr()
        assert main(["--config", "c.yaml", *words]) == 2
        assert storage.list_files(bucket) == before
        return capsys.readouterr().err.splitlines()[-1]

    absent = "there is no bucket s3://no-such-bucket-2; correct the name, or create the bucket"
    assert absent in refused("output=s3://no-such-bucket-2/out")
    assert absent in refused("sources.0.path=s3://no-such-bucket-2/text")
    absent = "s3://no-such-bucket-2/vocab.txt: no such vocabulary file; give a vocab.txt"
    assert absent in refused("vocabulary.path=s3://no-such-bucket-2/vocab.txt")
    assert "this kind of store is not supported; give s3://, gs://" in refused("output=hdfs://host/out")
    storage.write_bytes(f"{bucket}/bad.txt", b"\xff\n")
    assert f"{bucket}/bad.txt, line 1" in refused(f"sources.0.path={bucket}/bad.txt")
    assert f"{bucket}/bad.txt, line 1" in refused(f"sources.0.path={bucket}/bad.txt", "--", "--runner=FnApiRunner")
    storage.write_bytes(f"{small}/mine.txt", b"mine")
    assert f"output={small}: contains files that no build has written (mine.txt)" in refused()


def test_one_build_at_a_time_holds_a_folder(
    small: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = f"{small}/_tmp"
    other = take(folder, timeout_s=60, say=print)
    assert main(["--config", "c.yaml"]) == 2
    error = capsys.readouterr().err
    assert f"error: output={small}: another command works there (process {os.getpid()} on " in error
    release(folder, token=other.token)
    assert storage.list_files(small) == []

    # of another machine: whether it lives shows in time alone
    dead = take(folder, timeout_s=1, say=print)
    (name,) = storage.list_names(f"{folder}/lease")
    claim = storage.read_bytes(f"{folder}/lease/{name}").decode()
    storage.write_bytes(f"{folder}/lease/{name}", claim.replace(dead.host, "elsewhere").encode())
    assert main(["--config", "c.yaml"]) == 0
    assert f"output={small}: held by process {os.getpid()} on elsewhere" in caplog.text
    assert "waiting 1 s for a sign of life" in caplog.text
    assert storage.list_names(f"{small}/_tmp") == set()


def test_a_build_from_and_to_gs(
    tmp_path: Path, gs_bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped before it is published, gone on with, and audited."""
    monkeypatch.chdir(tmp_path)
    documents = make_documents(60)
    write_text(tmp_path / "text" / "0.txt", documents[:30])
    write_text(tmp_path / "text" / "1.txt", documents[30:])
    url = upload_tree(tmp_path / "text", f"{gs_bucket}/in")
    storage.store_file(write_vocabulary(tmp_path / "vocab.txt"), f"{gs_bucket}/vocab.txt")
    (tmp_path / "c.yaml").write_text(
        f"sources: [{{kind: text, path: {url}/*.txt}}]\nvocabulary: {{path: {gs_bucket}/vocab.txt}}\n"
        f"output: {gs_bucket}/out\nmax_seq_length: 32\nvalidation_fraction: 0\nshards: 1\nworkers: 1\n"
    )
    with monkeypatch.context() as patch:
        patch.setattr(
            "pipeline.build.recipe.write_manifest", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "Input error"))
        )
        assert main(["--config", "c.yaml"]) == 2
    capsys.readouterr()
    assert main(["--config", "c.yaml", "--", "--runner=FnApiRunner"]) == 0  # named, so all that is shared is in OUT
    assert "resumed: 2 of 2 splits and 1 of 1 shard kept" in capsys.readouterr().out
    assert main(["--config", "c.yaml", "sources.0.path=text", "output=out"]) == 0
    check_same(f"{gs_bucket}/out", "out")
    assert audit(f"{gs_bucket}/out", workers=1).findings.faults == 0
