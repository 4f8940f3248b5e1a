"""kind: books. Gutenberg's boilerplate, wrapped lines, verse, encodings; test_book_archives.py has archives."""

from __future__ import annotations

from pathlib import Path

import pytest

from book_items import documents, read
from pipeline.sources.gutenberg import book_paragraphs

WRAPPED = """It was a bright cold day in April, and the clocks were striking
thirteen. He slipped quickly through the glass doors of the well-
known mansions, though not quickly enough to prevent a swirl--
of gritty dust from entering along with him, as it always did so.

    The hallway smelt of boiled cabbage and old rag mats. At one end
of it a coloured poster, too large for indoor display, had been
tacked to the wall.
    Another paragraph begins by its indentation alone, and it is long
enough to be wrapped.
"""


def test_wrapped_lines_are_rejoined() -> None:
    assert book_paragraphs(WRAPPED) == [
        "It was a bright cold day in April, and the clocks were striking thirteen. He slipped quickly through the "
        "glass doors of the well-known mansions, though not quickly enough to prevent a swirl--of gritty dust from "
        "entering along with him, as it always did so.",
        "The hallway smelt of boiled cabbage and old rag mats. At one end of it a coloured poster, too large for "
        "indoor display, had been tacked to the wall.",
        "Another paragraph begins by its indentation alone, and it is long enough to be wrapped.",
    ]


def test_a_paragraph_a_line_stays_as_it_is() -> None:
    lines = [
        "Chapter 1",
        "A short one.",
        "A long paragraph of many words. " * 8,
        '"Yes," he said.',
        "No.",
        "Why not? " * 9,
    ]
    assert book_paragraphs("\n".join(lines)) == [line.strip() for line in lines]


VERSE = """The mouse recited a poem that everybody at the table had heard before
and nobody had liked, in a voice without any expression at all:

    You are old, Father William,
    the young man said,
    And your hair has become very white;
    And yet you incessantly stand on your head;

Name            Born     Died
Jane Austen     1775     1817
Charles Dickens 1812     1870

After that it sat down again and nobody found anything to say about
what they had just been listening to, least of all the dormouse.
"""


def test_verse_and_tables_keep_their_lines() -> None:
    """A verse that begins with a small letter goes on from the one before; rows are never joined."""
    found = book_paragraphs(VERSE + "\n" + WRAPPED)
    assert found[1:7] == [
        "You are old, Father William, the young man said,",
        "And your hair has become very white;",
        "And yet you incessantly stand on your head;",
        "Name            Born     Died",
        "Jane Austen     1775     1817",
        "Charles Dickens 1812     1870",
    ]
    assert found[7].startswith("After that it sat down")
    assert found[0].endswith("before and nobody had liked, in a voice without any expression at all:")


def test_shaped_verse_of_a_real_e_text_is_readable(shared_data: Path) -> None:
    sentences = documents(read(shared_data / "books/gutenberg-with-boilerplate/alice30-old.txt"))["alice30-old.txt"]
    assert "`Fury said to a mouse, That he met in the house," in sentences
    assert "`And your hair has become very white;" in sentences


def test_markup_of_e_texts_goes() -> None:
    text = "The [Illustration: a\ncat] word _very_ and =bold= and *starred* but snake_case_name.\n\n[Illustration]\n"
    assert book_paragraphs(text)[0].split() == [
        "The",
        "word",
        "very",
        "and",
        "bold",
        "and",
        "starred",
        "but",
        "snake_case_name.",
    ]


STYLES = {
    "modern": (
        "The Project Gutenberg eBook of X\n\nTitle: X\n\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\n\n"
        "Produced by A. Person\nand others\n\n",
        "\n\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\nUpdated editions will replace\n",
    ),
    "2006": (
        "Project Gutenberg's X, by Y\n\n*** START OF THIS PROJECT GUTENBERG EBOOK X ***\n\n",
        "\nEnd of Project Gutenberg's X, by Y\n\n*** END OF THIS PROJECT GUTENBERG EBOOK X ***\n"
        "\n*** START: FULL LICENSE ***\nlong text\n",
    ),
    "2000": (
        "The Project Gutenberg Etext of X\n\n*START*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*START*\nlawyers\n"
        "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n\n",
        "\nEnd of The Project Gutenberg Etext of X\n",
    ),
}


@pytest.mark.parametrize("style", STYLES)
def test_gutenberg_boilerplate_of_every_style_is_cut(style: str) -> None:
    header, footer = STYLES[style]
    assert book_paragraphs(header + WRAPPED + footer) == book_paragraphs(WRAPPED)


def test_a_mark_of_the_end_alone_is_cut_near_the_end_only() -> None:
    """The earliest e-texts have a letterhead and small print behind the book."""
    long = "\n".join([WRAPPED] * 10)
    header = "The Project Gutenberg Etext of X\nby Y, 1991\n\n"
    footer = "\n*START*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*START*\nlawyers\n"
    assert book_paragraphs(header + long + footer) == book_paragraphs(long)
    assert book_paragraphs(long + "\nEnde dieses Projekt Gutenberg Etextes X\n") == book_paragraphs(long)
    middle = "End of Project Gutenberg, he said.\n\n"
    assert len(book_paragraphs(middle + long)) == 1 + len(book_paragraphs(long))


def test_a_book_that_speaks_of_gutenberg_is_not_cut() -> None:
    text = "He read Project Gutenberg.\n\nEnd of the story, said Gutenberg.\n"
    assert len(book_paragraphs(text)) == 2


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("11-0.txt", "ALICE\u2019S ADVENTURES IN WONDERLAND", "THE END"),
        ("1342-0.txt", "PRIDE AND PREJUDICE", "means of uniting them."),
        ("76.txt", "ADVENTURES OF HUCKLEBERRY FINN", "YOURS TRULY, HUCK FINN."),
        ("84.txt", "Frankenstein,", "lost in darkness and distance."),
        ("alice30-old.txt", "ALICE'S ADVENTURES IN WONDERLAND", "THE END"),
    ],
)
def test_real_e_texts_begin_and_end_with_the_book(shared_data: Path, name: str, first: str, last: str) -> None:
    sentences = documents(read(shared_data / "books/gutenberg-with-boilerplate" / name))[name]
    assert sentences[0] == first
    assert sentences[-1].endswith(last)
    assert not [s for s in sentences if "gutenberg" in s.lower() or "\r" in s or "ebook" in s.lower()]


def test_the_same_novel_with_and_without_boilerplate_is_much_the_same(shared_data: Path) -> None:
    first = documents(read(shared_data / "books/plain/11_alices_adventures_in_wonderland.txt"))
    second = documents(read(shared_data / "books/gutenberg-with-boilerplate/11-0.txt"))
    (one,), (other,) = first.values(), second.values()
    assert len(set(one) & set(other)) > 0.6 * len(one)


def test_encodings_and_line_ends(tmp_path: Path) -> None:
    text = "Caf\xe9 \u201cNoir\u201d was open."
    for name, data in {
        "bom.txt": b"\xef\xbb\xbf" + text.encode(),
        "crlf.txt": text.encode() + b"\r\n",
        "latin.txt": text.encode("cp1252"),
        "wide.txt": text.encode("utf-16"),
    }.items():
        (tmp_path / name).write_bytes(data)
    assert set(documents(read(tmp_path)).values()) == {(text,)}
