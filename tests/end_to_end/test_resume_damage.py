"""Builds that go on after damage: to what they had finished, to their input, to their mark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.config.schema import SourceConfig
from pipeline.documents import Document, Drop, Split
from pipeline.output.folder import OutputFolder
from pipeline.run import main
from pipeline.sources.splits import read_documents
from stopped_builds import base, check_same, folder, go_on, refuse, stopped

__all__ = ["base", "folder", "stopped"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_damaged_pieces_are_made_again_and_named(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is trusted: neither spills, nor shards, nor the records of either."""
    work = stopped / "out" / "_tmp"
    damages = [
        ("spills/0.txt-*.arrow", flip, "changed since it was written"),
        ("spills/1.txt-*.arrow", Path.unlink, "cannot be read (No such file or directory)"),
        ("data/train-00001-*.parquet", flip, "changed since it was written"),
        ("data/validation-*.parquet", cut, " were written"),
    ]
    expected = []
    for pattern, damage, said in damages:
        (path,) = work.glob(pattern)
        damage(path)
        expected.append((str(path), said))
    (record,) = [path for path in work.glob("finished/split-*.json") if "3.txt-" in path.read_text()]
    flip(record)
    expected.append((str(record), "content does not match its recorded hash"))
    lines = go_on(capsys)
    said = [line for line in lines if line.startswith("damaged, so rebuilt: ")]
    assert len(said) == len(expected)
    assert all(any(path in line and fault in line for line in said) for path, fault in expected), said
    assert "resumed: 1 of 4 splits and 1 of 3 shards kept" in lines
    check_same()


def test_a_shard_falls_with_the_documents_it_was_made_of(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A split read again may have one page less, which took too long this time: no shard may still hold it."""

    def read_less(split: Split, source: SourceConfig) -> Iterator[Document | Drop]:
        items = read_documents(split, source)
        if split.path.endswith("0.txt"):
            next(items)
        yield from items

    monkeypatch.setattr("pipeline.build.read_split.read_documents", read_less)
    for path in (stopped / "out/_tmp/spills").glob("0.txt-*"):
        path.unlink()
    assert "resumed: 3 of 4 splits and 2 of 3 shards kept" in go_on(capsys)
    check_same("workers=1")


def test_after_a_damaged_input_file_is_mended_the_others_are_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "text" / "3.txt"
    text = path.read_bytes()
    path.write_bytes(text[:-3] + b"\xff\xff\n")
    assert main(["--config", "c.yaml"]) == 2
    error = capsys.readouterr().err
    assert "3.txt, line" in error.splitlines()[-1]
    finished = len(list((folder / "out/_tmp/finished").iterdir()))
    path.write_bytes(text)
    assert finished > 0
    assert "config.seed" in refuse(capsys, "seed=1")
    assert f"resumed: {finished} of 4 splits and 0 of 3 shards kept" in go_on(capsys)
    check_same()


@pytest.mark.parametrize("mark", ["", "[]", "{}"])
def test_a_mark_that_says_nothing_keeps_nothing(stopped: Path, mark: str) -> None:
    (stopped / "out" / "_build.json").write_text(mark)
    with OutputFolder("out", identity={"config": {}, "inputs": {}}) as output:
        assert not output.resumes
        assert not list((stopped / "out/_tmp/spills").iterdir())
