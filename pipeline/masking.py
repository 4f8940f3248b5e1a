"""Masked positions and what stands there, for a whole batch of rows at once (Devlin et al. 2019, appendix A.1).

Draws are counters keyed by (row, mask set, token), so that rows may come in any batches. A set costs about 20 ns a
token, most of it for the order in which words are tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline import draws
from pipeline.config import PipelineConfig
from pipeline.rows import Ids, Rows
from pipeline.wordpieces import WordTokenizer

Int64s: TypeAlias = npt.NDArray[np.int64]

_BATCH_TOKENS = 1 << 19
_MAX_BATCH_ROWS = 1 << 15
_MASKED, _KEPT = 0.8, 0.9
_ORDER, _ACTION, _PIECE = (np.uint64(draws.key(0, "masking", name)) for name in ("order", "action", "piece"))


@dataclass(frozen=True, slots=True)
class Masks:
    """One mask set of n rows: row r has entries offsets[r] to offsets[r + 1], at least one.

    positions: uint16[m], ascending within a row, counted from its [CLS]. inputs: id dtype[m], the ids that stand there
    after masking; the label is the row's id at the position. offsets: int64[n + 1].
    """

    positions: npt.NDArray[np.uint16]
    inputs: Ids
    offsets: Int64s

    def __len__(self) -> int:
        return int(self.offsets.size) - 1

    def take(self, rows: Int64s) -> Masks:
        """These rows, in this order."""
        begin, length = self.offsets[rows], np.diff(self.offsets)[rows]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(length)])
        gather = np.repeat(begin - offsets[:-1], length) + np.arange(offsets[-1])
        return Masks(self.positions[gather], self.inputs[gather], offsets)


def num_to_predict(lengths: Int64s, *, probability: float, max_predictions: int) -> Int64s:
    """N = min(max_predictions, max(1, round(probability x length))), halves to even, specials counted."""
    wanted: Int64s = np.maximum(1, np.rint(lengths * probability)).astype(np.int64)
    return np.minimum(max_predictions, wanted)


def mask_rows(rows: Rows, *, config: PipelineConfig, tokenizer: WordTokenizer, mask_set: int) -> Masks:
    """Mask set number `mask_set` of these rows (strict mode).

    Words are tried in random order. The first is masked whole even where it alone passes the budget N (but not
    max_predictions); a later one that would pass it is left alone and others are tried, until N is reached. Of the
    words, 80% become [MASK] in all their pieces, 10% stay, and 10% get for each piece a random id that is neither
    special nor unused. Special tokens are no targets. A row of nothing but [UNK], or of one word longer than
    max_predictions, has these masked (the first pieces, up to N) rather than nothing.
    """
    is_special = np.zeros(tokenizer.vocab_size, np.bool_)
    is_special[tokenizer.special_ids] = True
    positions: list[npt.NDArray[np.uint16]] = [np.zeros(0, np.uint16)]
    inputs: list[Ids] = [rows.ids[:0]]
    counts: list[Int64s] = [np.zeros(1, np.int64)]
    for begin, end in _batches(rows.offsets):
        batch = _Batch.cut(rows, begin, end, is_special=is_special, token_wise=config.masking == "token")
        keys = draws.derive(rows.keys[begin:end], mask_set)
        chosen = _choose_words(batch, keys=keys, config=config)
        place, ids = _replace(batch, chosen, keys=keys, tokenizer=tokenizer)
        row = np.searchsorted(batch.offsets, place, side="right") - 1
        positions.append((place - batch.offsets[row]).astype(np.uint16))
        inputs.append(ids)
        counts.append(np.bincount(row, minlength=end - begin).astype(np.int64))
    return Masks(np.concatenate(positions), np.concatenate(inputs), np.cumsum(np.concatenate(counts)))


@dataclass(frozen=True, slots=True)
class _Batch:
    """Some rows and their candidate words: token index, length and row of each, ascending."""

    ids: Ids
    offsets: Int64s
    begin: Int64s
    length: Int64s
    row: Int64s

    @classmethod
    def cut(cls, rows: Rows, first: int, last: int, *, is_special: npt.NDArray[np.bool_], token_wise: bool) -> _Batch:
        low, high = rows.offsets[first], rows.offsets[last]
        ids, offsets = rows.ids[low:high], rows.offsets[first : last + 1] - low
        begin = np.arange(ids.size) if token_wise else np.flatnonzero(rows.word_starts[low:high])
        length = np.diff(begin, append=ids.size)
        row = np.repeat(np.arange(last - first), np.diff(np.searchsorted(begin, offsets)))
        special = is_special[ids]
        keep = ~(special if token_wise else np.logical_or.reduceat(special, begin))
        return cls(ids, offsets, begin[keep], length[keep], row[keep])


def _batches(offsets: Int64s) -> list[tuple[int, int]]:
    """Consecutive ranges of rows of about _BATCH_TOKENS tokens; the result never depends on them."""
    batches = []
    begin, count = 0, offsets.size - 1
    while begin < count:
        end = int(np.searchsorted(offsets, offsets[begin] + _BATCH_TOKENS, side="right")) - 1
        end = min(max(end, begin + 1), begin + _MAX_BATCH_ROWS, count)
        batches.append((begin, end))
        begin = end
    return batches


def _choose_words(batch: _Batch, *, keys: draws.UInt64s, config: PipelineConfig) -> tuple[Int64s, Int64s]:
    """Token index and length of the words to predict, ascending; every row has at least one."""
    lengths = np.diff(batch.offsets)
    budget = num_to_predict(lengths, probability=config.masked_probability, max_predictions=config.predictions)
    usable = np.flatnonzero(batch.length <= config.predictions)
    begin, length, row = batch.begin[usable], batch.length[usable], batch.row[usable]
    position = begin - batch.offsets[row]
    priority = draws.draw(keys[row] ^ _ORDER, position.astype(np.uint64)) >> np.uint64(32)
    per_row = np.bincount(row, minlength=lengths.size)
    first = np.cumsum(per_row) - per_row
    sort_key = (row.astype(np.uint64) << np.uint64(48)) | (priority << np.uint64(16))
    sort_key |= (np.arange(row.size) - first[row]).astype(np.uint64)

    # Sorting costs most: words of high priority value are left out, and rows where that was too few are done again.
    limit = np.uint64(min(1.0, 2.0 * config.masked_probability + 0.05) * 2.0**32)
    early = (priority < limit) | (per_row[row] < 32)
    chosen, left = _take_until(sort_key[early], first=first, length=length, budget=budget)
    again = (left > 0) & (np.bincount(row[early], minlength=lengths.size) < per_row)
    if again.any():
        more, _ = _take_until(sort_key[again[row]], first=first, length=length, budget=budget)
        chosen = np.concatenate([chosen[~again[row[chosen]]], more])
    chosen.sort()
    begin, length = begin[chosen], length[chosen]
    empty = np.flatnonzero(np.bincount(row[chosen], minlength=lengths.size) == 0)
    if empty.size:
        begin, length = _fill_empty(batch, empty, begin=begin, length=length, budget=budget, keys=keys)
    return begin, length


def _take_until(sort_key: draws.UInt64s, *, first: Int64s, length: Int64s, budget: Int64s) -> tuple[Int64s, Int64s]:
    """Indices of the words taken, in the order of their keys, and what is left of each row's budget.

    Exactly the loop "take the first; take each later word that fits what is left", in one round for the words up to the
    first that does not fit, and one more for each such word with something left after it.
    """
    sort_key = np.sort(sort_key)
    row = (sort_key >> np.uint64(48)).astype(np.int64)
    word = first[row] + (sort_key & np.uint64(0xFFFF)).astype(np.int64)
    left = budget.copy()
    taken: list[Int64s] = []
    leading = np.diff(row, prepend=-1) > 0
    while word.size:
        size = length[word]
        total = np.cumsum(size)
        heads = np.flatnonzero(np.diff(row, prepend=-1) > 0)
        before = (total - size)[heads]
        running = total - np.repeat(before, np.diff(heads, append=row.size))
        take = running <= left[row]
        if not taken:
            take |= leading
        taken.append(word[take])
        left -= np.bincount(row[take], weights=size[take], minlength=left.size).astype(np.int64)
        rest = ~take & (size <= left[row])
        word, row = word[rest], row[rest]
    return np.concatenate(taken) if taken else np.zeros(0, np.int64), left


def _fill_empty(
    batch: _Batch, empty: Int64s, *, begin: Int64s, length: Int64s, budget: Int64s, keys: draws.UInt64s
) -> tuple[Int64s, Int64s]:
    """Give rows without a usable word one target: the first pieces of a long word, else an [UNK]. Rare, so a loop."""
    more_begin, more_length = [], []
    for row in empty.tolist():
        words = np.flatnonzero(batch.row == row)
        if words.size:
            pick = words[draws.below(keys[row : row + 1], words.size)[0]]
            more_begin.append(int(batch.begin[pick]))
            more_length.append(int(min(batch.length[pick], budget[row])))
        else:
            size = int(batch.offsets[row + 1] - batch.offsets[row])
            more_begin.append(int(batch.offsets[row] + 1 + draws.below(keys[row : row + 1], size - 2)[0]))
            more_length.append(1)
    begin, length = np.concatenate([begin, more_begin]), np.concatenate([length, more_length])
    order = np.argsort(begin)
    return begin[order], length[order]


def _replace(
    batch: _Batch,
    chosen: tuple[Int64s, Int64s],
    *,
    keys: draws.UInt64s,
    tokenizer: WordTokenizer,
) -> tuple[Int64s, Ids]:
    """Token indices of all pieces of the chosen words, ascending, and the ids to put there."""
    begin, length = chosen
    place = np.repeat(begin - (np.cumsum(length) - length), length) + np.arange(int(length.sum()))
    row = np.searchsorted(batch.offsets, place, side="right") - 1
    position = place - batch.offsets[row]
    word_row = np.searchsorted(batch.offsets, begin, side="right") - 1
    action = draws.draw(keys[word_row] ^ _ACTION, (begin - batch.offsets[word_row]).astype(np.uint64))
    action = np.repeat(action, length)
    piece = draws.draw(keys[row] ^ _PIECE, position.astype(np.uint64))
    inputs = np.full(place.size, tokenizer.special.mask, batch.ids.dtype)
    kept = action >= draws.threshold(_MASKED)
    inputs[kept] = batch.ids[place[kept]]
    replaced = action >= draws.threshold(_KEPT)
    others = tokenizer.replaceable_ids
    inputs[replaced] = others[draws.below(piece[replaced], others.size)].astype(inputs.dtype)
    return place, inputs
