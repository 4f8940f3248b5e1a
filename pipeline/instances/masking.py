"""Chooses masked positions and their replacements, for many rows at once (Devlin et al. 2019, appendix A.1).

Each random draw is a hash of row, mask set (one choice of the tokens to predict) and token. So the result does not
depend on batches or order. The first mask set costs 60 ns a token, and each further mask set 40 ns, because the words
are found only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline import draws
from pipeline.config import PipelineConfig
from pipeline.instances.rows import Ids, Rows
from pipeline.instances.spans import draw_spans
from pipeline.tokenizer import WordTokenizer

Int64s: TypeAlias = npt.NDArray[np.int64]

_BATCH_TOKENS = 1 << 19
_MAX_BATCH_ROWS = 1 << 15
_MASKED, _KEPT = 0.8, 0.9
_ORDER, _ACTION, _PIECE, _SPAN = (
    np.uint64(draws.key(0, "masking", name)) for name in ("order", "action", "piece", "span")
)
_U16, _U32, _U48, _LOW_16 = np.uint64(16), np.uint64(32), np.uint64(48), np.uint64(0xFFFF)


@dataclass(frozen=True, slots=True)
class Masks:
    """One mask set (a choice of tokens to predict) for n rows, with m masked positions in total.

    `positions` (uint16[m]) are the tokens to predict, ascending within a row and counted from the row's [CLS]. `inputs`
    ([m], of the same type as Rows.ids) are the token ids that the model sees at these positions. The labels are not
    stored: they are the token ids of the unmasked row at these positions. `offsets` is int64[n + 1]: row r has the
    entries offsets[r]:offsets[r + 1] of both arrays. Every row has at least one entry.
    """

    positions: npt.NDArray[np.uint16]
    inputs: Ids
    offsets: Int64s

    def __len__(self) -> int:
        return int(self.offsets.size) - 1

    def take(self, rows: Int64s) -> Masks:
        """Return the masks of the rows with the indices `rows`, in this order."""
        begin, length = self.offsets[rows], np.diff(self.offsets)[rows]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(length)])
        gather = np.repeat(begin - offsets[:-1], length) + np.arange(offsets[-1])
        return Masks(self.positions[gather], self.inputs[gather], offsets)


def num_to_predict(lengths: Int64s, *, probability: float, max_predictions: int) -> Int64s:
    """Return the number N of tokens to predict for each row. `lengths` has the number of tokens in each row, special
    tokens included.

    N = min(max_predictions, max(1, round(probability * length))), with halves rounded to even.
    """
    wanted: Int64s = np.maximum(1, np.rint(lengths * probability)).astype(np.int64)
    return np.minimum(max_predictions, wanted)


def make_masks(
    rows: Rows, *, config: PipelineConfig, tokenizer: WordTokenizer, mask_sets: Sequence[int]
) -> list[Masks]:
    """Make mask sets (choices of tokens to predict) for the rows, and return one Masks for each number in `mask_sets`.
    These are our own rules (mode: strict), not those of BERT's published script.

    A row has a budget of N tokens (num_to_predict). Its words are tried in random order, except words with more tokens
    than config.predictions. The first word is taken even if it exceeds the budget. A later word that does not fit the
    rest of the budget is skipped. 80% of the chosen words become [MASK] in all their tokens, 10% stay as they are, and
    in 10% each token gets a random id that is neither special nor unused. If config.replacement_draw is piece, this
    choice is drawn for each token instead of each word. Special tokens are never chosen. If a row has no usable word
    (only [UNK] or words that are too long), N single tokens are chosen. [UNK] is among them only if there are too few
    other tokens.

    If config.masking is token, every token counts as a word. If it is span, spans of words (spans.draw_spans) are tried
    in random order, and the words of a span from left to right; the 80/10/10 choice is then drawn once for each span.
    """
    is_special = np.zeros(tokenizer.vocab_size, np.bool_)
    is_special[tokenizer.special_ids] = True
    parts: list[list[tuple[npt.NDArray[np.uint16], Ids, Int64s]]] = [[] for _ in mask_sets]
    for begin, end in _batches(rows.offsets):
        batch = _Batch.cut(rows, begin, end, is_special=is_special, config=config)
        for mask_set, made in zip(mask_sets, parts, strict=True):
            keys = draws.derive(rows.keys[begin:end], mask_set)
            words = _choose_words(batch, keys=keys, config=config)
            made.append(_replace(batch, words, keys=keys, config=config, tokenizer=tokenizer))
    empty = (np.zeros(0, np.uint16), rows.ids[:0], np.zeros(1, np.int64))
    masks = []
    for made in parts:
        positions, inputs, counts = zip(empty, *made, strict=True)
        masks.append(Masks(np.concatenate(positions), np.concatenate(inputs), np.cumsum(np.concatenate(counts))))
    return masks


@dataclass(frozen=True, slots=True)
class _Batch:
    """Holds some rows and the words in them that may be masked, in order.

    `ids` (the token id) and `special` (whether the token is special) have an entry for each token. `begin` (the first
    token), `length` (in tokens), `row` and `counters` (numbers for random draws, made from the word's position) have an
    entry for each word. `per_row` (number of words), `first` (index of the first word) and `budget` (number of tokens
    to predict) have an entry for each row. Row r has the tokens offsets[r]:offsets[r + 1].
    """

    ids: Ids
    special: npt.NDArray[np.bool_]
    offsets: Int64s
    begin: Int64s
    length: Int64s
    row: Int64s
    per_row: Int64s
    first: Int64s
    counters: draws.UInt64s
    budget: Int64s

    @classmethod
    def cut(
        cls, rows: Rows, first: int, last: int, *, is_special: npt.NDArray[np.bool_], config: PipelineConfig
    ) -> _Batch:
        low, high = rows.offsets[first], rows.offsets[last]
        ids, offsets = rows.ids[low:high], rows.offsets[first : last + 1] - low
        special = is_special[ids]
        if config.masking == "token":
            begin = np.flatnonzero(~special)
            length = np.broadcast_to(np.ones(1, np.int64), begin.shape)
        else:
            begin = np.flatnonzero(rows.word_starts[low:high])
            length = np.diff(begin, append=ids.size)
            keep = ~np.logical_or.reduceat(special, begin) & (length <= config.predictions)
            begin, length = begin[keep], length[keep]
        until = np.searchsorted(begin, offsets)
        per_row = np.diff(until)
        row = np.repeat(np.arange(last - first), per_row)
        budget = num_to_predict(
            np.diff(offsets), probability=config.masked_probability, max_predictions=config.predictions
        )
        counters = draws.counters(begin - np.repeat(offsets[:-1], per_row))
        return cls(ids, special, offsets, begin, length, row, per_row, until[:-1], counters, budget)


@dataclass(frozen=True, slots=True)
class _Words:
    """Holds the row, first token and number of tokens of each chosen word, in the order of the tokens.

    `unit` is the first token of the word's unit (the word or span that shares one 80/10/10 draw).
    """

    row: Int64s
    begin: Int64s
    length: Int64s
    unit: Int64s


def _batches(offsets: Int64s) -> list[tuple[int, int]]:
    """Divide n rows into batches of about _BATCH_TOKENS tokens. Return the range (first row, last row + 1) of each
    batch.

    `offsets` [n + 1] says where each row's tokens begin. The masks do not depend on this division.
    """
    batches = []
    begin, count = 0, offsets.size - 1
    while begin < count:
        end = int(np.searchsorted(offsets, offsets[begin] + _BATCH_TOKENS, side="right")) - 1
        end = min(max(end, begin + 1), begin + _MAX_BATCH_ROWS, count)
        batches.append((begin, end))
        begin = end
    return batches


def _choose_words(batch: _Batch, *, keys: draws.UInt64s, config: PipelineConfig) -> _Words:
    """Return the words to predict, at least one in each row. `keys` has a random key for each row."""
    priority = draws.mix(np.repeat(keys ^ _ORDER, batch.per_row) + batch.counters) >> _U32
    unit = batch.begin
    if config.masking == "span":
        joined = np.concatenate([[False], batch.begin[1:] == (batch.begin + batch.length)[:-1]])
        lengths = draws.mix(np.repeat(keys ^ _SPAN, batch.per_row) + batch.counters)
        heads = draw_spans(lengths, joined=joined & (np.diff(batch.row, prepend=-1) == 0))
        unit, priority = batch.begin[heads], priority[heads]

    # Sorting costs most, so words with a high draw, which come late, are left out at first. Rows that do not reach
    # their budget are done again with all words.
    limit = np.uint64(min(1.0, 1.5 * config.masked_probability + 0.03) * 2.0**32)
    early = np.flatnonzero(priority < limit)
    chosen, left = _take_until(batch, early, priority=priority)
    short = left > 0
    if short.any():
        short &= np.bincount(batch.row[early], minlength=short.size) < batch.per_row
        more, _ = _take_until(batch, np.flatnonzero(short[batch.row]), priority=priority)
        chosen = np.concatenate([chosen[~short[batch.row[chosen]]], more])
    chosen.sort()
    words = _Words(batch.row[chosen], batch.begin[chosen], batch.length[chosen], unit[chosen])
    empty = np.flatnonzero(np.bincount(words.row, minlength=batch.budget.size) == 0)
    return _fill_empty(batch, words, empty=empty, keys=keys) if empty.size else words


def _take_until(batch: _Batch, words: Int64s, *, priority: draws.UInt64s) -> tuple[Int64s, Int64s]:
    """Choose from `words` (indices of words in `batch`) until each row's budget of tokens is used up.

    Within a row, words are tried in the order of their `priority`, the lowest first. The first word is taken, and then
    each word that fits the rest of the budget. Return the chosen indices, in no useful order, and the rest of each
    row's budget (negative if the first word exceeds it). For speed there is no loop over words. Each round handles all
    rows at once, and takes in each row the words up to the first word that does not fit.
    """
    row = batch.row[words]
    order = row.astype(np.uint64) << _U48
    order |= priority[words] << _U16
    order |= (words - batch.first[row]).astype(np.uint64)
    order.sort()
    row = (order >> _U48).astype(np.int64)
    word = batch.first[row] + (order & _LOW_16).astype(np.int64)
    left = batch.budget.copy()
    taken: list[Int64s] = [np.zeros(0, np.int64)]
    leads = True
    while word.size:
        size = batch.length[word]
        total = np.cumsum(size)
        heads = np.flatnonzero(np.diff(row, prepend=-1))
        spans = np.diff(heads, append=row.size)
        take = total - np.repeat((total - size)[heads] + left[row[heads]], spans) <= 0
        if leads:
            take[heads] = True
            leads = False
        taken.append(word[take])
        left -= np.bincount(row[take], weights=size[take], minlength=left.size).astype(np.int64)
        rest = np.flatnonzero(~take)
        rest = rest[size[rest] <= left[row[rest]]]
        word, row = word[rest], row[rest]
    return np.concatenate(taken), left


def _fill_empty(batch: _Batch, words: _Words, *, empty: Int64s, keys: draws.UInt64s) -> _Words:
    """Return `words` and, in addition, single tokens of the rows in `empty` (rows without a usable word). Tokens are
    added to a row until its budget (number of tokens to predict) is used up.

    A loop is fast enough, because such rows are rare.
    """
    added: list[Int64s] = []
    for row in empty.tolist():
        inside = np.arange(batch.offsets[row] + 1, batch.offsets[row + 1] - 1)
        usable = inside[~batch.special[inside]]
        if not usable.size:
            ends = {int(batch.ids[batch.offsets[row]]), int(batch.ids[batch.offsets[row + 1] - 1])}
            usable = inside[~np.isin(batch.ids[inside], list(ends))]
        order = np.argsort(draws.mix(keys[row] + draws.counters(usable - batch.offsets[row])), kind="stable")
        added.append(usable[order[: batch.budget[row]]])
    begin = np.concatenate(added)
    row = np.repeat(empty, [part.size for part in added])
    order = np.lexsort((np.concatenate([words.begin, begin]), np.concatenate([words.row, row])))
    return _Words(
        np.concatenate([words.row, row])[order],
        np.concatenate([words.begin, begin])[order],
        np.concatenate([words.length, np.ones_like(begin)])[order],
        np.concatenate([words.unit, begin])[order],
    )


def _replace(
    batch: _Batch, words: _Words, *, keys: draws.UInt64s, config: PipelineConfig, tokenizer: WordTokenizer
) -> tuple[npt.NDArray[np.uint16], Ids, Int64s]:
    """Draw what replaces each token of `words`: [MASK], the token itself or a random id.

    Return (positions, inputs, counts). For each of these tokens, `positions` is its position in its row, and `inputs`
    is the id that the model sees there. `counts` says how many of these tokens each row has.
    """
    place = np.repeat(words.begin - (np.cumsum(words.length) - words.length), words.length)
    place += np.arange(place.size)
    row = np.repeat(words.row, words.length)
    position = place - batch.offsets[row]
    counters = draws.counters(position)
    if config.replacement_draw == "piece":
        action = draws.mix((keys ^ _ACTION)[row] + counters)
    else:
        unit = draws.counters(words.unit - batch.offsets[words.row])
        action = np.repeat(draws.mix((keys ^ _ACTION)[words.row] + unit), words.length)
    inputs = np.full(place.size, tokenizer.special.mask, batch.ids.dtype)
    kept = np.flatnonzero(action >= draws.threshold(_MASKED))
    inputs[kept] = batch.ids[place[kept]]
    replaced = np.flatnonzero(action >= draws.threshold(_KEPT))
    others = tokenizer.replaceable_ids
    number = draws.below(draws.mix((keys ^ _PIECE)[row[replaced]] + counters[replaced]), others.size)
    inputs[replaced] = others[number].astype(inputs.dtype)
    return position.astype(np.uint16), inputs, np.bincount(row, minlength=batch.budget.size).astype(np.int64)
