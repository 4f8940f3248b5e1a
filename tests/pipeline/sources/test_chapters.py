"""unit: chapter. Headings of four languages, tables of contents, numerals alone, books without chapters."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.schema import SourceConfig
from pipeline.documents import Document, Note
from pipeline.sources.chapters import is_heading, split_chapters
from pipeline.sources.splits import list_splits, read_documents
from source_items import read_source

PROSE = "It was a bright cold day in April and the clocks were striking thirteen. " * 5


@pytest.mark.parametrize(
    "text",
    [
        "CHAPTER I",
        "Chapter 12.",
        "CHAPTER I. Down the Rabbit-Hole",
        "CHAPTER THE LAST",
        "Chapter Twenty-One: The End",
        "CHAPTER III IN WHICH I MARRY IN HASTE",
        "BOOK ONE--The Romantic Egotist",
        "Chap. ii.",
        "Letter 4",
        "PROLOGUE",
        "CHAPITRE PREMIER",
        "Chapitre XIV. Le Retour",
        "LIVRE DEUXI\u00c8ME",
        "Premi\u00e8re partie",
        "\u00c9pilogue",
        "1. Kapitel",
        "Erstes Kapitel",
        "Kapitel 3: Der Wald",
        "Zweites Buch",
        "F\u00fcnfter Teil",
        "Nachwort",
        "\uc81c1\uc7a5",
        "\uc81c 12 \uc7a5 \ucd1d\uac15",
        "3\uc7a5. \uacb0\ub860",
        "\uc81c\uc774\ubd80",
        "\ud504\ub864\ub85c\uadf8",
    ],
)
def test_headings(text: str) -> None:
    assert is_heading(text)


@pytest.mark.parametrize(
    "text",
    [
        "Chapter one of his life was over.",
        "Part one was easy, he thought,",
        "Book First-class tickets early.",
        "Letter writing",
        "CHAPTER",
        "Partie de campagne",
        "Kapitelweise lesen",
        "Chapter I " + "x" * 100,
        "\uc81c1\uc7a5\uc744 \uc77d\uc5c8\ub2e4",
        "3\uc7a5\uc758 \uc885\uc774\uac00 \uc788\ub2e4.",
        "Introduction to Algebra is a book.",
    ],
)
def test_prose_is_no_heading(text: str) -> None:
    assert not is_heading(text)


def test_a_table_of_contents_opens_no_chapters() -> None:
    book = ["THE BOOK", "Contents", "CHAPTER I", "CHAPTER II", "BOOK I", "CHAPTER I", PROSE, "CHAPTER II", PROSE]
    assert split_chapters(book) == [[*book[:7]], ["CHAPTER II", PROSE]]


def test_a_long_preface_is_a_document_of_its_own() -> None:
    book = [PROSE, "Chapter 1", PROSE, "Chapter 2", PROSE, "EPILOGUE", "Short."]
    assert split_chapters(book) == [[PROSE], ["Chapter 1", PROSE], ["Chapter 2", PROSE, "EPILOGUE", "Short."]]


@pytest.mark.parametrize("numerals", [["I", "II", "III"], ["1.", "2.", "3."], ["I. Home", "II. The Way", "III. Away"]])
def test_numerals_count_where_nothing_else_does(numerals: list[str]) -> None:
    book = [text for numeral in numerals for text in (numeral, PROSE)]
    assert [chapter[0] for chapter in split_chapters(book)] == numerals
    assert len(split_chapters(book[:4])) == 1, "two numerals are no proof"
    assert len(split_chapters([PROSE, "IV", PROSE, "VII", PROSE, "X", PROSE])) == 1
    worded = ["Chapter 1", PROSE, *book, "Chapter 2", PROSE]
    assert [chapter[0] for chapter in split_chapters(worded)] == ["Chapter 1", "Chapter 2"]


def test_nothing_is_lost_or_moved() -> None:
    book = ["x", "CHAPTER 1", "y", "CHAPTER 2", PROSE, "CHAPTER 3", "z"]
    assert [text for chapter in split_chapters(book) for text in chapter] == book
    assert split_chapters([]) == [[]]
    assert split_chapters(["CHAPTER 1", "CHAPTER 2"]) == [["CHAPTER 1", "CHAPTER 2"]]


def test_chapters_are_documents_and_books_without_any_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"CHAPTER I\n\n{PROSE}\n\nCHAPTER II\n\n{PROSE}\n")
    (tmp_path / "b.txt").write_text(f"{PROSE}\n")
    for unit, names, notes in (
        ("chapter", {"a.txt, chapter 1", "a.txt, chapter 2", "b.txt"}, [Note("book_without_chapters", "b.txt")]),
        ("book", {"a.txt", "b.txt"}, []),
    ):
        source = SourceConfig(kind="books", path=str(tmp_path), unit=unit)  # type: ignore[arg-type]
        items = read_source(source)
        assert {item.name for item in items if isinstance(item, Document)} == names
        assert [item for item in items if isinstance(item, Note)] == notes


def test_real_novels(shared_data: Path) -> None:
    for name, count in (
        ("plain/11_alices_adventures_in_wonderland.txt", 12),
        ("gutenberg-with-boilerplate/alice30-old.txt", 12),
        ("plain/158_emma.txt", 55),
        ("plain/345_dracula.txt", 27),
        ("gutenberg-with-boilerplate/84.txt", 28),
    ):
        source = SourceConfig(kind="books", path=str(shared_data / "books" / name), unit="chapter")
        (split,) = list_splits([source])
        found = [item for item in read_documents(split, source) if isinstance(item, Document)]
        assert len(found) == count, name
