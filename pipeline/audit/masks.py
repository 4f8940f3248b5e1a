"""Checks the mask sets of one row group: shape, targets, replacements, whole words, budget, 80/10/10.

A mask set is one choice of positions to predict in a row. Its budget is the number of positions that it should have. A
mask set may have fewer positions only if no remaining word would fit, and more only if it consists of a single word.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.audit.blocks import Block, Bools, Facts, Int64s, Vocabulary
from pipeline.audit.findings import Findings
from pipeline.audit.rows import Counts, report


def check_shape(block: Block, *, facts: Facts, findings: Findings, mismatched: Bools) -> Bools:
    """Check the number, size and positions of the mask sets (choices of positions to predict). Return bool[n]: true for
    rows whose mask sets can be checked further.

    `mismatched` (bool[n], from read_block) is true for rows whose masked positions and replacements differ in number.
    """
    rows, sizes = block.list_rows, np.diff(block.list_offsets)
    findings.looked("mask sets", rows.size)
    findings.looked("mask positions", block.positions.size)
    findings.looked("max predictions", rows.size)
    number = np.bincount(rows, minlength=len(block))
    wrong = (number != facts.mask_sets) & ~mismatched
    report(findings, "mask sets", block, mismatched, "positions and replacements differ in number")
    report(findings, "mask sets", block, wrong, f"not {facts.mask_sets} mask sets")
    empty = _rows_with(block, sizes == 0)
    report(findings, "mask sets", block, empty, "a mask set without a position", note=facts.published)
    over = _rows_with(block, sizes > facts.max_predictions)
    report(findings, "max predictions", block, over, f"more than {facts.max_predictions} positions in a mask set")

    lists = block.entry_lists
    outside = (block.positions < 0) | (block.positions >= block.lengths[rows[lists]])
    falling = np.zeros(block.positions.size, np.bool_)
    falling[1:] = (np.diff(block.positions) <= 0) & (np.diff(lists) == 0)
    beyond = _rows_with(block, np.bincount(lists[outside], minlength=rows.size) > 0)
    unsorted = _rows_with(block, np.bincount(lists[falling], minlength=rows.size) > 0)
    report(findings, "mask positions", block, beyond, "a masked position beyond the row of {length} tokens")
    report(findings, "mask positions", block, unsorted, "masked positions do not ascend, or one is repeated")
    sound: Bools = ~(mismatched | wrong | beyond | unsorted)
    return sound


def _rows_with(block: Block, lists: Bools | Int64s) -> Bools:
    """Return bool[n]: whether each row has at least one of the mask sets (choices of positions to predict) in `lists`.
    `lists` has either a bool for each mask set of the block, or the indices of some mask sets."""
    found = np.zeros(len(block), np.bool_)
    found[block.list_rows[lists]] = True
    return found


def check_masks(
    block: Block,
    *,
    starts: Bools,
    known: Bools,
    facts: Facts,
    vocabulary: Vocabulary,
    findings: Findings,
    counts: Counts,
) -> None:
    """Check which tokens are masked, and what replaces them. Add to `counts` how many masked tokens became [MASK], were
    kept, or became random tokens. All rows of `block` must have passed check_shape.

    `starts` (bool[tokens]) is true for tokens that begin a word, and `known` (bool[n]) is true for rows where `starts`
    is certain. Both come from find_words. In a data set of BERT's published algorithm, join_published has then changed
    `starts`.
    """
    place = block.offsets[:-1][block.list_rows[block.entry_lists]] + block.positions
    targets = block.ids[place]
    _check_targets(block, targets, facts=facts, vocabulary=vocabulary, findings=findings)
    _check_replacements(block, targets, facts=facts, vocabulary=vocabulary, findings=findings)
    _count_shares(block, targets, mask=vocabulary.mask, counts=counts)
    if facts.masking == "token":
        words = _Words.cut(block, np.ones(block.ids.size, np.bool_), facts=facts, vocabulary=vocabulary)
        known = np.ones(len(block), np.bool_)
    else:
        words = _Words.cut(block, starts, facts=facts, vocabulary=vocabulary)
        _check_words(block, words, place, known, facts=facts, vocabulary=vocabulary, findings=findings)
    _check_budget(block, words, place, known, facts=facts, findings=findings, counts=counts)


def _check_targets(block: Block, targets: Int64s, *, facts: Facts, vocabulary: Vocabulary, findings: Findings) -> None:
    findings.looked("special targets", targets.size)
    lists = block.entry_lists
    special = vocabulary.special[targets]
    unknown = targets == vocabulary.unk
    hard = _rows_with(block, np.bincount(lists[special & ~unknown], minlength=block.list_rows.size) > 0)
    report(findings, "special targets", block, hard, "a special token is a target")
    text = np.bincount(block.token_rows[~vocabulary.special[block.ids]], minlength=len(block)) > 0
    soft = _rows_with(block, np.bincount(lists[unknown], minlength=block.list_rows.size) > 0) & text
    report(findings, "special targets", block, soft, "[UNK] is a target in a row with words", note=facts.published)


def _check_replacements(
    block: Block, targets: Int64s, *, facts: Facts, vocabulary: Vocabulary, findings: Findings
) -> None:
    findings.looked("special replacements", targets.size)
    inputs = block.inputs
    replaced = (inputs != targets) & (inputs != vocabulary.mask)
    wrong = replaced & (vocabulary.special[inputs] | vocabulary.unused[inputs])
    entries = np.flatnonzero(wrong)
    if entries.size:
        first = int(entries[0])
        findings.add(
            "special replacements",
            block.place(block.list_rows[block.entry_lists[first]]),
            f"{vocabulary.tokens[int(inputs[first])]} is the replacement at position {int(block.positions[first])}",
            count=entries.size,
            note=facts.published,
        )


def _count_shares(block: Block, targets: Int64s, *, mask: int, counts: Counts) -> None:
    is_mask, kept = block.inputs == mask, block.inputs == targets
    counts.entries += int(targets.size)
    counts.shown["mask"] += int(np.count_nonzero(is_mask))
    counts.shown["kept"] += int(np.count_nonzero(kept & ~is_mask))
    counts.shown["random"] += int(np.count_nonzero(~kept & ~is_mask))
    if targets.size:
        new = np.ones(targets.size, np.bool_)
        new[1:] = (np.diff(block.positions) != 1) | (np.diff(block.entry_lists) != 0)
        runs = np.diff(np.flatnonzero(new), append=targets.size)
        counts.run_squares += int((runs**2).sum())


@dataclass(frozen=True, slots=True)
class _Words:
    """Holds the words of a block (rows of a row group).

    For each word, `begin` is the index of the first token, `length` is the number of tokens, and `row` is the index of
    the row (int64[words]). `special` (bool[words]) is true for words with a token that is never masked. `eligible`
    (bool[words]) is true for words that masking may choose. `word_of_token` (int64[tokens]) is the index of each
    token's word.
    """

    begin: Int64s
    length: Int64s
    row: Int64s
    special: Bools
    eligible: Bools
    word_of_token: Int64s

    @classmethod
    def cut(cls, block: Block, starts: Bools, *, facts: Facts, vocabulary: Vocabulary) -> _Words:
        never = vocabulary.special[block.ids]
        if facts.published:  # [UNK] is a word like any other; [CLS] and [SEP] belong to no word
            never = (block.ids == vocabulary.cls) | (block.ids == vocabulary.sep)
            starts = starts | never
        begin = np.flatnonzero(starts)
        length = np.diff(begin, append=block.ids.size)
        special = np.logical_or.reduceat(never, begin) if begin.size else np.zeros(0, np.bool_)
        if facts.published:  # pieces right after a [SEP] belong to the word before it, so that word is not checked
            special[np.flatnonzero(special[1:] & (length[1:] > 1))] = True
        eligible = ~special & (length <= facts.max_predictions)
        return cls(begin, length, block.token_rows[begin], special, eligible, np.cumsum(starts) - 1)


def _masked_words(block: Block, words: _Words, place: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Return four arrays (int64), which have an entry for each masked word of each mask set (choice of positions to
    predict). The entries are ordered by mask set, then by word.

    The first array has the index of the mask set, and the second the index of the word. The third has the index of the
    word's first masked position in block.positions. The fourth says how many tokens of the word are masked. `place`
    (int64[entries]) is the index in block.ids of each masked position.
    """
    lists, word = block.entry_lists, words.word_of_token[place]
    new = np.ones(place.size, np.bool_)
    new[1:] = (np.diff(lists) != 0) | (np.diff(word) != 0)
    first = np.flatnonzero(new)
    return lists[first], word[first], first, np.diff(first, append=place.size)


def _check_words(
    block: Block,
    words: _Words,
    place: Int64s,
    known: Bools,
    *,
    facts: Facts,
    vocabulary: Vocabulary,
    findings: Findings,
) -> None:
    lists, word, first, pieces = _masked_words(block, words, place)
    look = known[block.list_rows[lists]]
    findings.looked("whole words", int(np.count_nonzero(known[block.list_rows])))
    usable = np.bincount(words.row[words.eligible], minlength=len(block)) > 0
    cut = look & (pieces < words.length[word]) & ~words.special[word] & usable[block.list_rows[lists]]
    report(findings, "whole words", block, _rows_with(block, lists[cut]), "only part of a word is masked")
    if facts.draw == "word":
        findings.looked("one draw a word", int(np.count_nonzero(look)))
        masked = np.add.reduceat((block.inputs == vocabulary.mask).astype(np.int64), first) if first.size else first
        split = look & (masked > 0) & (masked < pieces) & (pieces == words.length[word])
        text = "pieces of one word have different draws"
        report(findings, "one draw a word", block, _rows_with(block, lists[split]), text)


def _check_budget(
    block: Block, words: _Words, place: Int64s, known: Bools, *, facts: Facts, findings: Findings, counts: Counts
) -> None:
    """Check that each mask set (choice of positions to predict) has the size of its budget, which is the number of
    positions that it should have. Add budgets and sizes to `counts`.

    A mask set may have fewer positions if no remaining word fits. It may have more if it consists of a single word,
    except in a data set of BERT's published algorithm. Only rows whose words are known (`known`, bool[n]) are checked.
    """
    sizes = np.diff(block.list_offsets)
    budget = np.maximum(1, np.rint(block.lengths * facts.masked_probability)).astype(np.int64)
    budget = np.minimum(budget, facts.max_predictions)[block.list_rows]
    usable = (np.bincount(words.row[words.eligible], minlength=len(block)) > 0)[block.list_rows]
    counts.wanted += int(budget[usable].sum())
    counts.taken += int(sizes[usable].sum())
    look = known[block.list_rows] & usable
    findings.looked("mask rate", int(np.count_nonzero(look)))
    lists, _, _, _ = _masked_words(block, words, place)
    num_words = np.bincount(lists, minlength=sizes.size)
    over = look & (sizes > budget) & ((num_words > 1) if not facts.published else True)
    report(findings, "mask rate", block, _rows_with(block, over), "a mask set larger than its budget")
    short = np.flatnonzero(look & (sizes < budget))
    if short.size:
        fits = _smallest_left(block, words, place, short) <= (budget - sizes)[short]
        wrong = np.zeros(sizes.size, np.bool_)
        wrong[short[fits]] = True
        text = "a mask set below its budget although another word would fit"
        report(findings, "mask rate", block, _rows_with(block, wrong), text)


def _smallest_left(block: Block, words: _Words, place: Int64s, lists: Int64s) -> Int64s:
    """Return a length (int64, in tokens) for each mask set (choice of positions to predict) whose index is in `lists`.
    It is the length of the shortest word that the mask set leaves unmasked, among the words that masking may choose.

    The length is the largest int64 if there is no such word.
    """
    per_row = np.bincount(words.row, minlength=len(block))
    first = np.cumsum(per_row) - per_row
    rows = block.list_rows[lists]
    count = per_row[rows]
    begin = np.cumsum(count) - count
    word = np.repeat(first[rows] - begin, count) + np.arange(count.sum())
    owner = np.repeat(lists, count)
    stride = words.begin.size + 1
    masked_lists, masked_word, _, _ = _masked_words(block, words, place)
    masked = _is_in(owner * stride + word, masked_lists * stride + masked_word)
    size = np.where(masked | ~words.eligible[word], np.iinfo(np.int64).max, words.length[word])
    return np.asarray(np.minimum.reduceat(size, begin), np.int64)


def _is_in(values: Int64s, ascending: Int64s) -> npt.NDArray[np.bool_]:  # takes half as long as np.isin
    if not ascending.size:
        return np.zeros(values.size, np.bool_)
    at = np.minimum(np.searchsorted(ascending, values), ascending.size - 1)
    return np.asarray(ascending[at] == values)
