"""A great book is shared by several workers: bytes and counts are those of one worker; a lost piece is an error."""

from __future__ import annotations

import json
import lzma
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, normalizers

import killed_build
from corpora import make_config, make_documents, write_vocabulary
from pipeline import console, run
from pipeline.build import read_split, recipe
from pipeline.build.read_split import take_piece
from pipeline.config.schema import PipelineConfig, SourceConfig
from pipeline.documents import WHOLE, Document, Drop, Note, Piece, Split
from pipeline.estimate import cost
from pipeline.runtime import command
from pipeline.runtime.progress import WorkReport
from pipeline.shuffle import buckets
from pipeline.sources import splits as sources
from pipeline.sources.splits import cut_split
from pipeline.tokenizer.tokenizer import WordTokenizer

GREAT = 3_000
"""Characters of a great document in these tests, but for those with worker processes."""
Share = Callable[..., list[Split]]


def in_pieces(*pieces: int) -> Share:
    """In place of share_books: every split in so many pieces, in turn; the last first, which must not matter."""

    def share(splits: Sequence[Split], *, sources: Sequence[SourceConfig], workers: int) -> list[Split]:
        ordered = sorted(splits, key=lambda split: Path(split.path).name)
        cut = [cut_split(split, pieces=pieces[place % len(pieces)]) for place, split in enumerate(ordered)]
        return [piece for pieces in cut for piece in reversed(pieces)]

    return share


def prose(documents: Sequence[Sequence[str]]) -> str:
    return "\n\n".join(" ".join(f"{sentence.capitalize()}." for sentence in each) for each in documents)


def write_books(folder: Path) -> Path:
    """Great and small books, among them copies and near copies, an archive, chapters, and what is left out."""
    books = folder / "books"
    books.mkdir(parents=True)
    great = prose(make_documents(40, seed=11))
    (books / "a-great.txt").write_text(f"{great}\n\n* * *\n\nDi.")
    (books / "b-copy.txt").write_text(f"{great}\n\nDi.")
    (books / "c-copy.txt.xz").write_bytes(lzma.compress(f"{great}\n\nDi.".encode()))
    (books / "d-near.txt").write_text(f"{great}\n\nBa de fi.")
    (books / "e-bad.txt").write_bytes(prose(make_documents(40, seed=2)).encode() + b" Caf\xc3\xa9.\n\nBa \xff de.")
    chapters = "\n\n".join(f"CHAPTER {n}\n\n{prose(make_documents(8, seed=n))}" for n in range(3, 8))
    (books / "f-chapters.txt").write_text(f"{chapters}\n\nCHAPTER 8\n\n{prose(make_documents(400, seed=8))}")
    (books / "g-few.txt").write_text("Ba de fi.")
    (books / "h-other.txt").write_text("\n\n".join(["\u0416\u0436" * 9 + "."] * 300))
    with zipfile.ZipFile(books / "i.zip", "w") as archive:
        for number, documents in enumerate([make_documents(40, seed=9), *([each] for each in make_documents(80))]):
            archive.writestr(f"{number}.txt", prose(documents))
        archive.writestr("cover.jpg", b"\xff")
    again = folder / "again"
    again.mkdir()
    (again / "a.txt").write_text(f"{great}\n\nDi.")
    (again / "b.txt").write_text(prose(make_documents(40, seed=10)))
    return folder


def write_great_book(folder: Path) -> None:
    """One that is great without a change of the limit, which worker processes would not know; and a small one."""
    folder.mkdir()
    great = make_documents(6_000, seed=1)
    (folder / "great.txt").write_text(prose(great))
    (folder / "small.txt").write_text(prose(make_documents(20, seed=2)))
    assert sum(len(sentence) for document in great for sentence in document) > read_split.GREAT_CHARACTERS


def configure(folder: Path, *, output: str, **settings: Any) -> PipelineConfig:
    unit = settings.pop("unit", "book")
    entries = [
        {"kind": "books", "path": str(folder / "again"), "name": "again", "weight": 2.5},
        {"kind": "books", "path": str(folder / "books"), "unit": unit, "name": "books", "weight": 0.8},
    ]
    cleaning = {"keep_rejects": str(folder / f"{output}-rejects"), "min_words": 8, "min_script": 0.5}
    return make_config(
        folder,
        sources=entries,
        output=str(folder / output),
        validation_fraction=0.2,
        shards="auto",
        cleaning={**cleaning, **settings.pop("cleaning", {})},
        **settings,
    )


def outcome(config: PipelineConfig) -> dict[str, Any]:
    """All that a build leaves but times: manifest, hashes of files, counts by source, rejects."""
    lines: list[str] = []
    manifest = recipe.build(config, say=lines.append)
    report = json.loads((Path(config.output) / "report.json").read_text())
    for name in ("seconds", "workers"):
        del report["run"][name]
    rejects = Path(str(config.cleaning.keep_rejects)) / "rejects.jsonl"
    return {
        "manifest": manifest,
        "report": report,
        "rejects": rejects.read_text(),
        "progress": re.findall(r"read [\d,]+ documents, [\d.]+ MB|wrote [\d,]+ rows in \d+ shards", lines[-3]),
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(read_split, "GREAT_CHARACTERS", GREAT)
    monkeypatch.setattr(buckets, "TEXT_BYTES_PER_BUCKET", 16_000)
    return write_books(tmp_path)


@pytest.mark.parametrize("unit", ["book", "chapter"])
@pytest.mark.parametrize("near", [False, True])
def test_a_build_from_pieces_is_that_from_the_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch, unit: str, near: bool
) -> None:
    """Copies in as many pieces and in others, whole beside pieces, of two sources; near copies; all that is counted."""
    cleaning = {"near_duplicates": {}} if near else {}
    whole = outcome(configure(folder, output="whole", unit=unit, cleaning=cleaning))
    reasons = {reason for counts in whole["report"]["run"]["sources"] for reason in counts["drops"]}
    assert {"duplicate", "too_few_words", "other_script", "sentence_without_words", "weight"} <= reasons
    assert ("near_duplicate" in reasons) == near
    for number, pieces in enumerate([(2,), (3,), (3, 1, 2)]):
        with monkeypatch.context() as patch:
            patch.setattr(recipe, "share_books", in_pieces(*pieces))
            found = outcome(configure(folder, output=f"pieces-{number}", unit=unit, cleaning=cleaning))
        assert found == whole


def test_a_build_from_pieces_keeps_cleaned_documents_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is cut from the same file of cleaned documents, which holds the whole."""
    entry = {"kind": "books", "path": str(folder / "books"), "clean_documents": str(folder / "clean")}
    hashes = []
    for name, pieces in (("whole", 1), ("pieces", 3), ("others", 2)):
        monkeypatch.setattr(recipe, "share_books", in_pieces(pieces))
        manifest = recipe.build(make_config(folder, sources=[entry], output=str(folder / name)), say=lambda line: None)
        hashes.append([shard.sha256 for shard in manifest.shards])
        assert len(list((folder / "clean").iterdir())) == len(list((folder / "books").iterdir()))
    assert hashes[0] == hashes[1] == hashes[2]


def test_worker_processes_share_a_great_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_great_book(tmp_path / "books")
    monkeypatch.setattr(sources, "_PIECE_BYTES", 300_000)
    hashes = []
    for workers, splits in ((1, 2), (2, 3), (3, 4)):
        lines: list[str] = []
        entry = {"kind": "books", "path": str(tmp_path / "books")}
        config = make_config(tmp_path, sources=[entry], workers=workers, output=str(tmp_path / f"out-{workers}"))
        manifest = recipe.build(config, say=lines.append)
        hashes.append([shard.sha256 for shard in manifest.shards])
        assert f"{splits} splits, " in "\n".join(lines)
        assert any("read 2 documents" in line for line in lines)
    assert hashes[0] == hashes[1] == hashes[2]


# ---- what is of which piece ----

items_of_books = st.lists(
    st.one_of(
        st.lists(st.integers(1, 30), min_size=1, max_size=8).map(tuple),
        st.sampled_from([Drop("empty", "x"), Note("bad_utf8_repaired", "x")]),
    ),
    max_size=12,
)


@given(items_of_books, st.integers(1, 5))
def test_pieces_together_are_the_whole(found: list[Any], of: int) -> None:
    """Great documents once, in order; small ones by one piece each, in turn; what is left out by the first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_split, "GREAT_CHARACTERS", 60)
        items = [
            item if isinstance(item, Drop) else Document(f"{number}", tuple("a" * size for size in item))
            for number, item in enumerate(found)
        ]
        taken = [
            list(take_piece(items, split=Split(0, "a", 0, -1, 9, 9, piece=Piece(number, of)))) for number in range(of)
        ]
    assert [item for item, _ in taken[0] if isinstance(item, Drop)] == [i for i in items if isinstance(i, Drop)]
    assert not any(isinstance(item, Drop) for each in taken[1:] for item, _ in each)
    small = []
    for item in items:
        if not isinstance(item, Document):
            continue
        own = [piece for each in taken for other, piece in each if other is item]
        pieces = 1
        if of > 1 and sum(map(len, item.sentences)) >= 60:
            pieces = min(of, len(item.sentences))
        else:
            small.append(item)
        assert own == [Piece(number, pieces) for number in range(pieces)]
        assert sum((tuple(piece.cut(item.sentences)) for piece in own), ()) == item.sentences
        assert all(piece.cut(item.sentences) for piece in own)
    if of > 1:
        dealt = [[item for item in small if (item, WHOLE) in each] for each in taken]
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_a_piece_without_tokens_is_one_and_a_document_without_any_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tokenizer of which some letters leave nothing."""
    monkeypatch.setattr(read_split, "GREAT_CHARACTERS", 200)
    tokenizer = WordTokenizer.from_path(write_vocabulary(tmp_path / "vocab.txt"), lowercase=True).backend
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(Regex("[xyz.]"), "")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    books = tmp_path / "books"
    books.mkdir()
    (books / "a.txt").write_text("\n\n".join(["Xyxyxyxyx."] * 30 + ["Ba de fi."] * 10))
    (books / "b.txt").write_text("\n\n".join(["Xzxzxzxzx."] * 30))
    (books / "c.txt").write_text("Ba de fi ba.\n\nDe fi.")
    found = []
    for name, pieces in (("whole", 1), ("pieces", 4)):
        monkeypatch.setattr(recipe, "share_books", in_pieces(pieces))
        entry = {"kind": "books", "path": str(books)}
        vocabulary = {"path": str(tmp_path / "tokenizer.json")}
        config = make_config(tmp_path, sources=[entry], output=str(tmp_path / name), vocabulary=vocabulary)
        manifest = recipe.build(config, say=lambda line: None)
        report = json.loads((tmp_path / name / "report.json").read_text())
        (counts,) = report["run"]["sources"]
        assert (counts["documents"], counts["drops"]) == (2, {"no_tokens": 1})
        found.append([shard.sha256 for shard in manifest.shards])
    assert found[0] == found[1]


def test_a_build_that_loses_a_piece_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, also where worker processes find it; here one of the splits is given to nobody."""

    def lose(splits: Sequence[Split], **how: Any) -> list[Split]:
        return [split for split in in_pieces(3)(splits, **how) if split.piece.number != 1]

    monkeypatch.setattr(recipe, "share_books", lose)
    write_great_book(tmp_path / "books")
    write_vocabulary(tmp_path / "vocab.txt")
    (tmp_path / "c.yaml").write_text(
        f"sources: [{{kind: books, path: {tmp_path / 'books'}}}]\nvocabulary: {{path: {tmp_path / 'vocab.txt'}}}\n"
        f"output: {tmp_path / 'out'}\nmax_seq_length: 32\nvalidation_fraction: 0\nworkers: 2\n"
    )
    assert run.main(["--config", str(tmp_path / "c.yaml")]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"error: document [0-9a-f]{32}: some of its 3 pieces are missing; run the build again", line)


def test_pieces_together_tell_of_the_text_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the line of progress would be at its end when the first of them is done."""
    told: list[Counter[str]] = []
    add = WorkReport.add

    def note(report: WorkReport, **counts: int) -> None:
        told[-1].update({name: counts.get(name, 0) for name in ("characters", "of_text")})
        add(report, **counts)

    monkeypatch.setattr(WorkReport, "add", note)
    for pieces in (1, 3):
        told.append(Counter())
        monkeypatch.setattr(recipe, "share_books", in_pieces(pieces))
        recipe.build(configure(folder, output=f"pieces-{pieces}"), say=lambda line: None)
    assert told[0]["characters"] == told[1]["characters"] > 0
    assert told[0]["of_text"] == pytest.approx(told[1]["of_text"], rel=1e-3)


# ---- resuming ----

KILLED = Path(killed_build.__file__).with_name("killed_shared_build.py")


def test_a_build_killed_between_two_pieces_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In as many pieces, where all that was finished is kept, and in others, where the book is read anew."""
    (folder / "c.yaml").write_text(
        "sources: [{kind: books, path: books}]\nvocabulary: {path: vocab.txt}\noutput: out\n"
        "max_seq_length: 32\nvalidation_fraction: 0\nshards: 1\nworkers: 1\n"
    )
    make_config(folder, sources=[{"kind": "books", "path": "books"}])  # which writes the vocabulary
    monkeypatch.chdir(folder)
    assert run.main(["--config", "c.yaml", "output=whole"]) == 0
    for number, (pieces, kept) in enumerate([(3, 4), (2, 0), (1, 0)]):
        words = ["--config", "c.yaml", f"output=out-{number}"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, KILLED, "5", *words], env=environment, check=False)
        assert done.returncode == -9
        lines: list[str] = []
        monkeypatch.setattr(recipe, "share_books", in_pieces(pieces))
        monkeypatch.setattr(console, "say_at_once", lines.append)
        config = command.read_config(run.split_arguments(words, program="x", keys=()))
        recipe.build(config, say=lines.append)
        assert any(f"resumed: {kept} of {9 * pieces} splits" in line for line in lines)
        for one, other in zip_longest(*(sorted(Path(name, "data").iterdir()) for name in ("whole", f"out-{number}"))):
            assert one.read_bytes() == other.read_bytes()


# ---- estimates ----


def test_an_estimate_reads_a_shared_book_once_and_counts_what_its_pieces_take_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(folder, sources=[{"kind": "books", "path": str(folder / "books")}])
    measured: list[Any] = []
    combine = cost.combine

    def keep(found: Any, **others: Any) -> Any:
        measured.append(found)
        return combine(found, **others)

    monkeypatch.setattr(cost, "combine", keep)
    cost.estimate(config, workers=2)
    (sample,) = measured
    others: dict[str, Any] = {"config": config, "workers": 2, "sample_s": 1.0, "vocabulary": ""}
    once = combine(sample, **others)
    monkeypatch.setattr(cost, "share_books", in_pieces(2))
    twice = combine(sample, **others)
    assert (once.documents, once.rows, once.tokens) == (twice.documents, twice.rows, twice.tokens)
    again_s = sources._AGAIN * sample[0].expand("read_cpu_s").value
    assert twice.cpu_s.value - once.cpu_s.value == pytest.approx(again_s, rel=1e-2)
