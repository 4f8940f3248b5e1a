"""Finds negatives (pairs A, B labelled not next) that are wrong, because another row of A's document shows that B
follows A.

A shard is read twice. The first reading keeps 40 bytes for each negative, with a hash of B and a hash of the tokens
around the boundary between A and B. The second reading looks for the same tokens in every segment of A's document, and
across the boundary of pairs labelled next. A negative with too short or repetitive text is not searched for. Only the
check for contradicting labels (across.py) covers such a negative.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline.audit.blocks import Block, Bools, Int64s, Vocabulary, are_repetitive, hash_runs, mix, offsets_of
from pipeline.audit.findings import Findings, Place

WINDOW = 4
"""The number of tokens on each side of a pair's boundary that are looked up: at the end of the first segment, and at
the beginning of the second."""
MIN_TOKENS, MIN_DIFFERENT = 12, 5
"""A pair is skipped if its second segment has fewer than MIN_TOKENS tokens, or if the 2 * WINDOW tokens around the
boundary of its segments have fewer than MIN_DIFFERENT distinct tokens, because such text recurs by chance."""
_FACTORS = mix(np.arange(1, 2 * WINDOW + 1, dtype=np.uint64)) | np.uint64(1)
_TABLE_BITS = 22

UInt64s: TypeAlias = npt.NDArray[np.uint64]


def document_keys(ids: npt.NDArray[np.uint8]) -> UInt64s:
    """Return uint64[n]: a hash of each 16-byte document id (ids: uint8[n, 16])."""
    words = np.ascontiguousarray(ids).view(np.uint64).reshape(-1, 2)
    return mix(words[:, 0] + mix(words[:, 1]))


def _count_up(sizes: Int64s) -> Int64s:
    """Return the numbers 0, 1, ..., size - 1 for each size in `sizes`, joined into one array."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _windows(keys: UInt64s) -> UInt64s:
    """Return uint64[tokens]: for each position, a hash of the 2 * WINDOW tokens that begin there. `keys` has a number
    for each token. The last 2 * WINDOW - 1 hashes are meaningless, because fewer tokens are left there."""
    padded = np.concatenate([keys, np.zeros(2 * WINDOW, np.uint64)])
    total = np.zeros(keys.size, np.uint64)
    for step, factor in enumerate(_FACTORS):
        total += mix(padded[step : step + keys.size]) * factor
    return total


@dataclass(slots=True)
class Negatives:
    """Collects negatives (pairs labelled not next) in the first reading of a shard; `seal` makes them searchable."""

    keys: list[UInt64s] = field(default_factory=list)
    lengths: list[Int64s] = field(default_factory=list)
    hashes: list[UInt64s] = field(default_factory=list)
    groups: list[Int64s] = field(default_factory=list)
    rows: list[Int64s] = field(default_factory=list)
    repetitive: list[Bools] = field(default_factory=list)

    def add(self, block: Block, *, vocabulary: Vocabulary) -> None:
        """Keep the negatives (pairs labelled not next) of a block (rows of a row group), except negatives with too
        short or too repetitive text."""
        first, lengths = block.first_length, block.lengths
        second = lengths - first - 1
        chosen = np.flatnonzero((block.label == 1) & (first - 2 >= WINDOW) & (second >= MIN_TOKENS))
        place = np.concatenate([np.arange(-1 - WINDOW, -1), np.arange(WINDOW)])
        window = block.ids[(block.offsets[:-1] + first)[chosen][:, None] + place]
        varied = (np.diff(np.sort(window, axis=1), axis=1) != 0).sum(axis=1) + 1 >= MIN_DIFFERENT
        chosen, keys = chosen[varied], vocabulary.keys[window[varied]]
        seam = block.offsets[:-1][chosen] + first[chosen]
        tokens = np.repeat(seam - offsets_of(second[chosen])[:-1], second[chosen])
        tokens += np.arange(tokens.size)
        self.keys.append(
            mix((mix(keys) * _FACTORS).sum(axis=1, dtype=np.uint64) + document_keys(block.document[chosen]))
        )
        self.lengths.append(second[chosen])
        self.hashes.append(hash_runs(vocabulary.keys[block.ids[tokens]], offsets_of(second[chosen]), salt=3))
        self.groups.append(np.full(chosen.size, block.row_group))
        self.rows.append(block.numbers[chosen])
        self.repetitive.append(are_repetitive(block)[chosen])

    def sort(self) -> SortedNegatives:
        """Return all negatives (pairs labelled not next) that `add` kept, sorted for look-up."""
        keys = np.concatenate(self.keys)
        order = np.argsort(keys, kind="stable")
        keys, hashes = keys[order], np.concatenate(self.hashes)[order]
        lengths, groups, rows = (np.concatenate(part)[order] for part in (self.lengths, self.groups, self.rows))
        repetitive = np.concatenate(self.repetitive)[order]
        table = np.zeros(1 << _TABLE_BITS, np.bool_)
        table[keys >> np.uint64(64 - _TABLE_BITS)] = True
        return SortedNegatives(
            keys,
            lengths,
            hashes,
            groups,
            rows,
            table,
            np.zeros(keys.size, np.bool_),
            repetitive,
            np.zeros(keys.size, np.int64),
        )


@dataclass(slots=True)
class SortedNegatives:
    """The negatives (pairs labelled not next) of a shard, sorted by key. A key is a hash of the document and of the
    tokens around the boundary between the two segments.

    `found` (a bool for each negative) becomes true once `search` sees that the second segment follows the first.
    `repetitive` (a bool for each negative) is true if the row repeats a few lines. `seen` (an int64 for each negative)
    says how often the text around the boundary occurs in rows of the document. `passes` says how many passes over the
    documents were made; a pass shows a text about once. If an entry of `seen` is clearly larger than `passes`, the
    document repeats the text, and the second segment follows by chance.
    """

    keys: UInt64s
    lengths: Int64s
    hashes: UInt64s
    groups: Int64s
    rows: Int64s
    table: Bools
    found: Bools
    repetitive: Bools
    seen: Int64s
    passes: int = 1

    def search(self, block: Block, *, vocabulary: Vocabulary) -> None:
        """Set `found` to true for each negative (pair labelled not next) whose second segment follows its first segment
        in the text of `block`. Add to `seen` how often the text around the boundary of the negative occurs there."""
        if not self.keys.size or not len(block):
            return
        row = block.token_rows
        place = np.arange(block.ids.size) - block.offsets[:-1][row]
        inside = (place > 0) & (place != block.first_length[row] - 1) & (place != block.lengths[row] - 1)
        second = (place >= block.first_length[row])[inside]
        row = row[inside]
        segment = 2 * row + (second & (block.label[row] == 1))
        keys = vocabulary.keys[block.ids[inside]]
        negative = second & (block.label[row] == 1)
        names = np.where(negative, document_keys(block.second)[row], document_keys(block.document)[row])
        whole = np.zeros(keys.size, np.bool_)
        reach = 2 * WINDOW - 1
        if keys.size > reach:
            whole[:-reach] = segment[reach:] == segment[:-reach]
        found = mix(_windows(keys) + names)
        ends = np.searchsorted(segment, segment[whole], side="right")
        places = np.flatnonzero(whole)
        hits = np.flatnonzero(self.table[found[places] >> np.uint64(64 - _TABLE_BITS)])
        low = np.searchsorted(self.keys, found[places[hits]], side="left")
        high = np.searchsorted(self.keys, found[places[hits]], side="right")
        self.passes = max(self.passes, int(block.pass_number.max()) + 1)
        own = np.flatnonzero(~negative[places[hits]])
        np.add.at(self.seen, np.repeat(low[own], high[own] - low[own]) + _count_up(high[own] - low[own]), 1)
        for hit, begin, end in zip(hits.tolist(), low.tolist(), high.tolist(), strict=True):
            start = int(places[hit]) + WINDOW
            for number in range(begin, end):
                stop = start + int(self.lengths[number])
                if not self.found[number] and stop <= ends[hit]:
                    follows = hash_runs(keys[start:stop], np.array([0, stop - start]), salt=3)[0]
                    self.found[number] = follows == self.hashes[number]

    def report(self, findings: Findings, *, file: str, published: bool) -> None:
        """Add to `findings` how many negatives (pairs labelled not next) were checked, and a fault for each negative
        whose second segment was found to follow the first. The fault becomes a note if the document repeats the text,
        or if `published` is true (BERT's published algorithm built the data set). `file` is the path of the shard."""
        findings.looked("true next", self.keys.size)
        text = "labelled not next, but the second segment follows the first in the same document"
        recurs = self.repetitive | (self.seen > self.passes + 1)
        for numbers, end, note in (
            (np.flatnonzero(self.found & ~recurs), "", published),
            (np.flatnonzero(self.found & recurs), ", which repeats this text", True),
        ):
            if numbers.size:
                first = min(numbers.tolist(), key=lambda number: (self.groups[number], self.rows[number]))
                place = Place(file, int(self.groups[first]), int(self.rows[first]))
                findings.add("true next", place, text + end, count=numbers.size, note=note)
