"""The stated policy for the bytes of books: what is guessed, what is counted, what is refused with file and byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.schema import SourceConfig
from pipeline.documents import Document, Note
from pipeline.settings import ConfigError, validate
from pipeline.sources.decoding import decode_text
from pipeline.sources.splits import list_splits, read_documents
from source_items import read_source

FRENCH = "L'\xe9t\xe9, les for\xeats \xe9taient calmes et d\xe9sertes."
KOREAN = "\ub300\ud55c\ubbfc\uad6d\uc740 \ubbfc\uc8fc\uacf5\ud654\uad6d\uc774\ub2e4."


def read(path: Path, **settings: str) -> list[object]:
    source = SourceConfig(kind="books", path=str(path), **settings)  # type: ignore[arg-type]
    return read_source(source)


@pytest.mark.parametrize(
    ("data", "text", "encoding", "bad", "first"),
    [
        ("caf\xe9".encode(), "caf\xe9", "utf-8", 0, -1),
        ("\ufeffcaf\xe9".encode(), "caf\xe9", "utf-8", 0, -1),
        ("caf\xe9".encode("utf-16"), "caf\xe9", "utf-16", 0, -1),
        (FRENCH.encode("cp1252"), FRENCH, "windows-1252", 0, -1),
        (b"one \x81word \xe9t\xe9 and many more", "one word \xe9t\xe9 and many more", "windows-1252", 1, -1),
        ("\xe9\xe8\xea ".encode() + b"\xff x", "\xe9\xe8\xea  x", "utf-8 with bad bytes left out", 1, 7),
        (b"\xef\xbb\xbf" + "\xe9\xe8\xea ".encode() + b"\xff", "\xe9\xe8\xea ", "utf-8 with bad bytes left out", 1, 10),
    ],
)
def test_the_policy(data: bytes, text: str, encoding: str, bad: int, first: int) -> None:
    assert decode_text(data, name="a") == (text, encoding, bad, first)


@pytest.mark.parametrize("old", ["cp949", "cp1251", "gb18030", "shift_jis"])
def test_an_old_encoding_of_another_script_is_refused_not_guessed(old: str) -> None:
    text = {"cp949": KOREAN, "cp1251": "\u0412\u043e\u0439\u043d\u0430 \u0438 \u043c\u0438\u0440"}.get(
        old, "\u4e2d\u6587 " * 9
    )
    data = b"Title\n" + text.encode(old)
    with pytest.raises(
        ValueError, match=r"books/a\.txt, byte 6: not UTF-8 .* not Latin-1 either; set the source's enc"
    ):
        decode_text(data, name="books/a.txt")
    assert decode_text(data, name="a", encoding=old).text == "Title\n" + text


def test_what_is_not_of_the_encoding_asked_for_is_refused_with_the_byte() -> None:
    with pytest.raises(ValueError, match=r"a\.txt, byte 3: not utf-8 .*correct the source's encoding"):
        decode_text(b"abc\xe9 x", name="a.txt", encoding="utf-8")
    with pytest.raises(ValueError, match=r"a\.txt, byte 2: not utf-16"):
        decode_text(b"\xff\xfe\x00", name="a.txt")


def test_guesses_are_counted_and_refusals_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_bytes(FRENCH.encode("latin-1"))
    (tmp_path / "2.txt").write_bytes("\xe9\xe8\xea word ".encode() + b"\xff.")
    items = read(tmp_path)
    assert {item for item in items if isinstance(item, Note)} == {
        Note("bad_utf8_repaired", "2.txt", "1 bytes left out, the first at 12"),
        Note("read_as_windows_1252", "1.txt", "0 bytes left out"),
    }
    assert sum(isinstance(item, Document) for item in items) == 2
    (tmp_path / "3.txt").write_bytes(KOREAN.encode("cp949"))
    with pytest.raises(ValueError, match=rf"{tmp_path}/3\.txt, byte 0: not UTF-8"):
        read(tmp_path)


def test_a_named_encoding_reads_books_and_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(KOREAN.encode("cp949") + b"\n")
    (book,) = read(tmp_path, encoding="cp949", language="ko")
    assert isinstance(book, Document)
    assert book.sentences == (KOREAN,)
    source = SourceConfig(kind="text", path=str(tmp_path), encoding="cp949")
    (split,) = list_splits([source])
    assert [item.sentences for item in read_documents(split, source) if isinstance(item, Document)] == [(KOREAN,)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "books", "encoding": "klingon"}, "klingon is not a text encoding of Python"),
        ({"kind": "text", "encoding": "utf-16"}, "no one-byte line breaks"),
        ({"kind": "jsonl", "encoding": "cp949"}, "encoding is for kinds books and text"),
        ({"kind": "text", "unit": "chapter"}, "unit: chapter is for kind books"),
        ({"kind": "books", "encoding": "hex"}, "is not a text encoding"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(SourceConfig, {"path": "x", **settings}, origin="f")
