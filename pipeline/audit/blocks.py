"""Blocks, which hold rows of a row group as flat arrays (16 bytes a token), and the facts about the data set that the
checks need.

The arrays come from an unchecked file, so lengths, token ids and positions may have any value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline.audit.findings import Place

_DIFFERENT, _SHORT = 2.5, 64
_RUN = 4
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
    """Holds arrays by token id, and the ids of [UNK], [CLS], [SEP] and [MASK].

    `keys` (uint64) has a distinct number for each token, from which hashes are computed. `special` is true for tokens
    that represent no text, including [UNK]. `unused` is true for reserved tokens such as [unused1]. `continues` is true
    for tokens that continue a word, and is None if the tokens do not show this. `ends` is true for tokens that end a
    word, and is None if the tokens do not show this.
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
        """The number of token ids."""
        return int(self.keys.size)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about a data set before its rows are read.

    `published` is true if BERT's published algorithm built the data set; then the known quirks of this algorithm are
    notes, not faults. `mask_sets` is the number of mask sets (choices of positions to predict) of each row. `masking`
    is "whole_word", "token" or "span". A masked token becomes [MASK], stays or becomes a random token (80/10/10).
    `draw` is "word" if this is drawn once for each word, and "piece" if it is drawn for each token. `next_sentence` is
    the setting of this name. `most_passes` says for each source how many passes over a document the build makes at
    most; it is empty if unknown. `dictionary_sources` has the sources whose words were found by a dictionary; token ids
    do not show where such words start.
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
    dictionary_sources: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """Holds n rows of a row group (all its rows or some) as flat arrays.

    Row r has the tokens `ids[offsets[r]:offsets[r + 1]]`. A list is one mask set (choice of positions to predict) of a
    row, and row r has the lists l with `list_rows[l] == r`. List l has the masked positions
    `positions[list_offsets[l]:list_offsets[l + 1]]`. `inputs` has, in the same order, the token ids that the model gets
    at these positions. `ids`, `positions` and `inputs` are int64. `num_tokens`, `first_length`, `label` (-1 if null),
    `source` and `pass_number` are the columns of these names, int64[n]. `document` and `second` (uint8[n, 16]) are the
    document ids of the two segments, zero if absent. `has_second` (bool[n]) is true if there is a second segment.
    `numbers` (int64[n]) is the index of each row in its row group.
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
        """The number of tokens that each row has in `ids`, int64[n]. In a faulty row, the column num_tokens may say
        another number."""
        return np.diff(self.offsets)

    @property
    def token_rows(self) -> Int64s:
        """For each token in this block, the index of its row, int64[tokens]."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def entry_lists(self) -> Int64s:
        """For each masked position in this block, the index of its list (mask set), int64[entries]."""
        return np.repeat(np.arange(self.list_rows.size), np.diff(self.list_offsets))

    def place(self, row: int | np.integer[Any]) -> Place:
        """Return where in the data set one row of this block is. `row` is the row's index in the block."""
        return Place(self.file, self.row_group, int(self.numbers[row]))

    def take(self, rows: Bools) -> Block:
        """Return a block of the rows for which `rows` (bool[n]) is true."""
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
    """Return int64[n + 1]: where each of n consecutive runs of values begins in a flat array, and where the last run
    ends. `lengths` (int64[n]) has the lengths of the runs."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the 64-bit `values`, each scrambled separately with the finalizer of MurmurHash3."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))


def hash_runs(values: npt.NDArray[np.uint64], offsets: Int64s, *, salt: int) -> npt.NDArray[np.uint64]:
    """Return uint64[n]: a hash of each run of values, values[offsets[i]:offsets[i + 1]]. The hash depends on the order
    of the values. An empty run has a hash too. Hashes of the same run with different `salt` are unrelated."""
    lengths = np.diff(offsets)
    place = np.arange(values.size, dtype=np.int64) - np.repeat(offsets[:-1], lengths)
    base = np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64)
    scrambled = mix(values + (place.astype(np.uint64) + np.uint64(1)) * np.uint64(0xD6E8FEB86659FD93) + base)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(scrambled, dtype=np.uint64)])
    return mix(sums[offsets[1:]] - sums[offsets[:-1]] + lengths.astype(np.uint64) * np.uint64(0xA0761D6478BD642F))


def are_repetitive(block: Block) -> Bools:
    """Return for each row whether it has so few different tokens that it must repeat a few lines.

    A row is repetitive if it has no more different tokens than a bound, which grows with its length. For a row of 128
    tokens, the bound is 28 different tokens. Prose of this length has 80, and a repeated line of 10 tokens has 10. For
    a row of up to _SHORT tokens, the bound is about half of its tokens. Prose of 34 tokens has 30 different ones, and a
    line of 16 tokens that occurs twice has 18.
    """
    rows = np.sort((block.token_rows.astype(np.int64) << 32) | block.ids.astype(np.int64))
    new = np.append(True, rows[1:] != rows[:-1])[: rows.size]
    different = np.bincount(rows[new] >> 32, minlength=len(block))
    lengths = block.lengths
    bound = np.maximum(_DIFFERENT * np.sqrt(lengths), np.where(lengths <= _SHORT, lengths / 2 + 1, 0.0))
    return np.asarray(different <= bound)


def have_common_lines_only(block: Block, *, documents: npt.NDArray[np.uint64], fewest: int) -> Bools:
    """Return for each row whether all of its text is common: at least `fewest` documents of the block have it. Such a
    row has nothing but lines that repeat all over, such as a notice at the end of every page.

    `documents` (uint64[n]) has a key of each row's first document. Text is compared in runs of _RUN tokens without
    [CLS] and [SEP]. Only a quarter of the runs, chosen by hash, is compared, so that this check takes only a tenth of
    the time spent on a row group. The text of a row with fewer than two chosen runs does not count as common.
    """
    inside = np.ones(block.ids.size, np.bool_)
    own = block.lengths > 0
    inside[block.offsets[:-1][own]] = inside[block.offsets[1:][own] - 1] = False
    first = block.offsets[:-1] + block.first_length - 1
    inside[first[(block.first_length > 0) & (block.first_length <= block.lengths)]] = False
    size = max(0, block.ids.size - _RUN + 1)
    whole, runs = np.ones(size, np.bool_), np.zeros(size, np.uint64)
    values = mix(block.ids.astype(np.uint64))
    for place in range(_RUN):
        whole &= inside[place : place + size]
        runs = runs * np.uint64(0x9E3779B97F4A7C15) + values[place : place + size]
    runs = mix(runs)
    chosen = np.flatnonzero(whole & (runs & np.uint64(3) == 0))
    if not chosen.size:
        return np.zeros(len(block), np.bool_)
    runs, rows = runs[chosen], block.token_rows[chosen]
    order = np.lexsort((documents[rows], runs))
    new_run = np.append(True, runs[order][1:] != runs[order][:-1])
    new = new_run | np.append(True, documents[rows[order]][1:] != documents[rows[order]][:-1])
    number = np.cumsum(new_run) - 1
    is_common = np.bincount(number, weights=new)[number] >= fewest
    counts = np.bincount(rows, minlength=len(block))
    common = np.bincount(rows[order], weights=is_common, minlength=len(block))
    return np.asarray((counts >= 2) & (common == counts))
