"""Data that flows through the pipeline before pairing: documents, items left out, and splits (parts) of the input.

All objects can be pickled. The id of a document is a hash of nothing but its cleaned text, so it depends neither on
paths nor order.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

ID_BYTES = 16
CLAUSE_CHARACTERS = 30
"""Words with more characters are counted as clauses: few words of any language are as long, but clauses without spaces
are."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document: its cleaned sentences and a name. There is at least one sentence, and no sentence is empty or has a
    line break.

    `name` is for people (a title, or a file and line) and is not part of the id.
    """

    name: str
    sentences: tuple[str, ...]
    group: bytes = b""
    """16 bytes that the chapters or stretches of a book share; empty for a document that is no part of another. The
    documents of a group are held out together, or not at all."""

    @property
    def id(self) -> bytes:
        """The hash of the text, 16 bytes: blake2b of the sentences joined by line breaks, in UTF-8."""
        return hash_texts(*self.sentences)


def hash_texts(*texts: str) -> bytes:
    """Return a hash of the texts, 16 bytes: blake2b of the texts joined by line breaks, in UTF-8."""
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=ID_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Drop:
    """An item (document, page, sentence) that is left out. `reason` is the name of a counter in snake_case. `name` says
    where the item is. `detail` shows the item, or a value that was measured on it."""

    reason: str
    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Note(Drop):
    """An event that is counted although nothing is left out, such as a guessed encoding. The fields mean the same as in
    Drop (an item that is left out)."""


@dataclass(slots=True)
class TextLoss:
    """Counts of the text that a model will not see, for example because it becomes [UNK]. Words and characters are
    counted after normalization."""

    unknown_characters: int = 0
    """Characters whose word or piece becomes [UNK]."""
    long_words: int = 0
    """Words that become [UNK] because they are longer than the tokenizer allows (100 characters)."""
    clause_characters: int = 0
    """Characters in words of more than CLAUSE_CHARACTERS characters."""
    marks: Counter[str] = field(default_factory=Counter)
    """The number of marks (vowel signs, tones) by script. Only scripts that lose marks are listed."""
    lost_marks: Counter[str] = field(default_factory=Counter)
    """The number of marks that the normalizer removes, by script."""
    letters: Counter[str] = field(default_factory=Counter)
    """The number of all letters and marks, by script, for the same scripts as in `marks`."""

    def add(self, other: TextLoss) -> None:
        """Add the counts of `other` to these counts."""
        self.unknown_characters += other.unknown_characters
        self.long_words += other.long_words
        self.clause_characters += other.clause_characters
        if other.letters:
            self.marks += other.marks
            self.lost_marks += other.lost_marks
            self.letters += other.letters


def shown_name(path: str | Path) -> str:
    """Return the name of a file (without folders) as printable text. A byte that is not UTF-8 is shown as its value,
    such as \\xff."""
    return Path(path).name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class Split:
    """A part of one input file that one worker reads.

    `source` is an index into the config's sources. The part is from `start` to `end`, or to the end of the file if
    `end` is -1. `start` and `end` count row groups in parquet files, and members in zip archives. In all other files
    they are byte offsets, at which a compressed stream (wikipedia), a line (text and jsonl) or a member (tar archives)
    begins. `num_bytes` is the size of the part on disk. `text_bytes` estimates the size of the part's plain text, and
    depends only on the input.

    A large file that can only be read from its beginning is shared by as many workers as `parts` says. Each worker
    reads all of the file, but takes only every `parts`-th document (book or page), beginning with document `part`.
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
        """Whether the document (book or page) with this number belongs to this split, if several splits share a file.
        The first document at `start` has the number 0."""
        return number % self.parts == self.part

    def share(self, most_parts: int, *, part_bytes: int) -> list[Split]:
        """Divide this split and return the new splits, which together take all its documents. There are at most
        `most_parts` new splits, each with at least `part_bytes` of text. If there is too little text for two, return
        one split."""
        parts = max(1, min(most_parts, self.text_bytes // part_bytes))
        each = replace(self, num_bytes=self.num_bytes // parts, text_bytes=self.text_bytes // parts, parts=parts)
        return [replace(each, part=part) for part in range(parts)]
