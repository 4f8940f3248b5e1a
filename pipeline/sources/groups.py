"""Marks the documents that are parts of one book, so that a build holds out either all parts of the book or no part.
Pure.

All parts of a book get the same group, which is an id of 16 bytes. The id is a hash of text, so it depends neither on
paths nor on the order of files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pipeline.documents import Document, Drop, hash_texts

RUN_CHARACTERS = 2_000_000
"""If documents were cut every few lines, they are grouped until a group has this number of characters. Most novels are
shorter."""


def group_book(items: Iterable[Document | Drop]) -> Iterator[Document | Drop]:
    """Yield the items of one book. Every document gets the id of the first document as its group, so that all documents
    of the book are held out together, or none."""
    group = b""
    for item in items:
        if isinstance(item, Document):
            group = group or item.id
            yield replace(item, group=group)
        else:
            yield item


class Stretches:
    """Groups neighbouring documents of a long text, so that they are held out together. The text is cut into documents
    every few lines because nothing tells where its books end.

    A group consists of neighbouring documents with about RUN_CHARACTERS in all. Its id is the hash of its first
    document's text. If several workers share a file, each of them must add every line of the file, so that all find the
    same groups.
    """

    def __init__(self) -> None:
        self._first: list[str] = []
        self._characters = 0
        self._group = b""

    def add(self, line: str) -> None:
        """Add the next line of the current document."""
        self._characters += len(line)
        if not self._group:
            self._first.append(line)

    def end_document(self) -> bytes:
        """End the document to which lines were added, and return the id of its group (16 bytes). The next line begins
        another document."""
        if not self._group:
            self._group = hash_texts(*self._first)
            self._first = []
        group = self._group
        if self._characters >= RUN_CHARACTERS:
            self._group, self._characters = b"", 0
        return group
