"""Checks each row of one row group: layout, token ids, lengths, labels, documents.

The functions take a block (the row group as arrays), add to Findings and Counts, and read no files. If a row fails
these checks, its masks are not checked (masks.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from pipeline.audit.blocks import Block, Bools, Facts, Int64s, Vocabulary
from pipeline.audit.findings import Findings


@dataclass(slots=True)
class Counts:
    """Holds sums over rows. Shares such as the mask rate are computed from these sums once every shard is read."""

    rows: int = 0
    tokens: int = 0
    labels: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0, -1: 0})
    """The number of rows by next-sentence label: 0 is next, 1 is not next, and -1 is no label."""
    short_negatives: int = 0
    """The number of rows labelled not next whose first segment may be a document of a single word."""
    entries: int = 0
    """The number of masked positions."""
    shown: dict[str, int] = field(default_factory=lambda: {"mask": 0, "kept": 0, "random": 0})
    """The number of masked positions where the model gets [MASK], the original token, or another token."""
    run_squares: int = 0
    """The sum of the squared lengths of all runs of neighbouring masked positions. The positions of a run may share one
    random draw, so the tolerance of the 80/10/10 check grows with this sum."""
    wanted: int = 0
    """The sum of the budgets of the checked mask sets: the number of positions that they should have."""
    taken: int = 0
    """The number of positions that the checked mask sets have."""
    lengths: dict[int, int] = field(default_factory=dict)
    """The number of rows by length in tokens."""
    source_rows: dict[int, int] = field(default_factory=dict)
    """The number of rows by index of the source. `source_tokens` has the number of tokens in the same way."""
    source_tokens: dict[int, int] = field(default_factory=dict)
    shortcuts: dict[str, Counter[int]] = field(default_factory=dict)
    """The counts of each shortcut (a rule that guesses the next-sentence label without reading the text), by the name
    of the shortcut. See count_shortcuts in pipeline/instances/shortcuts.py."""

    def merge(self, other: Counts) -> None:
        """Add `other` to these sums."""
        for name in ("rows", "tokens", "short_negatives", "entries", "run_squares", "wanted", "taken"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for rule, cells in other.shortcuts.items():
            self.shortcuts.setdefault(rule, Counter()).update(cells)
        for name in ("labels", "shown", "lengths", "source_rows", "source_tokens"):
            own = getattr(self, name)
            for key, count in getattr(other, name).items():
                own[key] = own.get(key, 0) + count

    @property
    def num_labels(self) -> int:
        """The number of rows with a next-sentence label."""
        return self.labels.get(0, 0) + self.labels.get(1, 0)


def report(findings: Findings, check: str, block: Block, wrong: Bools, text: str, *, note: bool = False) -> None:
    """Add the rows for which `wrong` (bool[n]) is true to `findings`. They are faults of the check that is named
    `check`, or notes (odd but explained) if `note` is true.

    `text` describes the first of these rows. Fields in `text`, such as {length}, are replaced by the values of that
    row.
    """
    rows = np.flatnonzero(wrong)
    if rows.size:
        names = ("num_tokens", "source", "pass_number", "first_length", "label")
        values = {"length": block.lengths[rows[0]], **{name: getattr(block, name)[rows[0]] for name in names}}
        findings.add(check, block.place(rows[0]), text.format(**values), count=rows.size, note=note)


def check_rows(block: Block, *, facts: Facts, vocabulary: Vocabulary, findings: Findings, counts: Counts) -> Bools:
    """Check every row of the block, and add the results to `findings` and `counts`. Return bool[n]: true for rows that
    have the right layout and only token ids inside the vocabulary. The token ids that the model gets at masked
    positions must be inside the vocabulary too."""
    counts.rows += len(block)
    counts.tokens += int(block.ids.size)
    for label, count in zip(*np.unique(block.label, return_counts=True), strict=True):
        counts.labels[int(label)] = counts.labels.get(int(label), 0) + int(count)
    for length, count in zip(*np.unique(block.lengths, return_counts=True), strict=True):
        counts.lengths[int(length)] = counts.lengths.get(int(length), 0) + int(count)

    for source in np.unique(block.source).tolist():
        own = block.source == source
        counts.source_rows[source] = counts.source_rows.get(source, 0) + int(np.count_nonzero(own))
        counts.source_tokens[source] = counts.source_tokens.get(source, 0) + int(block.lengths[own].sum())
    if facts.most_passes:
        _check_passes(block, facts=facts, findings=findings)

    findings.looked("lengths", len(block))
    too_long = block.lengths > facts.max_seq_length
    report(findings, "lengths", block, too_long, f"{{length}} tokens, max_seq_length is {facts.max_seq_length}")
    findings.looked("token ids", block.ids.size + block.inputs.size)
    outside = (block.ids < 0) | (block.ids >= vocabulary.size)
    bad_ids = np.zeros(len(block), np.bool_)
    bad_ids[block.token_rows[outside]] = True
    report(findings, "token ids", block, bad_ids, f"input_ids holds an id outside 0..{vocabulary.size - 1}")
    bad_inputs = np.zeros(len(block), np.bool_)
    strange = (block.inputs < 0) | (block.inputs >= vocabulary.size)
    bad_inputs[block.list_rows[block.entry_lists[strange]]] = True
    report(findings, "token ids", block, bad_inputs, f"masked_inputs holds an id outside 0..{vocabulary.size - 1}")

    sound = ~bad_ids & ~_check_layout(block, bad_ids, facts=facts, vocabulary=vocabulary, findings=findings)
    if facts.next_sentence != "none":
        _check_documents(block, facts=facts, findings=findings)
    return sound & ~bad_inputs


def _check_passes(block: Block, *, facts: Facts, findings: Findings) -> None:
    findings.looked("sources", len(block))
    most = np.asarray(facts.most_passes)
    unknown = (block.source < 0) | (block.source >= most.size)
    report(findings, "sources", block, unknown, f"source {{source}}, the manifest has {most.size}")
    late = (block.pass_number < 0) | (block.pass_number >= most[np.where(unknown, 0, block.source)])
    report(findings, "sources", block, late & ~unknown, "pass {pass_number} is more than source {source} has")


def _check_layout(block: Block, skip: Bools, *, facts: Facts, vocabulary: Vocabulary, findings: Findings) -> Bools:
    """Report rows with a wrong layout, and return bool[n]: true for these rows.

    Each such row counts as one fault, for the first thing that is wrong in the row. Rows for which `skip` (bool[n]) is
    true are not checked.
    """
    findings.looked("layout", len(block))
    lengths, first = block.lengths, block.first_length
    paired = block.has_second
    faulty = np.zeros(len(block), np.bool_)

    def found(wrong: Bools, text: str) -> None:
        fresh = wrong & ~faulty & ~skip
        report(findings, "layout", block, fresh, text)
        faulty[fresh] = True

    found(block.num_tokens != lengths, "num_tokens is {num_tokens}, input_ids has {length}")
    found(lengths < np.where(paired, 5, 3), "{length} tokens are too few for the segments and their special tokens")
    found(paired & ((first < 3) | (first > lengths - 2)), "first_length {first_length} does not divide {length} tokens")
    found(~paired & (first != lengths), "first_length {first_length} of {length} tokens, but no second segment")
    whole = np.flatnonzero(~faulty & ~skip)
    begin, end = block.offsets[:-1][whole], block.offsets[1:][whole]
    for place, token, text in (
        (begin, vocabulary.cls, "does not begin with [CLS]"),
        (begin + first[whole] - 1, vocabulary.sep, "no [SEP] at first_length {first_length}, the end of segment A"),
        (end - 1, vocabulary.sep, "does not end with [SEP]"),
    ):
        wrong = np.zeros(len(block), np.bool_)
        wrong[whole] = block.ids[place] != token
        found(wrong, text)
    inside = np.zeros(block.ids.size, np.bool_)
    known = (block.ids >= 0) & (block.ids < vocabulary.size)
    inside[known] = vocabulary.special[block.ids[known]] & (block.ids[known] != vocabulary.unk)
    extra = np.bincount(block.token_rows[inside], minlength=len(block)) != np.where(paired, 3, 2)
    found(extra, "special tokens inside a segment")
    expected = (-1,) if facts.next_sentence == "none" else (0, 1) if facts.published else (-1, 0, 1)
    found(~np.isin(block.label, expected), f"label {{label}} with next_sentence: {facts.next_sentence}")
    found((block.label == -1) == paired, "a label without a second segment, or a second segment without a label")
    return faulty


def _check_documents(block: Block, *, facts: Facts, findings: Findings) -> None:
    check = "negatives' documents"
    findings.looked(check, int(np.count_nonzero(block.has_second)))
    same = (block.document == block.second).all(axis=1)
    if facts.next_sentence == "sentence_order":
        report(findings, check, block, block.has_second & ~same, "sentence_order, but the segments' documents differ")
        return
    text = "labelled not next, but both segments come from the same document"
    report(findings, check, block, (block.label == 1) & same & block.has_second, text, note=facts.published)
    report(
        findings, check, block, (block.label == 0) & ~same, "labelled next, but the segments come from two documents"
    )


def count_labels(block: Block, *, first_words: Int64s, counts: Counts) -> None:
    """Add to `counts.short_negatives` the number of rows labelled not next whose first segment has at most one word.

    BERT's published algorithm makes only such rows from a document of a single word. They are counted, so that the
    check of label balance can allow for them. `first_words` (int64[n]) is the number of words in each first segment.
    """
    counts.short_negatives += int(np.count_nonzero((block.label == 1) & (first_words <= 1)))
