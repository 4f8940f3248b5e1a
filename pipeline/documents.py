"""What flows through the pipeline before pairs: documents, dropped things with a reason, and splits of the input.

Pure and picklable. A document's id is a hash of its cleaned text alone, so that it depends neither on paths nor on
order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Document:
    """Cleaned sentences of one document: at least one, none empty, none with a line break inside.

    `name` is for people (a title, a file and line) and enters no hash.
    """

    name: str
    sentences: tuple[str, ...]

    @property
    def id(self) -> bytes:
        """16 bytes: blake2b over the sentences joined by line breaks, in UTF-8."""
        return hashlib.blake2b("\n".join(self.sentences).encode(), digest_size=ID_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Drop:
    """One thing left out: `reason` is a snake_case counter name, `name` says where, `detail` what."""

    reason: str
    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Note(Drop):
    """One thing worth counting of which nothing was left out, such as a guessed encoding; `reason` as in Drop."""


def shown_name(path: str | Path) -> str:
    """The name of a file for people, and for files in UTF-8: a byte that is not of a UTF-8 name as \\xff."""
    return Path(path).name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class Split:
    """A part of one input file that one worker reads.

    `source` is the index into the config's sources. `start` and `end` are what the kind means by them: byte offsets
    (wikipedia: of compressed streams; text and jsonl: of lines; tar: of members), row groups (parquet), members (zip);
    `end` -1 is the end of the file. What can only be read from its beginning, and is large, is shared: each of `parts`
    workers reads all of start to end, and takes every `parts`-th document (book, page) from number `part` on.
    `num_bytes` are bytes on disk; `text_bytes` estimates the plain text inside, from the input alone.
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
        """Whether document `number` of start to end, counted from 0, is this split's."""
        return number % self.parts == self.part

    def share(self, most_parts: int, *, part_bytes: int) -> list[Split]:
        """This split in at most `most_parts` parts of at least `part_bytes` of text each."""
        parts = max(1, min(most_parts, self.text_bytes // part_bytes))
        each = replace(self, num_bytes=self.num_bytes // parts, text_bytes=self.text_bytes // parts, parts=parts)
        return [replace(each, part=part) for part in range(parts)]
