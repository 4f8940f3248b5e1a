"""Files with several e-texts of Project Gutenberg, and small print on either side of a book."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from book_items import documents, read
from pipeline.documents import Drop, Note
from pipeline.sources.decoding import decode_text
from pipeline.sources.gutenberg import book_paragraphs, file_books

BODY = [f"The clerk of the harbour opened the door and found letter number {number} on it." for number in range(12)]
SMALL_PRINT = (
    "*START*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*START*\nWhy is this Small Print here? You know: lawyers.\n"
    "Project Gutenberg wants you to read it.\n*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n"
)
LICENCE = "\nUpdated editions will replace the previous one.\n\n" + "Project Gutenberg-tm is a trademark.\n\n" * 30
LETTERHEAD = "The Project Gutenberg EBook of {}, by A. Nobody\n\nThis is from Project Gutenberg.\n\nTitle: {}\n\n"
START, END = "*** START OF THE PROJECT GUTENBERG EBOOK {} ***\n\n", "\n*** END OF THE PROJECT GUTENBERG EBOOK {} ***\n"
OLD_HEAD = "The Project Gutenberg Etext of {}\n\nThis file should be named old10.txt or old10.zip.\n\n"
OLD_END = "\nEnd of The Project Gutenberg Etext of {}\n"
FORMS = {
    "modern": (LETTERHEAD + START, END + LICENCE),
    "modern without letterhead": (START, END + LICENCE),
    "small print at the end": (
        LETTERHEAD + START,
        END + "\nThis file should be named letter10.txt or letter10.zip\n\n" + SMALL_PRINT,
    ),
    "small print at the end, no end mark": (LETTERHEAD + START, "\n" + SMALL_PRINT),
    "small print before the start": (LETTERHEAD + SMALL_PRINT + "\n{}\n\n" + START, END + LICENCE),
    "small print after the start": (LETTERHEAD + START + SMALL_PRINT + "\n", END),
    "old": (OLD_HEAD + SMALL_PRINT + "\n", OLD_END),
    "old with small print at the end": ("The Project Gutenberg Etext of {}\n\n", OLD_END + SMALL_PRINT),
    "no end mark": (LETTERHEAD + START, "\n"),
}


def book(form: str, title: str, *, lines: int = 12) -> tuple[str, list[str]]:
    """Return an e-text of this form and the paragraphs of its book."""
    head, tail = FORMS[form]
    paragraphs = [f"{title}: {line}" for line in BODY[:lines]]
    return head.replace("{}", title) + "\n\n".join(paragraphs) + "\n" + tail.replace("{}", title), paragraphs


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lines", [1, 4, 12])
def test_a_short_book_is_kept_whole_wherever_the_small_print_stands(form: str, lines: int) -> None:
    text, paragraphs = book(form, "X", lines=lines)
    assert file_books(text) == [paragraphs]


@pytest.mark.parametrize("pair", permutations(FORMS, 2), ids=" + ".join)
def test_each_e_text_of_a_file_is_a_book(pair: tuple[str, str]) -> None:
    first, second, third = (book(form, title) for form, title in zip([*pair, pair[0]], "XYZ", strict=True))
    joined = "\n\n".join(text for text, _ in (first, second, third))
    assert file_books(joined) == [paragraphs for _, paragraphs in (first, second, third)]


FULL_LICENCE = (
    "\n*** START: FULL LICENSE ***\n\nTHE FULL PROJECT GUTENBERG LICENSE\nPLEASE READ THIS BEFORE YOU USE IT\n\n"
    + "Project Gutenberg-tm is a trademark.\n\n" * 30
    + "This Web site includes information about Project Gutenberg-tm,\nand how to\n"
    "subscribe to our email newsletter to hear about new eBooks.\n"
)
FIELDS = "Title: Letters\n\nAuthor: A. Nobody\n\nRelease Date: May, 1997  [Etext #9]\n\nLanguage: English\n\n"
LICENCES = {
    "no licence": "",
    "licence": FULL_LICENCE,
    "end mark and licence": END + FULL_LICENCE,
    "licence without lines of asterisks": "\nUpdated editions will replace the previous one--the old editions will\n"
    "be renamed.\n\nCreating the works from public domain print editions means that no\none owns them.\n\n"
    + FULL_LICENCE.split("***")[-1],
    "small print": "\n" + SMALL_PRINT,
}
HEADERS = {
    "no header": "",
    "start mark": START,
    "letterhead": LETTERHEAD + FIELDS,
    "letterhead and start mark": LETTERHEAD + FIELDS + START,
}


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("before", LICENCES)
@pytest.mark.parametrize("after", LICENCES)
@pytest.mark.parametrize("lines", [3, 30, 120])
def test_a_book_is_kept_whole_wherever_the_licence_stands(header: str, before: str, after: str, lines: int) -> None:
    paragraphs = [f"The clerk of the harbour opened door number {number} there." for number in range(lines)]
    rest = "\n\n".join(paragraphs) + "\n\n" + LICENCES[after]
    assert file_books(LICENCES[before] + "\n\n" + HEADERS[header] + rest) == [paragraphs]
    assert file_books(HEADERS[header] + LICENCES[before] + "\n\n" + rest) == [paragraphs]


@pytest.mark.parametrize("text", [FULL_LICENCE, END + LICENCE, SMALL_PRINT, LETTERHEAD + START + END + FULL_LICENCE])
def test_a_file_of_nothing_but_a_licence_is_counted_as_such(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    (item,) = read(tmp_path)
    assert isinstance(item, Drop)
    assert (item.reason, item.name) == ("nothing_but_licence", "a.txt")


def test_text_without_marks_beside_e_texts_is_kept() -> None:
    plain = [f"A line of a book without any marks, number {number}." for number in range(300)]
    text, paragraphs = book("modern", "X")
    unmarked = "\n\n".join(plain)
    assert file_books(f"{unmarked}\n\n{text}\n{unmarked}\n\n{text}") == [plain, paragraphs, plain, paragraphs]


def test_five_equal_books_in_a_file_are_five_documents_and_noted(shared_data: Path, tmp_path: Path) -> None:
    data = (shared_data / "books/gutenberg-with-boilerplate/84.txt").read_bytes()
    (tmp_path / "five.txt").write_bytes(data * 5)
    (tmp_path / "one.txt").write_bytes(data)
    items = read(tmp_path)
    found = documents(items)
    assert sorted(found) == [*(f"five.txt, book {number}" for number in range(1, 6)), "one.txt"]
    assert len(set(found.values())) == 1
    assert [item for item in items if isinstance(item, Note)] == [
        Note("several_books_in_a_file", "five.txt", "5 books")
    ]


@pytest.mark.parametrize("line_break", ["\r\n", "\r", "\r\r\n", "\x85", "\u2028"])
def test_any_line_break_gives_the_same_book(shared_data: Path, line_break: str) -> None:
    text = (shared_data / "books/gutenberg-with-boilerplate/84.txt").read_text(encoding="utf-8")  # with "\n"
    assert file_books(text.replace("\n", line_break)) == file_books(text)


def test_real_e_texts_in_one_file_are_the_same_as_in_a_file_each(shared_data: Path) -> None:
    paths = sorted((shared_data / "books/gutenberg-with-boilerplate").glob("*.txt"))
    paths.append(shared_data / "cases/gutenberg-small-print-at-end.txt")
    texts = [decode_text(path.read_bytes(), name=path.name).text for path in paths]
    assert file_books("\n\n".join(texts)) == [book_paragraphs(text) for text in texts]
    assert file_books("\n\n".join(texts[::-1])) == [book_paragraphs(text) for text in texts[::-1]]


def test_a_real_short_book_with_small_print_at_its_end(shared_data: Path) -> None:
    path = shared_data / "cases/gutenberg-small-print-at-end.txt"
    paragraphs = book_paragraphs(path.read_text(encoding="utf-8"))
    assert len(paragraphs) == 30
    assert paragraphs[0].startswith("It was a bright morning when the clerk")
    assert paragraphs[-1].endswith("for eleven years, number 29.")


NEWSLETTER = "Please check our email newsletter to hear about new eBooks.\n"


def test_a_book_after_thousands_of_licence_ends_is_found() -> None:
    """A function that called itself for each of them ended in a RecursionError."""
    assert file_books(NEWSLETTER * 3_000 + "\n" + "\n".join(BODY)) == [["\n".join(BODY).replace("\n", " ")]]


@pytest.mark.parametrize(
    ("text", "last"),
    [
        (START + "A Project Gutenberg Etext\n\n" + "Title: Letters\n\n" * 200_000 + BODY[0] + "\n" + END, BODY[0]),
        (
            START + "Project Gutenberg Etext of Letters, by Nobody\n\nA line.\n" * 50_000 + START + BODY[0] + END,
            BODY[0],
        ),
        ("This file should be named x.txt\nA line.\n" * 50_000 + "\n" + "A line.\n" * 500_000, "A line."),
    ],
    ids=["fields of a header", "letterheads", "names of files"],
)
def test_a_file_full_of_marks_is_read_in_linear_time(text: str, last: str) -> None:
    """Time that grows with the square of their number would take hours here."""
    found = [paragraph for book in file_books(text) for paragraph in book]
    assert found[-1] == last
