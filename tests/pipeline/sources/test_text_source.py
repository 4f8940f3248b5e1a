"""kind: text. A sentence a line, a blank line between documents; large files are read in ranges, no document cut."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.schema import SourceConfig
from pipeline.documents import Document, Drop
from pipeline.sources.text import read_text, split_text
from pipeline.sources.textlines import break_lines
from source_items import read_source


def source_of(path: Path) -> SourceConfig:
    return SourceConfig(kind="text", path=str(path))


def test_blank_lines_end_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One  here.\nTwo.\n\n \n\nThree.\n", encoding="utf-8")
    assert read_source(source_of(tmp_path / "a.txt")) == [
        Document("a.txt, line 1", ("One here.", "Two.")),
        Document("a.txt, line 6", ("Three.",)),
    ]


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed_text_reads_the_same(tmp_path: Path, suffix: str, compress: object) -> None:
    data = "\ufeffOne.\r\nTwo.\r\n\r\nThree.".encode()
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(compress(data))  # type: ignore[operator]
    assert [item.sentences for item in read_source(source_of(path)) if isinstance(item, Document)] == [
        ("One.", "Two."),
        ("Three.",),
    ]


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_lines_end_at_any_line_break(tmp_path: Path, line_break: str) -> None:
    (tmp_path / "a.txt").write_bytes(b"One here.\nTwo here.\n\nThree.\n".replace(b"\n", line_break.encode()))
    assert read_source(source_of(tmp_path / "a.txt")) == [
        Document("a.txt, line 1", ("One here.", "Two here.")),
        Document("a.txt, line 4", ("Three.",)),
    ]
    (tmp_path / "a.txt").write_bytes(f"One.{line_break}caf".encode() + b"\xe9.")
    with pytest.raises(ValueError, match=rf"line 2 \(byte {7 + len(line_break)} of the text\): not UTF-8"):
        read_source(source_of(tmp_path / "a.txt"))


def test_a_carriage_return_too_many_is_no_blank_line(tmp_path: Path) -> None:
    """What a file that was converted twice has."""
    (tmp_path / "a.txt").write_bytes(b"One.\r\r\nTwo.\r\r\n")
    assert read_source(source_of(tmp_path / "a.txt")) == [Document("a.txt, line 1", ("One.", "Two."))]


@given(st.lists(st.sampled_from([b"\r", b"\n", b"a", b"bb"]), max_size=12), st.integers(1, 5))
def test_line_breaks_on_the_border_of_two_pieces_are_one(parts: list[bytes], size: int) -> None:
    data = b"".join(parts)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    lines = list(break_lines(iter(pieces), name="x"))
    assert b"".join(lines) == data
    assert lines == list(break_lines(iter([data]), name="x"))


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["", "a", "bb.", " ", "ccc ccc"]), max_size=40),
    st.integers(1, 30),
    st.booleans(),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_ranges_of_any_size_give_the_documents_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
    split_bytes: int,
    ends_with_break: bool,
    line_break: bytes,
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    text = "x\n" + "\n".join(lines) + ("\n" if ends_with_break else "")
    path.write_bytes(text.encode().replace(b"\n", line_break))
    source = source_of(path)

    def documents(size: int | None) -> list[tuple[str, ...]]:
        splits = split_text(path, source=0, config=source, split_bytes=size)
        assert splits[0].start == 0
        assert splits[-1].end == path.stat().st_size
        items = [item for split in splits for item in read_text(split, source=source)]
        return [item.sentences for item in items if isinstance(item, Document)]

    assert documents(split_bytes) == documents(None)


def test_lines_without_blank_ones_are_cut_by_number(tmp_path: Path) -> None:
    """BookCorpus as it was: a sentence a line and nothing else. Each range of the file counts anew."""
    path = tmp_path / "books_large_p1.txt"
    path.write_text("".join(f"sentence number {index} .\n" for index in range(10)) + "\nlast .\n")
    source = SourceConfig(kind="text", path=str(path), rows_per_document=4)
    items = [item for item in read_source(source) if isinstance(item, Document)]
    assert [len(item.sentences) for item in items] == [4, 4, 2, 1]
    splits = split_text(path, source=0, config=source, split_bytes=100)
    assert len(splits) == 3
    lines = [line for split in splits for item in read_text(split, source=source) for line in item.sentences]  # type: ignore[union-attr]
    assert lines == [line for item in items for line in item.sentences]


def test_a_document_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.sources.text.MOST_CHARACTERS", 100)
    (tmp_path / "a.txt").write_text("short\n\n" + "one more line\n" * 9)
    with pytest.raises(ValueError, match=r"a\.txt, line 3: the document .* 100 characters; .* rows_per_document"):
        read_source(source_of(tmp_path / "a.txt"))


def test_bad_utf8_is_refused_with_file_line_byte_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine\ncaf\xe9 x\n")
    with pytest.raises(
        ValueError,
        match=r"a\.txt, line 2 \(byte 8 of the text\): not UTF-8 .*iconv -f ENC.*set the source.*cp949",
    ):
        read_source(source_of(tmp_path / "a.txt"))
    (tmp_path / "a.txt").write_bytes("\ufefffine".encode("utf-16"))
    with pytest.raises(ValueError, match=r"a\.txt, line 1 .*: not UTF-8 .*iconv -f utf-16 -t utf-8$"):
        read_source(source_of(tmp_path / "a.txt"))


def test_names_that_are_not_utf8_are_shown_with_their_bytes(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")
    Path(path).write_text("One.\n")
    Path(path).with_suffix(".jsonl").write_text('{"text": "One."}\n')
    for kind, name in (("text", ".txt, line 1"), ("books", ".txt"), ("jsonl", ".jsonl, line 1")):
        found = Path(path).with_suffix(name.split(",")[0])
        assert [item.name for item in read_source(SourceConfig(kind=kind, path=str(found)))] == [rf"caf\xe9{name}"]


def test_a_file_without_line_breaks_is_refused_in_flat_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.sources.textlines.LONGEST_LINE", 1_000_000)
    (tmp_path / "a.txt").write_bytes(b"x" * 3_000_000)
    with pytest.raises(ValueError, match=r"a line is longer than 1000000 bytes"):
        read_source(source_of(tmp_path / "a.txt"))


def test_the_published_sample_text(shared_data: Path) -> None:
    documents = read_source(source_of(shared_data / "bert" / "sample_text.txt"))
    lines = (shared_data / "bert" / "sample_text.txt").read_text(encoding="utf-8").split("\n")
    assert sum(len(item.sentences) for item in documents if isinstance(item, Document)) == sum(
        1 for line in lines if line.strip()
    )


def test_wikitext_2_and_korean_law_are_read_whole(shared_data: Path) -> None:
    for path in (
        shared_data / "wiki/text/wikitext-2/test.txt.xz",
        *(shared_data / "korean/konlpy-corpus").rglob("*.txt"),
    ):
        items = read_source(source_of(path))
        assert sum(isinstance(item, Document) for item in items) >= 1, path
        assert {item.reason for item in items if isinstance(item, Drop)} <= {"sentence_without_words", "empty"}
