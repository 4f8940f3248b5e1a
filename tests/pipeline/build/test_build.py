"""Whole builds of small corpora: nothing lost, no negative from the same document, every count true."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from tokenizers import Regex, normalizers

from corpora import build_text, make_config, make_documents, read_rows, write_text, write_vocabulary
from pipeline.audit.run import audit
from pipeline.build.graph import CountBuckets
from pipeline.build.recipe import build
from pipeline.dataset.manifest import open_data_set, read_manifest
from pipeline.dataset.schema import METADATA_VOCABULARY_HASH
from pipeline.documents import Document, Split
from pipeline.estimate import describe_build
from pipeline.runtime import BuildContext, read_failure
from pipeline.shuffle import BucketRange, Buckets, SpillFile, Table
from pipeline.sources import splits
from pipeline.sources.splits import split_file
from pipeline.tokenizer.tokenizer import WordTokenizer


def ids_of(documents: list[list[str]]) -> set[bytes]:
    return {Document("", tuple(document)).id for document in documents}


def negatives_from_the_same_document(rows: list[dict[str, object]]) -> int:
    return sum(row["next_sentence_label"] == 1 and row["document_id"] == row["second_document_id"] for row in rows)


@pytest.mark.parametrize("count", [2, 3, 100])
def test_small_corpora_lose_nothing(tmp_path: Path, count: int) -> None:
    """Two documents are enough (transformers#452, #762, PR#7161), and none is dropped silently (LDDL (source))."""
    documents = make_documents(count, sentences=(1, 9))
    manifest = build_text(tmp_path, documents, shards=4, passes=2)
    rows = read_rows(tmp_path / "out", manifest).to_pylist()
    assert {row["document_id"] for row in rows} == ids_of(documents)
    assert Counter(row["pass_number"] for row in rows).keys() == {0, 1}
    assert negatives_from_the_same_document(rows) == 0
    assert {row["second_document_id"] == row["document_id"] for row in rows if row["next_sentence_label"] == 0} <= {
        True
    }
    assert open_data_set(tmp_path / "out", full=True) == manifest
    assert manifest.statistics["splits"]["train"]["documents"] == count
    assert len(manifest.shards) == {2: 1, 3: 1, 100: 4}[count]


def test_only_what_the_manifest_lists_and_the_pages_are_left(tmp_path: Path) -> None:
    manifest = build_text(tmp_path, make_documents(20))
    root = tmp_path / "out"
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    listed = {shard.path for shard in manifest.shards} | set(manifest.files)
    assert found == listed | {"manifest.json", "README.md", "report.html", "report.json"}
    assert "token_counts.parquet" in manifest.files
    assert "tokenizer/tokenizer.json" in manifest.files


def test_a_file_written_during_the_build_is_refused(tmp_path: Path) -> None:
    """Else the set holds a text that its manifest does not name."""
    path = write_text(tmp_path / "a.txt", make_documents(10))
    config = make_config(tmp_path, sources=[{"kind": "text", "path": str(path)}])

    def rewrite(line: str) -> None:
        if "of input" in line:
            write_text(path, make_documents(11))

    with pytest.raises(ValueError, match=r"a\.txt: was written while the build read it \(\d+ bytes, .*; now \d+ bytes"):
        build(config, say=rewrite)
    assert not (tmp_path / "out").exists()
    build(config, say=lambda line: path.unlink() if line.startswith("read ") else None)  # all of it was read


def test_what_was_read_of_other_files_is_kept_where_one_was_written(tmp_path: Path) -> None:
    """Of the one nothing is, though its content is what it was."""
    paths = [write_text(tmp_path / f"{name}.txt", make_documents(10, seed=seed)) for seed, name in enumerate("ab")]
    config = make_config(tmp_path, sources=[{"kind": "text", "path": [str(path) for path in paths]}])
    with pytest.raises(ValueError, match=r"b\.txt: was written while the build read it"):
        build(config, say=lambda line: os.utime(paths[1], (1, 1)) if "of input" in line else None)
    records = tmp_path / "out" / "_tmp" / "finished"
    assert [path.name.split("-")[0] for path in records.glob("*.json")] == ["split"]
    said: list[str] = []
    manifest = build(config, say=said.append)
    assert "resumed: 1 of 2 splits and 0 of 1 shard kept" in said
    fresh = build(config.model_copy(update={"output": str(tmp_path / "fresh")}))
    assert manifest.statistics["splits"] == fresh.statistics["splits"]


@pytest.mark.parametrize("next_sentence", ["sentence_order", "none"])
def test_one_document_alone(tmp_path: Path, next_sentence: str) -> None:
    documents = make_documents(1, sentences=(20, 30))
    manifest = build_text(tmp_path, documents, next_sentence=next_sentence)
    assert manifest.statistics["splits"]["train"]["documents"] == 1
    assert audit(tmp_path / "out", workers=1).findings.by_check["layout"].looked_at > 1


def test_a_text_that_the_vocabulary_does_not_know_is_refused_for_that(tmp_path: Path) -> None:
    """All of it is [UNK], so that what follows in other documents reads the same as what follows here."""
    documents = [[f"{name} {name} {line}" for line in range(60)] for name in range(1_000, 1_300)]
    with pytest.raises(ValueError, match=r"\(100\.0% of it is \[UNK\]\).*the vocabulary's language"):
        build_text(tmp_path, documents)


def test_one_huge_document_beside_small_ones(tmp_path: Path) -> None:
    """50 MB in one document: bounded memory and time, no negative from it to itself, every small one there.

    Reported as bert#117; DeepLearningExamples#1083.
    """
    words = [f"word{number:04d}" for number in range(2000)]
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("".join(f"{t}\n" for t in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    draw = np.random.default_rng(0).integers(0, 2000, size=(190_000, 30))
    path = tmp_path / "text" / "corpus.txt"
    write_text(path, [[" ".join(words[word] for word in row) for row in draw[:4]] for _ in range(50)])
    with open(path, "a", encoding="ascii") as stream:
        stream.write("\n\n")
        stream.writelines(" ".join(words[word] for word in row) + "\n" for row in draw.tolist())
    small = make_documents(50)
    write_text(tmp_path / "text" / "small.txt", small)
    with open(vocabulary, "a", encoding="ascii") as stream:
        stream.writelines(f"{letter}\n##{letter}\n" for letter in "abcdefghijklmnopqrstuvwxyz")
    assert path.stat().st_size > 50e6
    code = (  # not ru_maxrss, which begins at the parent's
        "import sys; from pipeline.run import main; code = main(sys.argv[1:]);"
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'));"
        "print(int(peak.split()[1]) // 1024); sys.exit(code)"
    )
    config = tmp_path / "c.yaml"
    config.write_text(
        f"sources: [{{kind: text, path: {tmp_path}/text}}]\nvocabulary: {{path: {vocabulary}}}\n"
        f"output: {tmp_path}/out\n"
        "validation_fraction: 0\nshards: 4\nworkers: 1\nmax_seq_length: 512\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--config", str(config)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    megabytes = int(done.stdout.splitlines()[-1])
    manifest = read_manifest(tmp_path / "out")
    columns = ["document_id", "second_document_id", "next_sentence_label"]
    rows = [
        row
        for shard in manifest.shards
        for row in pq.read_table(tmp_path / "out" / shard.path, columns=columns).to_pylist()
    ]
    assert negatives_from_the_same_document(rows) == 0
    assert ids_of(small) < {row["document_id"] for row in rows}
    # 50 equal documents count once; the huge one and the small ones as they are
    assert len({row["document_id"] for row in rows}) == manifest.statistics["splits"]["train"]["documents"] == 52
    assert manifest.drops == {"duplicate": 49}
    assert megabytes < 1024


def test_duplicates_are_dropped_once_and_counted(tmp_path: Path) -> None:
    documents = make_documents(30)
    write_text(tmp_path / "text" / "a.txt", documents)
    write_text(tmp_path / "text" / "b.txt", [documents[3], documents[7], *make_documents(5, seed=1)])
    config = make_config(tmp_path, sources=[{"kind": "text", "path": str(tmp_path / "text")}])
    manifest = build(config, say=lambda line: None)
    assert manifest.drops == {"duplicate": 2}
    assert manifest.statistics["splits"]["train"]["documents"] == 35
    assert manifest.statistics["sources"][0]["documents"] == 37
    rows = read_rows(tmp_path / "out", manifest).to_pylist()
    assert len({row["document_id"] for row in rows}) == 35
    assert len({(row["document_id"], tuple(row["input_ids"]), str(row["masked_inputs"])) for row in rows}) == len(rows)


def test_held_out_documents_are_in_no_training_row(tmp_path: Path) -> None:
    manifest = build_text(tmp_path, make_documents(120), validation_fraction=0.2)
    ids: dict[str, set[bytes]] = {"train": set(), "validation": set()}
    for shard in manifest.shards:
        table = pq.read_table(tmp_path / "out" / shard.path)
        ids[shard.split] |= set(table["document_id"].to_pylist()) | set(
            table["second_document_id"].drop_null().to_pylist()
        )
    assert not ids["train"] & ids["validation"]
    assert len(ids["train"]) + len(ids["validation"]) == 120
    assert 10 < len(ids["validation"]) < 45
    assert len(ids["validation"]) == manifest.statistics["splits"]["validation"]["documents"]


def test_statistics_are_those_of_the_rows(tmp_path: Path) -> None:
    documents = make_documents(80)
    manifest = build_text(tmp_path, documents, masks_per_pair=3, shards=2)
    tokenizer = WordTokenizer.from_path(write_vocabulary(tmp_path / "v.txt"), lowercase=True)
    rows = read_rows(tmp_path / "out", manifest).to_pylist()
    train = manifest.statistics["splits"]["train"]
    lengths = [len(row["input_ids"]) for row in rows]
    masked = [len(positions) for row in rows for positions in row["masked_positions"]]
    assert train["rows"] == len(rows) == manifest.num_rows("train")
    assert train["tokens"] == sum(lengths) == manifest.num_tokens("train")
    assert train["fill"] == pytest.approx(sum(lengths) / len(rows) / 64)
    assert train["lengths"] == np.bincount(lengths, minlength=65).tolist()
    assert train["not_next_rate"] == sum(row["next_sentence_label"] for row in rows) / len(rows)
    assert train["mask_rate"] == sum(masked) / sum(lengths) / 3
    assert sum(train["masked_as"].values()) == sum(masked) == sum(shard.masked for shard in manifest.shards)
    shown = Counter(
        "mask" if stands == 4 else "kept" if stands == row["input_ids"][position] else "random"
        for row in rows
        for positions, inputs in zip(row["masked_positions"], row["masked_inputs"], strict=True)
        for position, stands in zip(positions, inputs, strict=True)
    )
    assert train["masked_as"] == dict(shown)
    tokenized = [tokenizer.tokenize(Document("", tuple(document))) for document in documents]
    assert train["document_tokens"] == sum(document.ids.size for document in tokenized)
    assert train["sentences"] == sum(map(len, documents))
    assert train["words"] == sum(len(sentence.split()) for document in documents for sentence in document)
    assert manifest.statistics["sources"] == [
        {
            "name": "text-en",
            "kind": "text",
            "weight": 1.0,
            "dropped_by_weight": 0,
            "rows": len(rows),
            "tokens": sum(lengths),
            "language": "en",
            "documents": 80,
            "sentences": train["sentences"],
            "characters": sum(len(sentence) for document in documents for sentence in document),
        }
    ]
    table = pq.read_table(tmp_path / "out" / "token_counts.parquet").to_pydict()
    counts = Counter(token for row in rows for token in row["input_ids"] if token > 4)
    assert table["id"] == list(range(145))
    assert table["token"] == tokenizer.tokens
    assert dict(enumerate(table["count"])) == {number: counts.get(number, 0) for number in range(145)}


def test_common_tools_read_the_set(tmp_path: Path) -> None:
    manifest = build_text(tmp_path, make_documents(120), validation_fraction=0.2, shards=2)
    root = tmp_path / "out"
    loaded = datasets.load_dataset(str(root), cache_dir=str(tmp_path / "cache"))
    assert {name: part.num_rows for name, part in loaded.items()} == {
        split: manifest.num_rows(split) for split in ("train", "validation")
    }
    expected = read_rows(root, manifest).slice(0, 1).to_pylist()[0]
    assert loaded["train"][0] == expected
    count, tokens, sets = duckdb.sql(
        f"select count(*), sum(len(input_ids)), min(len(masked_inputs)) from '{root}/data/train-*.parquet'"
    ).fetchall()[0]
    assert (count, tokens, sets) == (manifest.num_rows("train"), manifest.num_tokens("train"), 2)
    ((first,),) = duckdb.sql(  # one file: over several, the order of rows is DuckDB's own
        f"select masked_positions from '{root / manifest.shards_of('train')[0].path}' limit 1"
    ).fetchall()
    assert first == expected["masked_positions"]
    assert pq.read_table(root / "data").num_rows == manifest.num_rows("train") + manifest.num_rows("validation")


def test_manifest_names_what_shapes_the_data_and_only_that(tmp_path: Path) -> None:
    manifest = build_text(tmp_path, make_documents(20))
    text = (tmp_path / "out" / "manifest.json").read_text()
    tree = json.loads(text)
    run = tree.pop("run")
    assert str(tmp_path) not in json.dumps(tree)
    assert run["workers"] == 1
    assert {"numpy", "pyarrow", "tokenizers", "sentencex", "unicode", "cloze_data"} == set(manifest.versions)
    assert manifest.max_seq_length == 64
    assert manifest.mask_sets == 2
    assert manifest.special.mask == 4
    for shard in manifest.shards:
        metadata = pq.read_schema(tmp_path / "out" / shard.path).metadata
        assert metadata[METADATA_VOCABULARY_HASH].decode() == manifest.vocabulary_hash


def test_a_vocabulary_is_trained_where_none_is_given(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a" / "text.txt", make_documents(60))
    source = {"kind": "text", "path": str(path)}
    for_this_build = make_config(tmp_path, sources=[source], vocabulary={"size": 200}, output=str(tmp_path / "one"))
    manifest = build(for_this_build, say=lambda line: None)
    assert manifest.vocabulary_size == 200
    kept = tmp_path / "kept" / "vocab.txt"
    settings = {"path": str(kept), "train": True, "size": 200}
    cached = make_config(tmp_path, sources=[source], vocabulary=settings, output=str(tmp_path / "two"))
    second = build(cached, say=lambda line: None)
    assert second.vocabulary_hash == manifest.vocabulary_hash
    assert len(kept.read_text().splitlines()) == 200
    assert (tmp_path / "two" / "tokenizer" / "vocab.txt").read_bytes() == kept.read_bytes()
    before = kept.stat().st_mtime_ns
    build(cached.model_copy(update={"output": str(tmp_path / "three")}), say=lambda line: None)
    assert kept.stat().st_mtime_ns == before


def test_masking_and_next_sentence_settings_reach_the_rows(tmp_path: Path) -> None:
    """Users want NSP off (bert#558, #906)."""
    documents = make_documents(40)
    manifest = build_text(tmp_path, documents, next_sentence="none", masking="token", max_predictions=3)
    rows = read_rows(tmp_path / "out", manifest).to_pylist()
    assert all(row["next_sentence_label"] is None and row["second_document_id"] is None for row in rows)
    assert max(len(positions) for row in rows for positions in row["masked_positions"]) == manifest.max_predictions == 3
    assert manifest.next_sentence == "none"
    assert manifest.statistics["splits"]["train"]["not_next_rate"] is None


def test_a_document_without_tokens_is_counted(tmp_path: Path) -> None:
    """With a tokenizer of which some letters leave nothing."""
    backend = WordTokenizer.from_path(write_vocabulary(tmp_path / "vocab.txt"), lowercase=True).backend
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(Regex("[xyz.]"), "")])
    backend.save(str(tmp_path / "tokenizer.json"))
    documents = [["xyxyxyxyx."] * 3 + ["ba de fi.", "go lu."], ["xzxzxzxzx."] * 3, ["ba de fi ba.", "de fi."]]
    build_text(tmp_path, documents, vocabulary={"path": str(tmp_path / "tokenizer.json")})
    (counts,) = json.loads((tmp_path / "out" / "report.json").read_text())["run"]["sources"]
    assert (counts["documents"], counts["drops"]) == (2, {"no_tokens": 1})


def test_a_lost_spill_file_is_an_error_in_one_line(tmp_path: Path) -> None:
    """Worker processes find it where they count; what they raise reaches the command by a file alone."""
    (tmp_path / "results").mkdir()
    config = make_config(tmp_path, sources=[{"kind": "text", "path": "x"}])
    context = BuildContext(config, Buckets(1, 0, 0.0), "", 9, work=str(tmp_path), build="", inputs={})
    lost = SpillFile("lost.arrow", 0, Table(0, 4), BucketRange(0, 1))
    with pytest.raises(OSError, match=r"lost\.arrow"):
        list(CountBuckets(context).process(0, [lost]))
    failure = read_failure(context.results_folder)
    assert failure is not None
    assert failure.is_users
    assert "lost.arrow" in failure.message


def test_the_input_is_split_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a build that trains its vocabulary, and by a dry run; a listing of a store costs requests."""
    path = write_text(tmp_path / "text.txt", make_documents(60))
    config = make_config(tmp_path, sources=[{"kind": "text", "path": str(path)}], vocabulary={"size": 200})
    found: list[Path] = []

    def note(path: Path, **keywords: Any) -> list[Split]:
        found.append(path)
        return split_file(path, **keywords)

    monkeypatch.setattr(splits, "split_file", note)
    list(describe_build(config))
    assert len(found) == 1
    build(config, say=lambda line: None)
    assert len(found) == 2
