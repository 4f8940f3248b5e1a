"""Masks drawn while training, instead of the mask sets that the data set stores.

The rule is the build's (pipeline/instances/masking.py, mode strict): whole words in random order up to a budget of
tokens. Invariant: the masks of a row depend on the plan's seed, the row's place in the data set, the epoch and the rate
of the step alone. So world size and resume change no mask. Cost: 0.1 us a token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline import draws, storage
from pipeline.dataset import TOKEN_COUNTS_NAME, Special
from trainer.config import MaskingConfig
from trainer.data.packing import Rows

_ORDER, _ACTION, _PIECE = (np.uint64(draws.key(0, "masking", name)) for name in ("order", "action", "piece"))
_CONTINUATION = "##"
_UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>|madeupword\d+")

Int64s = NDArray[np.int64]


def read_tokens(data: str | Path) -> list[str]:
    """Return the vocabulary of the data set in the folder `data`, in the order of ids."""
    content = storage.read_bytes(storage.join(data, TOKEN_COUNTS_NAME))
    table = pq.read_table(pa.BufferReader(content), columns=["id", "token"]).sort_by("id")
    tokens: list[str] = table["token"].to_pylist()
    return tokens


@dataclass(frozen=True, slots=True)
class MaskDraws:
    """Draws masks. `continues`, `special` (bool) have an entry for each token id: whether it continues a word, and
    whether it is special. `others` are the ids that may replace a token at random."""

    config: MaskingConfig
    seed: int
    max_steps: int
    """Steps of the run, over which the rate moves."""
    most: int
    """Maximum tokens to predict in a row. Longer words are not chosen."""
    mask: int
    """The id of [MASK]."""
    continues: NDArray[np.bool_]
    special: NDArray[np.bool_]
    others: Int64s

    @classmethod
    def make(
        cls, config: MaskingConfig, *, tokens: Sequence[str], special: Special, seed: int, max_steps: int, longest: int
    ) -> MaskDraws:
        """Return the draws for a vocabulary (`tokens`, by id) and rows of at most `longest` tokens."""
        is_special = np.zeros(len(tokens), np.bool_)
        is_special[list(special.model_dump().values())] = True
        unused = np.array([_UNUSED.fullmatch(token) is not None for token in tokens])
        return cls(
            config=config,
            seed=seed,
            max_steps=max_steps,
            most=config.max_predictions(longest),
            mask=special.mask,
            continues=np.array([config.whole_words and token.startswith(_CONTINUATION) for token in tokens]),
            special=is_special,
            others=np.flatnonzero(~is_special & ~unused),
        )

    def draw(self, rows: Rows, start: int, stop: int, *, step: int) -> Rows:
        """Return `rows` with masks for rows [start, stop) instead of the stored ones. `step` takes them, from 1.

        Other rows are without masks.
        """
        begin, end = rows.starts[start], rows.starts[stop]
        offsets = (rows.starts[start : stop + 1] - begin).astype(np.int64)
        places = [column[start:stop] for column in (rows.shards, rows.row_groups, rows.rows)]
        numbers = [*places, np.full(stop - start, rows.epoch)]
        keys = draws.row_keys(self.seed, "drawn masks", ids=np.zeros((stop - start, 16), np.uint8), numbers=numbers)
        rate = self.config.rate_at(step, max_steps=self.max_steps)
        positions, inputs, counts = self.choose(rows.ids[begin:end], offsets, keys=keys, rate=rate)
        masked_starts = np.zeros(len(rows) + 1, np.int64)
        masked_starts[start + 1 : stop + 1] = np.cumsum(counts)
        masked_starts[stop + 1 :] = positions.size
        return replace(rows, masked_positions=positions, masked_inputs=inputs, masked_starts=masked_starts)

    def choose(
        self, ids: NDArray[np.integer], offsets: Int64s, *, keys: draws.UInt64s, rate: float
    ) -> tuple[NDArray[np.uint16], NDArray[np.integer], Int64s]:
        """Return the positions to predict, counted within each row, the ids that the model sees there, and the number
        of positions of each row. Row r has the tokens offsets[r]:offsets[r + 1] and the random key keys[r]."""
        special, lengths = self.special[ids], np.diff(offsets)
        budget = np.minimum(self.most, np.maximum(1, np.rint(lengths * rate))).astype(np.int64)
        starts = ~self.continues[ids] | special
        starts[1:] |= special[:-1]
        begin = np.flatnonzero(starts)
        length = np.diff(begin, append=ids.size)
        keep = ~special[begin] & (length <= self.most)
        begin, length = begin[keep], length[keep]
        row = np.searchsorted(offsets, begin, side="right") - 1
        priority = draws.mix((keys ^ _ORDER)[row] + draws.counters(begin - offsets[row])) >> np.uint64(32)
        chosen = _take(priority, row=row, length=length, budget=budget)
        begin, length, row = begin[chosen], length[chosen], row[chosen]
        for empty in np.flatnonzero(np.bincount(row, minlength=budget.size) == 0).tolist():
            places = self._single_tokens(ids, special, bounds=offsets[empty : empty + 2], key=keys[empty])
            places = places[: budget[empty]]
            begin, row = np.concatenate([begin, places]), np.concatenate([row, np.full_like(places, empty)])
            length = np.concatenate([length, np.ones_like(places)])
        order = np.argsort(begin)
        begin, length, row = begin[order], length[order], row[order]

        action = draws.mix((keys ^ _ACTION)[row] + draws.counters(begin - offsets[row]))
        action, row = np.repeat(action, length), np.repeat(row, length)
        place = np.repeat(begin - (np.cumsum(length) - length), length) + np.arange(action.size)
        position = place - offsets[row]
        inputs = np.where(action < draws.threshold(self.config.masked_share), self.mask, ids[place]).astype(ids.dtype)
        random = np.flatnonzero(action >= draws.threshold(1.0 - self.config.random_share))
        number = draws.mix((keys ^ _PIECE)[row[random]] + draws.counters(position[random]))
        inputs[random] = self.others[draws.below(number, self.others.size)]
        return position.astype(np.uint16), inputs, np.bincount(row, minlength=budget.size)

    def _single_tokens(
        self, ids: NDArray[np.integer], special: NDArray[np.bool_], *, bounds: Int64s, key: np.uint64
    ) -> Int64s:
        """Return the tokens of a row without a usable word in random order; [UNK] only if there is nothing else."""
        inside = np.arange(bounds[0] + 1, bounds[1] - 1)
        usable = inside[~special[inside]]
        if not usable.size:
            usable = inside[~np.isin(ids[inside], ids[[bounds[0], bounds[1] - 1]])]
        return usable[np.argsort(draws.mix(key + draws.counters(usable - bounds[0])), kind="stable")]


def _take(priority: draws.UInt64s, *, row: Int64s, length: Int64s, budget: Int64s) -> Int64s:
    """Return the words that rows take. Words are sorted by row; `priority` are 32-bit draws.

    Words are tried in the order of their priority, the lowest first. A row takes the first word, and then each word
    that fits the rest of its budget of tokens.
    """
    assert budget.size <= 1 << 16
    per_row = np.bincount(row, minlength=budget.size)
    first = np.cumsum(per_row) - per_row
    order = (priority << np.uint64(16)) | (np.arange(row.size) - first[row]).astype(np.uint64)  # one key sorts fastest
    order |= row.astype(np.uint64) << np.uint64(48)
    order.sort()
    words = first[row] + (order & np.uint64(0xFFFF)).astype(np.int64)
    left, taken, tried = budget.copy(), [words[:0]], 0
    active = np.flatnonzero(per_row)
    while active.size:
        word = words[first[active] + tried]
        fits = (length[word] <= left[active]) | (tried == 0)
        taken.append(word[fits])
        left[active[fits]] -= length[word[fits]]
        tried += 1
        active = active[(left[active] > 0) & (tried < per_row[active])]
    return np.concatenate(taken)
