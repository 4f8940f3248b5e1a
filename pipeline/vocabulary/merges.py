"""Merges adjacent symbols in counted words, one pair at a time: the inner loop of WordPiece and BPE training.

Flat arrays hold all words as linked lists of symbols. A merge updates only the pairs that it changes, so a merge costs
about 0.3 ms instead of a pass over all words. The result is deterministic: if several pairs have the best score, the
most frequent of them is merged. If several are equally frequent, the first in code point order is merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Int64s: TypeAlias = npt.NDArray[np.int64]
Int32s: TypeAlias = npt.NDArray[np.int32]
Criterion: TypeAlias = Literal["likelihood", "frequency"]

_REFRESH_EVERY = 256
_SHIFT = 32


class MergeTable:
    """Holds words as sequences of symbols, and the count of every pair of adjacent symbols.

    `symbols` has a string for each symbol id. `words` has the symbol ids of all words, one word after the other. Word i
    has `lengths[i]` symbols (at least 1) and occurs `counts[i]` times. A merge drops `prefix` ("##" for WordPiece) from
    the second symbol before it joins the two.

    The methods name a pair by its number in this table.
    """

    def __init__(self, symbols: Sequence[str], *, words: Int32s, lengths: Int64s, counts: Int64s, prefix: str) -> None:
        self.symbols = list(symbols)
        self._number = {symbol: index for index, symbol in enumerate(self.symbols)}
        self._prefix = prefix
        self._symbol = words.astype(np.int32)
        self._weight = np.repeat(counts, lengths)
        size = words.size
        ends = np.cumsum(lengths) - 1
        self._next = np.arange(1, size + 1, dtype=np.int32)
        self._next[ends] = -1
        self._previous = np.arange(-1, size - 1, dtype=np.int32)
        self._previous[(ends + 1)[:-1]] = -1
        self.symbol_counts = np.zeros(max(1024, 2 * len(self.symbols)), np.int64)
        np.add.at(self.symbol_counts, self._symbol, self._weight)
        self._pairs: dict[int, int] = {}
        self._left = np.zeros(1024, np.int64)
        self._right = np.zeros(1024, np.int64)
        self._count = np.zeros(1024, np.int64)
        self._places: list[list[Int64s]] = []
        self._add_slots(np.flatnonzero(self._next >= 0))
        self._active: Int64s = np.zeros(0, np.int64)
        self._active_until = 0
        self._steps = 0
        self._threshold = -1

    @property
    def greatest_count(self) -> int:
        """The count of the most frequent pair, or 0 if there is no pair."""
        return int(self._count[: len(self._pairs)].max(initial=0))

    def best(self, *, criterion: Criterion, min_count: int) -> int | None:
        """Return the number of the pair to merge next (the pair's number in this table). Return None if no pair occurs
        at least `min_count` times. `criterion` decides which pair is best (see subwords.train_wordpiece)."""
        candidates = self._candidates(min_count)
        if not candidates.size:
            return None
        counts = self._count[candidates]
        if criterion == "frequency":
            score = counts.astype(np.float64)
        else:
            score = counts / (
                self.symbol_counts[self._left[candidates]].astype(np.float64)
                * self.symbol_counts[self._right[candidates]]
            )
        top = candidates[score == score.max()]
        if top.size > 1:
            top = top[self._count[top] == self._count[top].max()]
        pairs: list[int] = top.tolist()
        return min(pairs, key=self.names)

    def names(self, pair: int) -> tuple[str, str]:
        """Return the two symbols of the pair with number `pair`."""
        return self.symbols[self._left[pair]], self.symbols[self._right[pair]]

    def count(self, pair: int) -> int:
        """Return how often the pair with number `pair` occurs in the text."""
        return int(self._count[pair])

    def merge(self, pair: int) -> str:
        """Merge every occurrence of the pair with number `pair`, from left to right, and return the new symbol."""
        left, right = int(self._left[pair]), int(self._right[pair])
        first, second = self.names(pair)
        symbol = self._symbol_number(first + second.removeprefix(self._prefix))
        place = np.sort(np.concatenate(self._places[pair]))
        place = place[self._symbol[place] == left]
        place = place[self._next[place] >= 0]
        place = place[self._symbol[self._next[place]] == right]
        if left == right:
            place = self._without_overlap(place)
        joined = self._next[place].astype(np.int64)
        self._drop_slots(np.unique(np.concatenate([self._previous[place], place, joined])))
        after = self._next[joined]
        self._symbol[place] = symbol
        self._symbol[joined] = -1
        self._next[place] = after
        self._previous[after[after >= 0]] = place[after >= 0]
        total = int(self._weight[place].sum())
        self.symbol_counts[left] -= total
        self.symbol_counts[right] -= total
        self.symbol_counts[symbol] += total
        self._places[pair] = []
        slots = np.unique(np.concatenate([self._previous[place], place]))
        self._add_slots(slots[(slots >= 0) & (self._next[slots] >= 0)])
        self._steps += 1
        return self.symbols[symbol]

    def _symbol_number(self, name: str) -> int:
        number = self._number.get(name)
        if number is None:
            number = self._number[name] = len(self.symbols)
            self.symbols.append(name)
            self.symbol_counts = _grown(self.symbol_counts, len(self.symbols))
        return number

    def _without_overlap(self, place: Int64s) -> Int64s:
        """Return the places at which a pair can be merged without overlap. `place` has all places where the pair
        occurs, sorted. Places overlap only if both symbols of the pair are equal, in text like a a a a. Of overlapping
        places, the first, third, ... are returned."""
        if not place.size:
            return place
        heads = np.flatnonzero(np.concatenate([[True], self._next[place[:-1]] != place[1:]]))
        run = np.arange(place.size) - np.repeat(heads, np.diff(heads, append=place.size))
        kept: Int64s = place[run % 2 == 0]
        return kept

    def _codes(self, slots: Int64s) -> Int64s:
        left = self._symbol[slots].astype(np.int64)
        return (left << _SHIFT) | self._symbol[self._next[slots]].astype(np.int64)

    def _drop_slots(self, slots: Int64s) -> None:
        slots = slots[slots >= 0]
        slots = slots[self._next[slots] >= 0]
        codes, inverse = np.unique(self._codes(slots), return_inverse=True)
        lost = np.bincount(inverse, weights=self._weight[slots], minlength=codes.size).astype(np.int64)
        numbers = [self._pairs[code] for code in codes.tolist()]
        self._count[numbers] -= lost

    def _add_slots(self, slots: Int64s) -> None:
        if not slots.size:
            return
        codes, inverse = np.unique(self._codes(slots), return_inverse=True)
        gained = np.bincount(inverse, weights=self._weight[slots], minlength=codes.size).astype(np.int64)
        places = np.split(slots[np.argsort(inverse, kind="stable")], np.cumsum(np.bincount(inverse))[:-1])
        size = len(self._pairs) + codes.size
        self._left, self._right, self._count = (_grown(a, size) for a in (self._left, self._right, self._count))
        for code, gain, where in zip(codes.tolist(), gained.tolist(), places, strict=True):
            number = self._pairs.get(code)
            if number is None:
                number = self._pairs[code] = len(self._places)
                self._left[number], self._right[number] = code >> _SHIFT, code & (2**_SHIFT - 1)
                self._places.append([])
            self._count[number] += gain
            self._places[number].append(where)

    def _candidates(self, min_count: int) -> Int64s:
        """Return the pairs that occur at least `min_count` times. Each pair is given as its number in this table.

        Not every pair is looked at. A list of the frequent pairs is made every _REFRESH_EVERY merges. Until the next
        list is made, only two kinds of pairs are looked at: those in the list, and those created after the list. No
        pair is missed, because a pair's count only falls after the merge that created the pair.
        """
        size = len(self._pairs)
        if min_count != self._threshold or self._steps % _REFRESH_EVERY == 0:
            self._active = np.flatnonzero(self._count[:size] >= min_count)
            self._active_until, self._threshold = size, min_count
            return self._active
        pairs = np.concatenate([self._active, np.arange(self._active_until, size)])
        kept: Int64s = pairs[self._count[pairs] >= min_count]
        return kept


def _grown(array: Int64s, size: int) -> Int64s:
    if size <= array.size:
        return array
    larger = np.zeros(max(size, 2 * array.size), array.dtype)
    larger[: array.size] = array
    return larger
