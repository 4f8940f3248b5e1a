"""A task's examples: train, dev and test as the files have them, or split by hash if there is only one file.

In a split by hash, an example's side depends on its text alone: equal texts, and all questions to one context, are on
one side, and stay there when examples are added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch

from pipeline import draws, storage
from pipeline.console import Say
from pipeline.storage import Location, locate
from trainer.finetune import readers
from trainer.finetune.config import FinetuneConfig
from trainer.finetune.examples import ChoiceExample, Example, Question, TaggedExample, TaskDataError
from trainer.finetune.tables import COMPRESSED
from trainer.finetune.tasks import Task

SPLIT_SEED = 0
"""Of the split by hash: the same for all seeds of a run, so that their results compare."""


@dataclass(frozen=True, slots=True)
class Splits:
    """Examples by split, in the order of the files."""

    train: tuple[Example, ...]
    evaluated: Mapping[str, tuple[Example, ...]]
    """dev first; dev-mm, test, test-mm as far as there are."""
    by_hash: bool
    """Whether train and dev are parts of one file."""


def read_splits(task: Task, *, config: FinetuneConfig, say: Say) -> Splits:
    """Read all files of a task. TaskDataError if there is nothing to train or to evaluate on."""
    folder = locate(config.data)
    found = {split: find_files(task, folder=folder, split=split) for split in task.files}
    read = {
        split: tuple(_read(paths, task=task, split=split)) for split, paths in found.items() if paths and split != "all"
    }
    if not {"train", "dev"} & read.keys() and found.get("all"):
        read["dev"] = tuple(_read(found["all"], task=task, split="all"))
        found["dev"] = found["all"]
    for split, examples in read.items():
        if not any(example.units if isinstance(example, TaggedExample) else True for example in examples):
            raise TaskDataError(f"{found[split][0]}: holds no example; copy the file again")
    refuse_other_counts({base_names(found[split]): examples for split, examples in read.items()})
    if "train" in read and "dev" in read:
        names = [split for split in ("dev", "dev-mm", "test", "test-mm") if split in read]
        return Splits(read["train"], {split: read[split] for split in names}, by_hash=False)
    alone = "train" if "train" in read else "dev"
    if alone not in read:
        patterns = sorted({pattern for group in task.files.values() for pattern in group})
        raise TaskDataError(
            f"{folder}: holds no file of task={config.task}; it has files named {', '.join(patterns)} "
            f"(or with {', '.join(COMPRESSED)} behind)"
        )
    train, dev = divide(read[alone], share=config.dev_share)
    if not train or not dev:
        raise TaskDataError(f"{found[alone][0]}: {len(read[alone])} examples are too few to be split; give more")
    say(
        f"{base_names(found[alone])} is the one file of {config.task} here: {len(train)} of its examples are for "
        f"training, {len(dev)} are held out, by a hash of their texts; results compare only with results of this split"
    )
    evaluated = {"dev": dev} | {split: read[split] for split in read if split.startswith("test")}
    return Splits(train, evaluated, by_hash=True)


def refuse_other_counts(examples: Mapping[str, Sequence[Example]]) -> None:
    """Raise TaskDataError if examples have other numbers of choices than the first, which no batch can hold.

    `examples` are those of each split by the names of its files.
    """
    first: ChoiceExample | None = None
    for names, each in examples.items():
        for example in each:
            if not isinstance(example, ChoiceExample):
                return
            first = first or example
            if len(example.choices) != len(first.choices):
                raise TaskDataError(
                    f"{names}, example {example.id}: has {len(example.choices)} choices, the first example has "
                    f"{len(first.choices)}; give all the same number, or name them in columns.choices"
                )


def divide(examples: Sequence[Example], *, share: float) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Examples to train on and those held out, about `share` of all."""
    limit = share * 2.0**64
    held = [draws.key(SPLIT_SEED, "split", shared_text(example)) < limit for example in examples]
    train = tuple(example for example, out in zip(examples, held, strict=True) if not out)
    return train, tuple(example for example, out in zip(examples, held, strict=True) if out)


def shared_text(example: Example) -> str:
    """Return the text that an example may share with others: the context of a question, the first of two texts."""
    if isinstance(example, Question):
        return example.context
    if isinstance(example, TaggedExample):
        return example.separator.join(example.units)
    return example.first


def find_files(task: Task, *, folder: Location, split: str) -> list[Location]:
    """The files of a split: all that fit the first pattern that any fits, by name."""
    names = sorted(storage.list_names(folder))
    for pattern in task.files[split]:
        fitting = [name for name in names if any(fnmatch(name, pattern + end) for end in ("", *COMPRESSED))]
        if fitting:
            return [locate(folder, name) for name in fitting]
    return []


def base_names(paths: Sequence[Location]) -> str:
    """File names for people."""
    return ", ".join(storage.base_name(path) for path in paths)


def _read(paths: Sequence[Location], *, task: Task, split: str) -> Iterator[Example]:
    """Read all files of a split. If an id occurs in several files, all ids begin with the name of their file."""
    files = {storage.base_name(path): list(readers.read_examples(path, task=task, split=split)) for path in paths}
    ids = [{example.id for example in examples} for examples in files.values()]
    if task.kind == "qa":  # predictions are by id
        for (name, examples), own in zip(files.items(), ids, strict=True):
            if len(own) < len(examples):
                twice = Counter(example.id for example in examples).most_common(1)[0][0]
                raise TaskDataError(f"{name}: has two questions with the id {twice!r}; give each its own")
    repeated = sum(map(len, ids)) > len(set().union(*ids))
    for name, examples in files.items():
        yield from (replace(example, id=f"{name}:{example.id}") if repeated else example for example in examples)
