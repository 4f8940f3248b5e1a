"""Reads books. Each book is a file or a member of an archive. Project Gutenberg's header and licence are cut off, and
wrapped lines are rejoined.

A document is a whole book or a chapter, by the source's setting `unit`. One book is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline import storage
from pipeline.cleaning import has_words, split_sentences
from pipeline.config import SourceConfig
from pipeline.documents import Document, Drop, Note, Split, shown_name
from pipeline.sources import archives
from pipeline.sources.archives import Member, read_members, split_archive
from pipeline.sources.assembly import assemble
from pipeline.sources.bytestreams import compression_of, read_whole
from pipeline.sources.chapters import split_chapters
from pipeline.sources.decoding import REPAIRED, WINDOWS, decode_text
from pipeline.sources.groups import group_book
from pipeline.sources.gutenberg import file_books
from pipeline.sources.listing import is_archive

_RUN_CHARACTERS = 1 << 20
BOOK_SUFFIXES = (".txt", ".text")


def split_books(path: str | Path, *, source: int, split_bytes: int | None = None) -> list[Split]:
    """Return one split for a plain file, or several for an archive, so that several workers can read the archive.
    `source` is the source's index in the config."""
    if is_archive(path):
        return split_archive(path, source=source, split_bytes=split_bytes)
    size = storage.size_of(path)
    return [Split(source, str(path), 0, -1, size, round(archives.TEXT_SHARE[compression_of(path)] * size))]


def read_books(split: Split, *, source: SourceConfig) -> Iterator[Document | Drop]:
    """Yield the documents of a split in order. Between the documents, yield a Drop (a counted omission) for each book
    or sentence that is left out, and a Note (a kind of Drop) for what is only counted, such as a guessed encoding. A
    book from an archive is named ARCHIVE!MEMBER."""
    for book in read_members(split, suffixes=BOOK_SUFFIXES) if is_archive(split.path) else _read_file(split):
        if book.data is None:
            yield Drop(book.reason, book.name, book.detail)
        else:
            yield from read_book(book.name, book.data, source=source, folder=storage.parent_of(split.path))


def read_book(name: str, data: bytes, *, source: SourceConfig, folder: str) -> Iterator[Document | Drop]:
    """Yield the documents of the book `name`, whose file has the bytes `data`.

    Between the documents, yield a Drop (a counted omission) for each book or sentence that is left out, and a Note (a
    kind of Drop) for what is only counted, such as a guessed encoding.

    Raises ValueError naming `folder` (where the file is) and `name` if the bytes cannot be decoded.
    """
    if b"\0" in data[:4096] and not data.startswith((b"\xff\xfe", b"\xfe\xff")) and source.encoding == "auto":
        yield Drop("not_a_text_file", name, "holds NUL bytes")
        return
    decoded = decode_text(data, name=storage.join(folder, name), encoding=source.encoding)
    if decoded.encoding == REPAIRED:
        yield Note("bad_utf8_repaired", name, f"{decoded.bad_bytes} bytes left out, the first at {decoded.first_bad}")
    elif decoded.encoding == WINDOWS:
        yield Note("read_as_windows_1252", name, f"{decoded.bad_bytes} bytes left out")
    books = file_books(decoded.text)
    if not any(books) and has_words(decoded.text):
        yield Drop("nothing_but_licence", name, f"{len(decoded.text):,} characters, all added by Project Gutenberg")
        return
    del decoded  # frees 200 MB for a book of 50 MB while the caller works
    if len(books) > 1:
        yield Note("several_books_in_a_file", name, f"{len(books)} books")
    for number in range(1, len(books) + 1):
        title = name if number == len(books) == 1 else f"{name}, book {number}"
        yield from _read_chapters(title, books.pop(0), source=source)


def _read_chapters(name: str, paragraphs: list[str], *, source: SourceConfig) -> Iterator[Document | Drop]:
    """Yield one document for each chapter of a book if the source's setting `unit` is chapter. Otherwise yield one
    document for the whole book. A Drop (a counted omission) stands for each sentence that is left out."""
    chapters = split_chapters(paragraphs) if source.unit == "chapter" else [paragraphs]
    if source.unit == "chapter" and len(chapters) == 1:
        yield Note("book_without_chapters", name)
    del paragraphs
    titles = [name] if len(chapters) == 1 else [f"{name}, chapter {number}" for number in range(1, len(chapters) + 1)]
    items = (
        item
        for title in titles
        for item in assemble(title, _split_paragraphs(chapters.pop(0), language=source.language))
    )
    yield from items if source.unit == "book" else group_book(items)


def _split_paragraphs(paragraphs: list[str], *, language: str) -> Iterator[str]:
    """Yield the sentences of all paragraphs, in order. Only about _RUN_CHARACTERS of text are divided into sentences at
    a time, which saves 200 MB for a book of 50 MB."""
    start = held = 0
    for stop, paragraph in enumerate(paragraphs, start=1):
        held += len(paragraph)
        if held > _RUN_CHARACTERS or stop == len(paragraphs):
            yield from split_sentences("\n".join(paragraphs[start:stop]), language=language)
            start, held = stop, 0


def _read_file(split: Split) -> Iterator[Member]:
    name = shown_name(split.path)
    data = read_whole(split.path, most_bytes=archives.MOST_MEMBER_BYTES)
    if data is None:
        yield Member(name, None, "book_over_budget", f"more than {archives.MOST_MEMBER_BYTES} bytes")
    else:
        yield Member(name, data)
