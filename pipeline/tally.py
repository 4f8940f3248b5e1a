"""Counts that travel with the data through the build into the manifest and the report.

Beam metrics are not used: their names differ between runners, and some runners have none. Tallies merge in any order to
the same result, so that it depends on neither workers nor bundles.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline import storage
from pipeline.dataset import Shard, SplitName

NUM_EXAMPLES = 5
WORD_PIECES = 8
"""Words with this many pieces or more are counted together."""
LENGTH_BITS = 40
_DROP_EXAMPLES = 3
NAMED = {"page_over_budget": 1_000}
"""Number of examples kept for a reason, if not _DROP_EXAMPLES."""
_BY_SOURCE = ("documents", "sentences", "characters")

_ARRAYS = ("lengths", "token_counts", "text_at", "masked_at", "text_by_pieces", "masked_by_pieces", "document_lengths")

Counts = npt.NDArray[np.int64]


@dataclass(slots=True)
class ReadTally:
    """Counts of reading by source: documents, sentences, characters, drops by reason; notes and examples of all."""

    documents: Counter[int] = field(default_factory=Counter)
    sentences: Counter[int] = field(default_factory=Counter)
    characters: Counter[int] = field(default_factory=Counter)
    drops: dict[int, Counter[str]] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)
    """Notes, which leave nothing out, by reason."""
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """A few (name, detail) for each reason of drops and notes."""
    rejects: list[str] = field(default_factory=list)
    """Files with the documents left out, if these are kept (pipeline/cleaning/rejects.py)."""

    def count_drop(self, reason: str, *, source: int, name: str, detail: str) -> None:
        """Count one item that was left out."""
        self.drops.setdefault(source, Counter())[reason] += 1
        self._add_examples(reason, [(name, detail)])

    def count_note(self, reason: str, *, name: str, detail: str) -> None:
        """Count one note."""
        self.notes[reason] += 1
        self._add_examples(reason, [(name, detail)])

    def merge(self, other: ReadTally) -> None:
        """Add another tally to this one."""
        self.documents += other.documents
        self.sentences += other.sentences
        self.characters += other.characters
        for source, drops in other.drops.items():
            self.drops[source] = self.drops.get(source, Counter()) + drops
        self.notes += other.notes
        for reason, examples in other.examples.items():
            self._add_examples(reason, examples)
        self.rejects = sorted([*self.rejects, *other.rejects])

    def count_reasons(self) -> dict[str, int]:
        """Drops by reason, over all sources."""
        return dict(sorted(sum(self.drops.values(), Counter()).items()))

    def _add_examples(self, reason: str, examples: Iterable[tuple[str, str]]) -> None:
        self.examples[reason] = sorted({*self.examples.get(reason, ()), *examples})[: NAMED.get(reason, _DROP_EXAMPLES)]


@dataclass(frozen=True, slots=True, order=True)
class Example:
    """A row shown in the report. `key` is a random rank: the rows with the lowest keys are shown."""

    key: int
    input_ids: tuple[int, ...]
    first_length: int
    label: int | None
    masked_positions: tuple[int, ...]
    masked_inputs: tuple[int, ...]


def lowest_examples(examples: Iterable[Example]) -> list[Example]:
    """For each label the NUM_EXAMPLES with the lowest keys; all in order of key."""
    found: dict[int | None, list[Example]] = {}
    for example in sorted(examples):
        found.setdefault(example.label, []).append(example)
    return sorted(example for same in found.values() for example in same[:NUM_EXAMPLES])


def choose_examples(examples: Sequence[Example]) -> list[Example]:
    """Choose NUM_EXAMPLES to show: two of each label if possible, then the first others; in the given order."""
    order = {id(example): place for place, example in enumerate(examples)}
    labels = {example.label for example in examples}
    sure = [example for label in labels for example in [each for each in examples if each.label == label][:2]]
    rest = [example for example in examples if id(example) not in {id(each) for each in sure}]
    chosen = [*sure, *rest][:NUM_EXAMPLES]
    return sorted(chosen, key=lambda example: order[id(example)])


@dataclass(slots=True)
class RowTally:
    """Counts of one part of the set (train or validation)."""

    lengths: Counts
    """int64[max_seq_length + 1]: rows by number of tokens."""
    token_counts: Counts
    """int64[vocabulary size]: occurrences of each id in input_ids, specials included."""
    text_at: Counts = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64[max_seq_length]: rows with a token of text (neither [CLS] nor a closing [SEP]) at each position."""
    masked_at: Counts = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64[max_seq_length]: targets at each position, over all mask sets."""
    text_by_pieces: Counts = field(default_factory=lambda: np.zeros(WORD_PIECES + 1, np.int64))
    """int64[WORD_PIECES + 1]: tokens of text in rows by the pieces of their word; the last entry: or more."""
    masked_by_pieces: Counts = field(default_factory=lambda: np.zeros(WORD_PIECES + 1, np.int64))
    """int64[WORD_PIECES + 1]: targets by the pieces of their word, over all mask sets."""
    document_lengths: Counts = field(default_factory=lambda: np.zeros(LENGTH_BITS, np.int64))
    """int64[LENGTH_BITS]: documents by bit length of their number of tokens: entry b counts 2^(b-1) to 2^b - 1."""
    documents: int = 0
    document_tokens: int = 0
    words: int = 0
    sentences: int = 0
    unknown: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    """Rows by next-sentence label; -1: no label."""
    source_rows: Counter[int] = field(default_factory=Counter)
    """Rows by index into PipelineConfig.source_names."""
    source_tokens: Counter[int] = field(default_factory=Counter)
    """Tokens in rows, specials included, by the same index."""
    masked: int = 0
    """Positions to predict, over all mask sets."""
    masked_as: Counter[str] = field(default_factory=Counter)
    """The same by what is shown: the mask token ("mask"), the token itself ("kept"), or another one ("random")."""
    examples: list[Example] = field(default_factory=list)
    repeated_lines: Counter[str] = field(default_factory=Counter)
    """Occurrences of the lines that repeat all over a shard, by text (pipeline/instances/repeated_lines.py)."""
    repeated_in: Counter[str] = field(default_factory=Counter)
    """Documents with each of those lines."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.lengths.sum())

    @property
    def tokens(self) -> int:
        """Tokens in all rows, specials included."""
        return int(self.lengths @ np.arange(self.lengths.size))

    def merge(self, other: RowTally) -> None:
        """Add another tally to this one."""
        examples = lowest_examples([*self.examples, *other.examples])
        for entry in fields(self):
            setattr(self, entry.name, _add(getattr(self, entry.name), getattr(other, entry.name)))
        self.examples = examples


@dataclass(slots=True)
class BuildResult:
    """Result of the second half of a build."""

    shards: list[Shard]
    tallies: dict[SplitName, RowTally]
    left_out: ReadTally = field(default_factory=ReadTally)
    """Duplicates and near duplicates: they are found after reading."""

    def count_labels(self) -> Counter[int]:
        """Rows of the whole set by next-sentence label."""
        return sum((tally.labels for tally in self.tallies.values()), Counter())


def merge_reads(tallies: Iterable[ReadTally]) -> ReadTally:
    """Sum of tallies; zeros if there are none."""
    total = ReadTally()
    for tally in tallies:
        total.merge(tally)
    return total


def merge_results(results: Iterable[BuildResult]) -> BuildResult:
    """Merge results into one, with the shards in order of path."""
    total = BuildResult([], {})
    for result in results:
        total.shards += result.shards
        total.left_out.merge(result.left_out)
        for split, tally in result.tallies.items():
            if split in total.tallies:
                total.tallies[split].merge(tally)
            else:
                merged = RowTally(np.zeros_like(tally.lengths), np.zeros_like(tally.token_counts))
                merged.merge(tally)
                total.tallies[split] = merged
    total.shards.sort(key=lambda shard: shard.path)
    return total


def summarize_rows(tally: RowTally, *, mask_sets: int, max_seq_length: int) -> dict[str, Any]:
    """The manifest's statistics of one part of the set; rates are fractions, None if nothing was counted."""
    labelled = tally.labels[0] + tally.labels[1]
    return {
        "documents": tally.documents,
        "sentences": tally.sentences,
        "words": tally.words,
        "document_tokens": tally.document_tokens,
        "rows": tally.rows,
        "tokens": tally.tokens,
        "mean_length": _rate(tally.tokens, tally.rows),
        "fill": _rate(tally.tokens, tally.rows * max_seq_length),
        "not_next_rate": _rate(tally.labels[1], labelled),
        "mask_rate": _rate(tally.masked, tally.tokens * mask_sets),
        "masked_as": {kind: tally.masked_as[kind] for kind in ("mask", "kept", "random")},
        "unknown_rate": _rate(tally.unknown, tally.document_tokens),
        "lengths": tally.lengths.tolist(),
    }


def results_to_tree(result: BuildResult) -> dict[str, Any]:
    """JSON that results_from_tree reads back."""
    tree = {
        "left_out": reads_to_tree(result.left_out),
        "shards": [shard.model_dump(mode="json") for shard in result.shards],
        "rows": {split: _fields(rows) for split, rows in result.tallies.items()},
    }
    plain: dict[str, Any] = json.loads(
        json.dumps(tree, default=lambda leaf: _fields(leaf) if isinstance(leaf, Example) else leaf.tolist())
    )
    return plain


def _fields(data: ReadTally | RowTally | Example) -> dict[str, Any]:
    return {entry.name: getattr(data, entry.name) for entry in fields(data)}


def results_from_tree(tree: dict[str, Any], *, folder: str | Path) -> BuildResult:
    """Inverse of results_to_tree; the files of rejects are in `folder`."""
    shards = [Shard.model_validate_json(json.dumps(shard)) for shard in tree["shards"]]
    tallies = {split: _rows_from_tree(rows) for split, rows in tree["rows"].items()}
    return BuildResult(shards, tallies, reads_from_tree(tree["left_out"], folder=folder))


def reads_to_tree(tally: ReadTally) -> dict[str, Any]:
    """JSON that reads_from_tree reads back; files of rejects are stored by name, without their folder."""
    return {**_fields(tally), "rejects": [Path(run).name for run in tally.rejects]}


def reads_from_tree(tree: dict[str, Any], *, folder: str | Path) -> ReadTally:
    """Inverse of reads_to_tree; the files of rejects are in `folder`."""
    rejects = [storage.join(folder, name) for name in tree["rejects"]]
    by_source = {name: Counter({int(key): n for key, n in tree[name].items()}) for name in _BY_SOURCE}
    examples = {reason: [(name, detail) for name, detail in found] for reason, found in tree["examples"].items()}
    drops = {int(source): Counter(counts) for source, counts in tree["drops"].items()}
    return ReadTally(**by_source, drops=drops, notes=Counter(tree["notes"]), examples=examples, rejects=rejects)


def _rows_from_tree(tree: dict[str, Any]) -> RowTally:
    tree.update({name: np.array(tree[name], np.int64) for name in _ARRAYS})
    counters: dict[str, Any] = {
        name: Counter({int(key): count for key, count in tree.pop(name).items()})
        for name in ("labels", "source_rows", "source_tokens")
    }

    def freeze(value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    examples = [Example(**{name: freeze(value) for name, value in each.items()}) for each in tree.pop("examples")]
    counters |= {name: Counter(tree.pop(name)) for name in ("masked_as", "repeated_lines", "repeated_in")}
    return RowTally(**tree, **counters, examples=examples)


def _add(one: Any, other: Any) -> Any:
    """Sum of two fields of a tally; an empty array is all zeros."""
    if isinstance(one, np.ndarray) and not (one.size and other.size):
        return one if one.size else other
    return one + other


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def join_paths(parts: Iterable[list[str]]) -> list[str]:
    """Concatenate lists of paths."""
    return [path for part in parts for path in part]
