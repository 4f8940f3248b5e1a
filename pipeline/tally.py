"""Counts (tallies) that travel with the data through the build into the manifest and the report.

Beam metrics are not used, because their names differ between runners, and some runners have none. Tallies merge in any
order to the same result, so the counts do not depend on how the work was divided.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline import storage
from pipeline.dataset import Shard, SplitName
from pipeline.documents import TextLoss

NUM_EXAMPLES = 5
WORD_PIECES = 8
"""Words of this many pieces and longer words are counted together."""
LENGTH_BITS = 40
_DROP_EXAMPLES = 3
NAMED = {"page_over_budget": 1_000}
"""Maps some reasons of drops or notes to the number of examples kept. For all other reasons, the number is
_DROP_EXAMPLES."""
_BY_SOURCE = ("documents", "sentences", "characters", "unknown_characters", "long_words", "clause_characters")
_SCRIPTS_BY_SOURCE = ("marks", "lost_marks", "letters")

_ARRAYS = ("lengths", "token_counts", "text_at", "masked_at", "text_by_pieces", "masked_by_pieces", "document_lengths")

Counts = npt.NDArray[np.int64]


@dataclass(slots=True)
class ReadTally:
    """Holds the counts of what was read. A source is an index into the config's sources. By source, it counts
    documents, sentences, characters, text that the model will not see (such as [UNK]), and drops (items left out, by
    reason)."""

    documents: Counter[int] = field(default_factory=Counter)
    sentences: Counter[int] = field(default_factory=Counter)
    characters: Counter[int] = field(default_factory=Counter)
    unknown_characters: Counter[int] = field(default_factory=Counter)
    """How many characters of each source are in words or pieces of words that became [UNK]."""
    long_words: Counter[int] = field(default_factory=Counter)
    """How many words of each source became [UNK] because they are too long for the tokenizer."""
    clause_characters: Counter[int] = field(default_factory=Counter)
    """How many characters of each source are in words so long that they are clauses (documents.CLAUSE_CHARACTERS)."""
    marks: dict[int, Counter[str]] = field(default_factory=dict)
    """The number of marks (vowel signs, tones) by source and script. Only scripts that lose marks are listed."""
    lost_marks: dict[int, Counter[str]] = field(default_factory=dict)
    """The number of marks that the tokenizer's normalizer removed, by source and script."""
    letters: dict[int, Counter[str]] = field(default_factory=dict)
    """The number of all letters and marks, by source and script, for the same scripts as in `marks`."""
    drops: dict[int, Counter[str]] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)
    """The number of notes (events that are counted although nothing is left out), by reason."""
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """A few examples, as pairs (name, detail), for each reason of drops and notes."""
    rejects: list[str] = field(default_factory=list)
    """The paths of files with the documents left out, if these are kept (pipeline/cleaning/rejects.py)."""

    def count_drop(self, reason: str, *, source: int, name: str, detail: str) -> None:
        """Count one item (document, page, sentence) that was left out for `reason`. Keep it as an example if its name
        is one of the first few for this reason in alphabetical order. `source` is an index into the config's sources.
        `name` says where the item is, and `detail` shows the item or a value that was measured on it."""
        self.drops.setdefault(source, Counter())[reason] += 1
        self._add_examples(reason, [(name, detail)])

    def count_loss(self, loss: TextLoss, *, source: int) -> None:
        """Add `loss`, which counts what of a document the model will not see, for example because it becomes [UNK].
        `source` is an index into the config's sources."""
        self.unknown_characters[source] += loss.unknown_characters
        self.long_words[source] += loss.long_words
        self.clause_characters[source] += loss.clause_characters
        if loss.letters:
            self.marks.setdefault(source, Counter()).update(loss.marks)
            self.lost_marks.setdefault(source, Counter()).update(loss.lost_marks)
            self.letters.setdefault(source, Counter()).update(loss.letters)

    def count_note(self, reason: str, *, name: str, detail: str, count: int = 1) -> None:
        """Count notes (events such as a guessed encoding, by which nothing is left out). `count` says how many notes
        there are. Keep one note as an example if its name is one of the first few for this reason in alphabetical
        order."""
        self.notes[reason] += count
        self._add_examples(reason, [(name, detail)])

    def merge(self, other: ReadTally) -> None:
        """Add the counts of the tally `other` to this tally."""
        self.documents += other.documents
        self.sentences += other.sentences
        self.characters += other.characters
        self.unknown_characters += other.unknown_characters
        self.long_words += other.long_words
        self.clause_characters += other.clause_characters
        for name in ("drops", *_SCRIPTS_BY_SOURCE):
            own: dict[int, Counter[str]] = getattr(self, name)
            for source, counts in getattr(other, name).items():
                own[source] = own.get(source, Counter()) + counts
        self.notes += other.notes
        for reason, examples in other.examples.items():
            self._add_examples(reason, examples)
        self.rejects = sorted([*self.rejects, *other.rejects])

    def count_reasons(self) -> dict[str, int]:
        """Return, by reason, the number of items left out, summed over all sources."""
        return dict(sorted(sum(self.drops.values(), Counter()).items()))

    def _add_examples(self, reason: str, examples: Iterable[tuple[str, str]]) -> None:
        self.examples[reason] = sorted({*self.examples.get(reason, ()), *examples})[: NAMED.get(reason, _DROP_EXAMPLES)]


@dataclass(frozen=True, slots=True, order=True)
class Example:
    """A row that the report may show, with its first mask set. `key` is a random number, and the rows with the lowest
    keys are shown."""

    key: int
    input_ids: tuple[int, ...]
    first_length: int
    label: int | None
    masked_positions: tuple[int, ...]
    masked_inputs: tuple[int, ...]


def lowest_examples(examples: Iterable[Example]) -> list[Example]:
    """For each next-sentence label, choose the NUM_EXAMPLES examples (rows that the report may show) with the lowest
    keys, which are random numbers. Return all chosen examples in one list, in order of key."""
    found: dict[int | None, list[Example]] = {}
    for example in sorted(examples):
        found.setdefault(example.label, []).append(example)
    return sorted(example for same in found.values() for example in same[:NUM_EXAMPLES])


def choose_examples(examples: Sequence[Example]) -> list[Example]:
    """Choose up to NUM_EXAMPLES of the rows in `examples` for the report, and return them in the order that they have
    in `examples`.

    The first two examples of each next-sentence label are chosen, or one if the label has only one. The rest are the
    first of the examples not chosen yet.
    """
    order = {id(example): place for place, example in enumerate(examples)}
    labels = {example.label for example in examples}
    sure = [example for label in labels for example in [each for each in examples if each.label == label][:2]]
    rest = [example for example in examples if id(example) not in {id(each) for each in sure}]
    chosen = [*sure, *rest][:NUM_EXAMPLES]
    return sorted(chosen, key=lambda example: order[id(example)])


@dataclass(slots=True)
class RowTally:
    """Holds the counts of one part of the data set (train or validation)."""

    lengths: Counts
    """int64[max_seq_length + 1]: entry n is the number of rows with n tokens."""
    token_counts: Counts
    """int64[vocabulary size]: how often each token id occurs in input_ids, special tokens included."""
    text_at: Counts = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64[max_seq_length]: the number of rows with a token of text (neither [CLS] nor a closing [SEP]) at each
    position."""
    masked_at: Counts = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64[max_seq_length]: the number of masked tokens at each position of a row, over all mask sets."""
    text_by_pieces: Counts = field(default_factory=lambda: np.zeros(WORD_PIECES + 1, np.int64))
    """int64[WORD_PIECES + 1]: entry n is the number of tokens of text whose word has n tokens. The last entry also
    counts tokens of longer words."""
    masked_by_pieces: Counts = field(default_factory=lambda: np.zeros(WORD_PIECES + 1, np.int64))
    """int64[WORD_PIECES + 1]: entry n is the number of masked tokens whose word has n tokens (the last entry: or more),
    over all mask sets."""
    document_lengths: Counts = field(default_factory=lambda: np.zeros(LENGTH_BITS, np.int64))
    """int64[LENGTH_BITS]: the number of documents by size. Entry b counts documents of 2^(b-1) to 2^b - 1 tokens."""
    documents: int = 0
    document_tokens: int = 0
    words: int = 0
    sentences: int = 0
    unknown: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    """The number of rows by next-sentence label. The key -1 counts rows without a label."""
    source_rows: Counter[int] = field(default_factory=Counter)
    """The number of rows by the source of their first segment, an index into PipelineConfig.source_names."""
    source_tokens: Counter[int] = field(default_factory=Counter)
    """The number of tokens in rows, special tokens included, by the source of the rows' first segment (the same index
    as in source_rows)."""
    shortcuts: dict[str, Counter[int]] = field(default_factory=dict)
    """What each shortcut (a rule that guesses the next-sentence label without looking at the text) has counted. See
    pipeline/instances/shortcuts.py.
    """
    masked: int = 0
    """The number of masked positions, over all mask sets."""
    masked_as: Counter[str] = field(default_factory=Counter)
    """The number of masked positions by what the model gets: [MASK] ("mask"), the same token ("kept") or another token
    ("random")."""
    examples: list[Example] = field(default_factory=list)
    repeated_lines: Counter[str] = field(default_factory=Counter)
    """How often each line that repeats all over a shard occurs there, by the text of the line
    (pipeline/instances/repeated_lines.py)."""
    repeated_in: Counter[str] = field(default_factory=Counter)
    """How many documents have each line in `repeated_lines`, by the text of the line."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.lengths.sum())

    @property
    def tokens(self) -> int:
        """The number of tokens in all rows, special tokens included."""
        return int(self.lengths @ np.arange(self.lengths.size))

    def add_shortcuts(self, counts: Mapping[str, Counter[int]]) -> None:
        """Add `counts` to the field `shortcuts`. `counts` maps each shortcut (a rule that guesses the next-sentence
        label) to its counts over further rows."""
        for rule, found in counts.items():
            self.shortcuts.setdefault(rule, Counter()).update(found)

    def merge(self, other: RowTally) -> None:
        """Add the counts of the tally `other` to this tally, and keep those examples (rows for the report) of both
        tallies that have the lowest keys."""
        examples = lowest_examples([*self.examples, *other.examples])
        self.add_shortcuts(other.shortcuts)
        for entry in fields(self):
            if entry.name != "shortcuts":
                setattr(self, entry.name, _add(getattr(self, entry.name), getattr(other, entry.name)))
        self.examples = examples


@dataclass(slots=True)
class BuildResult:
    """The result of writing the shards of a build. `shards` has the shards' entries in the manifest, and `tallies` has
    the counts of the rows of train and of validation."""

    shards: list[Shard]
    tallies: dict[SplitName, RowTally]
    left_out: ReadTally = field(default_factory=ReadTally)
    """The counts of what was left out after reading: duplicates and near duplicates, which are found only then."""

    def count_labels(self) -> Counter[int]:
        """Return the number of rows of the whole data set by next-sentence label (-1 for rows without a label)."""
        return sum((tally.labels for tally in self.tallies.values()), Counter())

    def unknown_share(self) -> float:
        """Return the share of [UNK] among the tokens of all documents, or 0 if there are no tokens."""
        tokens = sum(tally.document_tokens for tally in self.tallies.values())
        return sum(tally.unknown for tally in self.tallies.values()) / max(1, tokens)


def merge_reads(tallies: Iterable[ReadTally]) -> ReadTally:
    """Return the sum of `tallies`. If there are no tallies, all its counts are zero."""
    total = ReadTally()
    for tally in tallies:
        total.merge(tally)
    return total


def merge_results(results: Iterable[BuildResult]) -> BuildResult:
    """Return one build result that joins all `results`. Its shards are in order of path."""
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
    """Return the statistics of one part of the data set (train or validation), as a dict for the manifest. Rates are
    fractions, or None if nothing was counted.

    `tally` has the counts of the rows, and `mask_sets` is the number of mask sets of each row.
    """
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
    """Return `result` as JSON data, from which results_from_tree makes an equal result."""
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
    """Return the build result that results_to_tree turned into the JSON data `tree`. `folder` is the folder of the
    files of rejects (documents left out)."""
    shards = [Shard.model_validate_json(json.dumps(shard)) for shard in tree["shards"]]
    tallies = {split: _rows_from_tree(rows) for split, rows in tree["rows"].items()}
    return BuildResult(shards, tallies, reads_from_tree(tree["left_out"], folder=folder))


def reads_to_tree(tally: ReadTally) -> dict[str, Any]:
    """Return `tally` as JSON data, from which reads_from_tree makes an equal tally. Of the files of rejects (documents
    left out), only the names are stored, not the folder."""
    return {**_fields(tally), "rejects": [Path(run).name for run in tally.rejects]}


def reads_from_tree(tree: dict[str, Any], *, folder: str | Path) -> ReadTally:
    """Return the tally that reads_to_tree turned into the JSON data `tree`. `folder` is the folder of the files of
    rejects (documents left out)."""
    rejects = [storage.join(folder, name) for name in tree["rejects"]]
    by_source: dict[str, Any] = {name: Counter({int(key): n for key, n in tree[name].items()}) for name in _BY_SOURCE}
    examples = {reason: [(name, detail) for name, detail in found] for reason, found in tree["examples"].items()}
    drops = {int(source): Counter(counts) for source, counts in tree["drops"].items()}
    by_script: dict[str, Any] = {
        name: {int(source): Counter(counts) for source, counts in tree[name].items()} for name in _SCRIPTS_BY_SOURCE
    }
    return ReadTally(
        **by_source, **by_script, drops=drops, notes=Counter(tree["notes"]), examples=examples, rejects=rejects
    )


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
    shortcuts = {
        rule: Counter({int(code): count for code, count in found.items()})
        for rule, found in tree.pop("shortcuts").items()
    }
    return RowTally(**tree, **counters, examples=examples, shortcuts=shortcuts)


def _add(one: Any, other: Any) -> Any:
    """Return the sum of `one` and `other`, the values that a field has in two tallies. An empty array counts as
    zeros."""
    if isinstance(one, np.ndarray) and not (one.size and other.size):
        return one if one.size else other
    return one + other


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def join_paths(parts: Iterable[list[str]]) -> list[str]:
    """Return one list with the paths of all lists in `parts`."""
    return [path for part in parts for path in part]
