"""Marks the documents that are parts of one book, so that a build holds out either all parts of the book or no part.
Pure.

A group is named by a hash of text, so it depends neither on paths nor on the order of files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pipeline.documents import Document, Drop, hash_texts

RUN_CHARACTERS = 2_000_000
"""If documents were cut every few lines, they are grouped until a group has this number of characters. Most novels are
shorter."""


def group_book(items: Iterable[Document | Drop]) -> Iterator[Document | Drop]:
    """Yield the items of one book. Every document gets the same group, which is the id of the first document."""
    group = b""
    for item in items:
        if isinstance(item, Document):
            group = group or item.id
            yield replace(item, group=group)
        else:
            yield item


class Stretches:
    """Groups the documents of a long text. The text is cut into documents every few lines because nothing tells where
    its books end.

    A group consists of neighbouring documents with about RUN_CHARACTERS in all. It is named by the text of its first
    document. Each share of a file (documents.Split) must add every line of the file, so that all shares give the same
    groups.
    """

    def __init__(self) -> None:
        self._first: list[str] = []
        self._characters = 0
        self._group = b""

    def add(self, line: str) -> None:
        """Count a line as part of the current document."""
        self._characters += len(line)
        if not self._group:
            self._first.append(line)

    def end_document(self) -> bytes:
        """Return the group of the document whose last line was added, and go on to the next document."""
        if not self._group:
            self._group = hash_texts(*self._first)
            self._first = []
        group = self._group
        if self._characters >= RUN_CHARACTERS:
            self._group, self._characters = b"", 0
        return group
