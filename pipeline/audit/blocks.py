"""A row group as flat arrays (16 bytes a token), and the facts of the set that checks need.

Nothing here trusts the file: lengths, ids and positions may have any value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline.audit.findings import Place

_DIFFERENT = 2.5
Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Bytes16: TypeAlias = npt.NDArray[np.uint8]

_BY_ROW = (
    "num_tokens",
    "first_length",
    "label",
    "document",
    "second",
    "has_second",
    "source",
    "pass_number",
    "numbers",
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tables by token id. keys: uint64, equal for a token in every process. special: represents no text ([UNK] too).
    unused: reserved. continues, ends: bool, the piece continues (ends) a word; None if pieces do not tell. unk, cls,
    sep, mask: ids of these tokens.
    """

    tokens: list[str]
    keys: npt.NDArray[np.uint64]
    special: Bools
    unused: Bools
    continues: Bools | None
    ends: Bools | None
    unk: int
    cls: int
    sep: int
    mask: int

    @property
    def size(self) -> int:
        """Number of ids."""
        return int(self.keys.size)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about a set before its rows are read.

    published: built by the published algorithm, whose known quirks are notes. masking: whole_word, token or span.
    draw: word or piece. mask_sets: K. next_sentence: as in the config. most_passes: most passes over a document, by
    source; empty if unknown.
    """

    published: bool
    max_seq_length: int
    max_predictions: int
    mask_sets: int
    next_sentence: str
    masking: str
    draw: str
    masked_probability: float
    most_passes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """n rows. Row r is ids[offsets[r]:offsets[r + 1]]; its mask sets are the lists with list_rows == r, in order.

    ids: int64[tokens]. label: int64[n], -1 if null. document, second: uint8[n, 16], zero if absent. has_second:
    bool[n]. List l has the entries list_offsets[l] to list_offsets[l + 1] of positions and inputs (int64 each).
    numbers: int64[n], the row's number in its row group.
    """

    ids: Int64s
    offsets: Int64s
    num_tokens: Int64s
    first_length: Int64s
    label: Int64s
    document: Bytes16
    second: Bytes16
    has_second: Bools
    source: Int64s
    pass_number: Int64s
    list_rows: Int64s
    list_offsets: Int64s
    positions: Int64s
    inputs: Int64s
    numbers: Int64s
    file: str
    row_group: int

    def __len__(self) -> int:
        return int(self.label.size)

    @property
    def lengths(self) -> Int64s:
        """int64[n]: stored tokens of each row (num_tokens may differ)."""
        return np.diff(self.offsets)

    @property
    def token_rows(self) -> Int64s:
        """int64[tokens]: the row of each token."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def entry_lists(self) -> Int64s:
        """int64[entries]: the list of each masked position."""
        return np.repeat(np.arange(self.list_rows.size), np.diff(self.list_offsets))

    def place(self, row: int | np.integer[Any]) -> Place:
        """Return the place of row `row` of this block."""
        return Place(self.file, self.row_group, int(self.numbers[row]))

    def take(self, rows: Bools) -> Block:
        """Return the rows for which `rows` (bool[n]) is true."""
        if rows.all():
            return self
        lists = rows[self.list_rows]
        entries = np.repeat(lists, np.diff(self.list_offsets))
        renumber = np.cumsum(rows) - 1
        changed: dict[str, Any] = {name: getattr(self, name)[rows] for name in _BY_ROW}
        return replace(
            self,
            **changed,
            ids=self.ids[np.repeat(rows, self.lengths)],
            offsets=offsets_of(self.lengths[rows]),
            list_rows=renumber[self.list_rows[lists]],
            list_offsets=offsets_of(np.diff(self.list_offsets)[lists]),
            positions=self.positions[entries],
            inputs=self.inputs[entries],
        )


def offsets_of(lengths: Int64s) -> Int64s:
    """Return the cumulative offsets, from 0, of consecutive runs of these lengths."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble 64-bit values (the finalizer of MurmurHash3)."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))


def hash_runs(values: npt.NDArray[np.uint64], offsets: Int64s, *, salt: int) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each run of values, which depends on their order; an empty run has a hash too."""
    lengths = np.diff(offsets)
    place = np.arange(values.size, dtype=np.int64) - np.repeat(offsets[:-1], lengths)
    base = np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64)
    scrambled = mix(values + (place.astype(np.uint64) + np.uint64(1)) * np.uint64(0xD6E8FEB86659FD93) + base)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(scrambled, dtype=np.uint64)])
    return mix(sums[offsets[1:]] - sums[offsets[:-1]] + lengths.astype(np.uint64) * np.uint64(0xA0761D6478BD642F))


def are_repetitive(block: Block) -> Bools:
    """Return for each row whether it has so few different tokens that it must repeat a few lines. Prose of 128 tokens
    has 80 different ones, a line of 10 tokens repeated has 10; the bound is 28."""
    rows = np.sort((block.token_rows.astype(np.int64) << 32) | block.ids.astype(np.int64))
    new = np.append(True, rows[1:] != rows[:-1])[: rows.size]
    different = np.bincount(rows[new] >> 32, minlength=len(block))
    return np.asarray(different <= _DIFFERENT * np.sqrt(block.lengths))
