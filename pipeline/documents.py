"""Data that flows through the pipeline before pairing: documents, drops with a reason, and splits of the input.

Pure and picklable. A document's id is a hash of its cleaned text only: it depends neither on paths nor on order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Document:
    """Cleaned sentences of one document: at least one, each non-empty and without line breaks.

    `name` is for people (a title, a file and line) and is not hashed.
    """

    name: str
    sentences: tuple[str, ...]
    group: bytes = b""
    """16 bytes that the chapters or stretches of a book share; empty for a document that is no part of another. The
    documents of a group are held out together, or not at all."""

    @property
    def id(self) -> bytes:
        """16 bytes: blake2b over the sentences joined by line breaks, in UTF-8."""
        return hash_texts(*self.sentences)


def hash_texts(*texts: str) -> bytes:
    """Return 16 bytes that depend on the texts: blake2b over them, joined by line breaks, in UTF-8."""
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=ID_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Drop:
    """One item left out: `reason` is a snake_case counter name, `name` says where it was, `detail` what it was."""

    reason: str
    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Note(Drop):
    """Something counted although nothing was left out, such as a guessed encoding; `reason` as in Drop."""


def shown_name(path: str | Path) -> str:
    """A file's name as printable text: bytes that are not UTF-8 are shown as \\xff."""
    return Path(path).name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class Split:
    """A part of one input file that one worker reads.

    `source` is the index into the config's sources. The unit of `start` and `end` depends on the kind: byte offsets
    (wikipedia: of compressed streams; text and jsonl: of lines; tar: of members), row groups (parquet), members (zip);
    `end` = -1 is the end of the file. A large file that can only be read from its beginning is shared: each of `parts`
    workers reads all of it and takes every `parts`-th document (book, page), starting with number `part`.
    `num_bytes` is the size on disk; `text_bytes` estimates the plain text inside, from the input only.
    """

    source: int
    path: str
    start: int
    end: int
    num_bytes: int
    text_bytes: int
    part: int = 0
    parts: int = 1

    def takes(self, number: int) -> bool:
        """Whether this split takes document `number`, counted from 0 at `start`."""
        return number % self.parts == self.part

    def share(self, most_parts: int, *, part_bytes: int) -> list[Split]:
        """Divide this split into at most `most_parts` parts with at least `part_bytes` of text each."""
        parts = max(1, min(most_parts, self.text_bytes // part_bytes))
        each = replace(self, num_bytes=self.num_bytes // parts, text_bytes=self.text_bytes // parts, parts=parts)
        return [replace(each, part=part) for part in range(parts)]
