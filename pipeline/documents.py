"""Data that flows through the pipeline before pairing: documents, items left out, and splits (parts) of the input.

Pure and picklable. The id of a document is a hash of its cleaned text alone, so it depends neither on paths nor order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Document:
    """The cleaned sentences of one document. There is at least one, and none is empty or has a line break.

    `name` is for people (a title, or a file and line) and is not part of the id.
    """

    name: str
    sentences: tuple[str, ...]

    @property
    def id(self) -> bytes:
        """The hash of the text, 16 bytes: blake2b of the sentences joined by line breaks, in UTF-8."""
        return hashlib.blake2b("\n".join(self.sentences).encode(), digest_size=ID_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Drop:
    """One item that is left out. `reason` is a counter name in snake_case, `name` says where it was, `detail` what it
    was."""

    reason: str
    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Note(Drop):
    """An event that is counted although nothing is left out, such as a guessed encoding. The fields are as in Drop."""


def shown_name(path: str | Path) -> str:
    """Return the name of a file (without folders) as printable text. Bytes that are not UTF-8 are shown like \\xff."""
    return Path(path).name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class Split:
    """A part of one input file that one worker reads.

    `source` is an index into the config's sources. The part is from `start` to `end`, or to the end of the file if
    `end` is -1. Both are byte offsets in wikipedia (of compressed streams), text and jsonl (of lines) and tar (of
    members), but numbers of row groups in parquet and of members in zip. A large file that can only be read from its
    beginning is shared: each of `parts` workers reads all of it and takes every `parts`-th document (book, page),
    beginning with number `part`. `num_bytes` is the size on disk. `text_bytes` estimates the size of the plain text
    inside, from the input only.
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
        """Divide this split between at most `most_parts` workers (see `parts`), with at least `part_bytes` of text each
        if possible. Return their splits."""
        parts = max(1, min(most_parts, self.text_bytes // part_bytes))
        each = replace(self, num_bytes=self.num_bytes // parts, text_bytes=self.text_bytes // parts, parts=parts)
        return [replace(each, part=part) for part in range(parts)]
