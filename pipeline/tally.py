"""Counts that travel with the data through the build and end in the manifest and the report.

Beam metrics are not used for them: their names differ between runners and some runners have none. Every tally
merges in any order to the same result, so that it depends on neither workers nor bundles.
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
"""Words of so many pieces and more are counted together."""
LENGTH_BITS = 40
_DROP_EXAMPLES = 3
NAMED = {"page_over_budget": 1_000}
"""Skips of which so many are named one by one."""
_BY_SOURCE = ("documents", "sentences", "characters")

_ARRAYS = ("lengths", "token_counts", "text_at", "masked_at", "text_by_pieces", "masked_by_pieces", "document_lengths")
_ADDED = _ARRAYS[2:]

Counts = npt.NDArray[np.int64]


@dataclass(slots=True)
class ReadTally:
    """What reading gave: documents, sentences, characters and drops (by reason), each by index of the source."""

    documents: Counter[int] = field(default_factory=Counter)
    sentences: Counter[int] = field(default_factory=Counter)
    characters: Counter[int] = field(default_factory=Counter)
    drops: dict[int, Counter[str]] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)
    """What was noted without leaving anything out, by reason."""
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """A few (name, detail) of every reason of drops and notes."""
    rejects: list[str] = field(default_factory=list)
    """Files with documents that were left out, where they are kept (pipeline/cleaning/rejects.py)."""

    def count_drop(self, reason: str, *, source: int, name: str, detail: str) -> None:
        """Count one thing that was left out."""
        self.drops.setdefault(source, Counter())[reason] += 1
        self._add_examples(reason, [(name, detail)])

    def count_note(self, reason: str, *, name: str, detail: str) -> None:
        """Count one thing of which nothing was left out."""
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
    """One row for people to read. `key` is its random rank: the lowest ones of all shards are shown."""

    key: int
    input_ids: tuple[int, ...]
    first_length: int
    label: int | None
    masked_positions: tuple[int, ...]
    masked_inputs: tuple[int, ...]


def lowest_examples(examples: Iterable[Example]) -> list[Example]:
    """The NUM_EXAMPLES of the lowest keys of each label, in order."""
    found: dict[int | None, list[Example]] = {}
    for example in sorted(examples):
        found.setdefault(example.label, []).append(example)
    return sorted(example for same in found.values() for example in same[:NUM_EXAMPLES])


def choose_examples(examples: Sequence[Example]) -> list[Example]:
    """NUM_EXAMPLES to show: the first, and among them two of each label, where there are."""
    order = {id(example): place for place, example in enumerate(examples)}
    labels = {example.label for example in examples}
    sure = [example for label in labels for example in [each for each in examples if each.label == label][:2]]
    rest = [example for example in examples if id(example) not in {id(each) for each in sure}]
    chosen = [*sure, *rest][:NUM_EXAMPLES]
    return sorted(chosen, key=lambda example: order[id(example)])


@dataclass(slots=True)
class RowTally:
    """What one part of the set (train or validation) holds."""

    lengths: Counts
    """int64[max_seq_length + 1]: rows by number of tokens."""
    token_counts: Counts
    """int64[vocabulary size]: how often each id stands in input_ids, specials included."""
    text_at: Counts = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64[max_seq_length]: rows with a token of text (neither [CLS] nor a closing [SEP]) at each position."""
    masked_at: Counts = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64[max_seq_length]: targets at each position, over all mask sets."""
    text_by_pieces: Counts = field(default_factory=lambda: np.zeros(WORD_PIECES + 1, np.int64))
    """int64[WORD_PIECES + 1]: tokens of text in rows by the pieces of their word; the last: so many or more."""
    masked_by_pieces: Counts = field(default_factory=lambda: np.zeros(WORD_PIECES + 1, np.int64))
    """int64[WORD_PIECES + 1]: targets by the pieces of their word, over all mask sets."""
    document_lengths: Counts = field(default_factory=lambda: np.zeros(LENGTH_BITS, np.int64))
    """int64[LENGTH_BITS]: documents by binary digits of their number of tokens: entry b has 2^(b-1) to 2^b - 1."""
    documents: int = 0
    document_tokens: int = 0
    words: int = 0
    sentences: int = 0
    unknown: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    """Rows by next-sentence label; -1 where there is none."""
    source_rows: Counter[int] = field(default_factory=Counter)
    """Rows by index into PipelineConfig.source_names."""
    source_tokens: Counter[int] = field(default_factory=Counter)
    """Tokens in rows, specials included, alike."""
    masked: int = 0
    """Positions to predict, over all mask sets."""
    masked_as: Counter[str] = field(default_factory=Counter)
    """Of those: shown as the mask token ("mask"), kept ("kept"), or another token ("random")."""
    examples: list[Example] = field(default_factory=list)

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
        self.lengths = self.lengths + other.lengths
        self.token_counts = self.token_counts + other.token_counts
        for name in _ADDED:
            setattr(self, name, _add(getattr(self, name), getattr(other, name)))
        self.documents += other.documents
        self.document_tokens += other.document_tokens
        self.words += other.words
        self.sentences += other.sentences
        self.unknown += other.unknown
        self.labels += other.labels
        self.source_rows += other.source_rows
        self.source_tokens += other.source_tokens
        self.masked += other.masked
        self.masked_as += other.masked_as
        self.examples = lowest_examples([*self.examples, *other.examples])


@dataclass(slots=True)
class BuildResult:
    """Everything the second half of a build hands back."""

    shards: list[Shard]
    tallies: dict[SplitName, RowTally]
    left_out: ReadTally = field(default_factory=ReadTally)
    """Duplicates and near duplicates, which are found after reading."""

    def count_labels(self) -> Counter[int]:
        """Rows of the whole set by next-sentence label."""
        return sum((tally.labels for tally in self.tallies.values()), Counter())


def merge_reads(tallies: Iterable[ReadTally]) -> ReadTally:
    """Sum of tallies; none gives zeros."""
    total = ReadTally()
    for tally in tallies:
        total.merge(tally)
    return total


def merge_results(results: Iterable[BuildResult]) -> BuildResult:
    """One result of many: shards in order of path."""
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
    """The manifest's statistics of one part of the set; rates are shares of one, null where nothing was counted."""
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
    """What results_to_tree gave; the files of rejects lie in `folder`."""
    shards = [Shard.model_validate_json(json.dumps(shard)) for shard in tree["shards"]]
    tallies = {split: _rows_from_tree(rows) for split, rows in tree["rows"].items()}
    return BuildResult(shards, tallies, reads_from_tree(tree["left_out"], folder=folder))


def reads_to_tree(tally: ReadTally) -> dict[str, Any]:
    """JSON that reads_from_tree reads back; of the files of rejects it holds the names alone."""
    return {**_fields(tally), "rejects": [Path(run).name for run in tally.rejects]}


def reads_from_tree(tree: dict[str, Any], *, folder: str | Path) -> ReadTally:
    """What reads_to_tree gave; the files of rejects lie in `folder`."""
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
    examples = [
        Example(
            key=example["key"],
            input_ids=tuple(example["input_ids"]),
            first_length=example["first_length"],
            label=example["label"],
            masked_positions=tuple(example["masked_positions"]),
            masked_inputs=tuple(example["masked_inputs"]),
        )
        for example in tree.pop("examples")
    ]
    masked_as = Counter(tree.pop("masked_as"))
    return RowTally(**tree, **counters, masked_as=masked_as, examples=examples)


def _add(one: Counts, other: Counts) -> Counts:
    """Sum of two counts; an empty one is all zeros."""
    return one + other if one.size == other.size else (one if one.size else other)


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def join_paths(parts: Iterable[list[str]]) -> list[str]:
    """All paths in one list."""
    return [path for part in parts for path in part]
