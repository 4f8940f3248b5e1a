"""Examples out of a task's files, one reader for each published format.

A row that is not as the format has it is refused with its place; only a label may be missing, in the test splits.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pipeline import storage
from pipeline.storage import Location
from trainer.finetune.examples import ChoiceExample, Example, Question, TaggedExample, TaskDataError, TextExample
from trainer.finetune.tables import Row, read_json, read_table, read_text, take
from trainer.finetune.tasks import Task

NSMC_NEGATIVE, NSMC_POSITIVE = 4, 9
"""Ratings of 1 to 4 are negative, 9 and 10 positive, those between are left out, as NSMC's authors did."""


def read_examples(path: Location, *, task: Task, split: str) -> Iterator[Example]:
    """All examples of one file of a split."""
    yield from _READERS[task.reader](path, task, split)


def _read_table(path: Location, task: Task, split: str) -> Iterator[Example]:
    header = task.header if split not in task.headed else None
    if header is not None and read_text(path).split("\n", 1)[0].startswith("index\t"):
        header = None
    for number, row in enumerate(read_table(path, header=header)):
        yield _EXAMPLES[task.kind](row, task=task, number=number, labelled=not split.startswith("test"))


def _to_text(row: Row, *, task: Task, number: int, labelled: bool) -> TextExample:
    columns, pair = task.columns, task.kind == "pair" or _has_second(row, task=task)
    second = _take_text(row, columns.second) if pair else None
    label: str | float | None = None
    if labelled or columns.label.partition(".")[0] in row[1]:
        value = _take_deep(row, columns.label)
        label = _to_number(row, value, task=task) if task.kind == "regression" else _to_class(row, value, task=task)
    return TextExample(_take_id(row, task=task, number=number), _take_text(row, columns.first), second, label)


def _has_second(row: Row, *, task: Task) -> bool:
    return task.kind == "regression" and task.columns.second in row[1]


def _take_text(row: Row, column: str) -> str:
    value = take(row, column)
    if not isinstance(value, str):
        raise TaskDataError(f"{row[0]}: {column} is {value!r}, no text; mend the row or name another column")
    return value


def _take_id(row: Row, *, task: Task, number: int) -> str:
    column = task.columns.id
    return str(row[1][column]) if column is not None and column in row[1] else str(number)


def _take_deep(row: Row, column: str) -> Any:
    outer, _, inner = column.partition(".")
    value = take(row, outer)
    return take((f"{row[0]}, {outer}", value), inner) if inner else value


def _to_class(row: Row, value: Any, *, task: Task) -> str:
    label = str(value).strip() if not isinstance(value, bool) else str(int(value))
    if task.labels and label not in task.labels:
        raise TaskDataError(f"{row[0]}: {task.columns.label} is {label!r}, not one of {', '.join(task.labels)}")
    return label


def _to_number(row: Row, value: Any, *, task: Task) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TaskDataError(
            f"{row[0]}: {task.columns.label} is {value!r}, no number; mend or remove the row"
        ) from error


def _to_tagged(row: Row, *, task: Task, number: int, labelled: bool) -> TaggedExample:
    units = _to_list(row, task.columns.first)
    labels = _to_list(row, task.columns.label) if labelled or task.columns.label in row[1] else None
    if labels is not None and len(labels) != len(units):
        raise TaskDataError(f"{row[0]}: has {len(units)} words and {len(labels)} labels; give one label a word")
    return TaggedExample(_take_id(row, task=task, number=number), units, labels)


def _to_list(row: Row, column: str) -> tuple[str, ...]:
    value = take(row, column)
    if isinstance(value, str):
        try:
            found = json.loads(value) if value.lstrip().startswith("[") else value.split()
        except ValueError:
            found = value.split()
        value = found
    return tuple(map(str, value))


def _to_question(row: Row, *, task: Task, number: int, labelled: bool) -> Question:
    columns = task.columns
    answers: tuple[tuple[str, int], ...] | None = None
    if labelled or columns.label in row[1]:
        value = take(row, columns.label)
        if isinstance(value, Mapping):  # as the Hub has SQuAD: {text: [...], answer_start: [...]}
            answers = tuple(zip(value["text"], map(int, value["answer_start"]), strict=True))
        else:
            texts = [value] if isinstance(value, str) else list(value)
            starts = take(row, columns.start)
            starts = list(starts) if isinstance(starts, (list, tuple)) else [starts]
            answers = tuple(zip(texts, map(int, starts), strict=True))
    found = Question(
        _take_id(row, task=task, number=number),
        _take_text(row, columns.second),
        _take_text(row, columns.first),
        answers,
    )
    return _check_question(found, place=row[0])


def _check_question(found: Question, *, place: str) -> Question:
    for text, start in found.answers or ():
        if found.context[start : start + len(text)] != text:
            raise TaskDataError(
                f"{place}: answer {text!r} does not stand at character {start} of the context, there is "
                f"{found.context[start : start + len(text)]!r}; mend answer_start"
            )
    return found


def _to_choices(row: Row, *, task: Task, number: int, labelled: bool) -> ChoiceExample:
    columns = task.columns
    names = columns.choices or tuple(f"choice{index}" for index in range(len(row[1])) if f"choice{index}" in row[1])
    if len(names) < 2:
        raise TaskDataError(f"{row[0]}: has no columns choice0, choice1, ...; name two or more in columns.choices")
    before = row[1].get("sent2") if task.name == "swag" else None
    choices = tuple(f"{before} {_take_text(row, name)}" if before else _take_text(row, name) for name in names)
    label = None
    if labelled or columns.label in row[1]:
        value = take(row, columns.label)
        label = int(value) if str(value).isdecimal() else -1
        if not 0 <= label < len(names):
            raise TaskDataError(f"{row[0]}: {columns.label} is {value!r}; give a number from 0 to {len(names) - 1}")
    return ChoiceExample(_take_id(row, task=task, number=number), _take_text(row, columns.first), choices, label)


def _read_nsmc(path: Location, task: Task, split: str) -> Iterator[Example]:
    """ratings_*.txt, or the reviews of each film as they were gathered: JSON files, alone or in one tar."""
    if split != "all":
        yield from _read_table(path, task, split)
        return
    for place, reviews in _read_reviews(path):
        for number, review in enumerate(reviews):
            row = (f"{place} entry {number}", review)
            rating = int(take(row, "rating"))
            if NSMC_NEGATIVE < rating < NSMC_POSITIVE or not take(row, "review").strip():
                continue
            label = "1" if rating >= NSMC_POSITIVE else "0"
            yield TextExample(str(take(row, "review_id")), take(row, "review"), None, label)


def _read_reviews(path: Location) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    if ".tar" not in str(path):
        yield str(path), read_json(path)
        return
    with tarfile.open(fileobj=io.BytesIO(storage.read_bytes(path))) as archive:
        for member in sorted(archive.getmembers(), key=lambda each: each.name):
            content = archive.extractfile(member)
            if content is not None and member.name.endswith(".json"):
                yield f"{path}/{member.name}", json.loads(content.read())


def _read_conll(path: Location, task: Task, split: str) -> Iterator[Example]:
    """A word a line, first column; its label in the last; blank lines between sentences, -DOCSTART- left out."""
    yield from _read_columns(path, separator=None, comments=(), separated=" ")


def _read_klue_ner(path: Location, task: Task, split: str) -> Iterator[Example]:
    """A character a line and its label; comments begin with ##."""
    yield from _read_columns(path, separator="\t", comments=("##",), separated="")


def _read_columns(
    path: Location, *, separator: str | None, comments: Sequence[str], separated: str
) -> Iterator[TaggedExample]:
    units: list[str] = []
    labels: list[str] = []
    number = 0
    for line_number, line in enumerate([*read_text(path).replace("\r\n", "\n").split("\n"), ""], 1):
        if any(line.startswith(each) and "\t" not in line[: len(each) + 1] for each in comments):
            continue
        if not line.strip():
            if units and units != ["-DOCSTART-"]:
                yield TaggedExample(str(number), tuple(units), tuple(labels), separated)
                number += 1
            units, labels = [], []
            continue
        fields = line.split(separator)
        if len(fields) < 2:
            raise TaskDataError(f"{path} line {line_number}: is {line!r}; a word and its label are needed")
        units.append(fields[0])
        labels.append(fields[-1])


def _read_conllu(path: Location, task: Task, split: str) -> Iterator[Example]:
    """Words of Universal Dependencies with UPOS; lines of several words (1-2) and empty ones (1.1) are left out."""
    units: list[str] = []
    labels: list[str] = []
    number = 0
    for line_number, line in enumerate([*read_text(path).split("\n"), ""], 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            if units:
                yield TaggedExample(str(number), tuple(units), tuple(labels))
                number += 1
            units, labels = [], []
            continue
        fields = line.split("\t")
        if len(fields) != 10:
            raise TaskDataError(f"{path} line {line_number}: has {len(fields)} fields, CoNLL-U has 10")
        if fields[0].isdecimal():
            units.append(fields[1])
            labels.append(fields[3])


def _read_squad(path: Location, task: Task, split: str) -> Iterator[Example]:
    tree = read_json(path)
    try:
        for article in tree["data"]:
            if "paragraphs" not in article:  # a question with its context, as the Hub's copy of SQuAD has them
                yield _check_question(_to_answered(article, context=article["context"]), place=str(path))
            for paragraph in article.get("paragraphs", ()):
                for entry in paragraph["qas"]:
                    yield _to_answered(entry, context=paragraph["context"])
    except (KeyError, TypeError) as error:
        raise TaskDataError(f"{path}: is not laid out as SQuAD: {error} is missing; copy the file again") from error


def _to_answered(entry: Mapping[str, Any], *, context: str) -> Question:
    given = entry.get("answers")
    answers: tuple[tuple[str, int], ...] | None = None
    if isinstance(given, Mapping):
        answers = tuple(zip(given["text"], given["answer_start"], strict=True))
    elif given is not None:
        answers = tuple((one["text"], one["answer_start"]) for one in given)
    return Question(str(entry["id"]), entry["question"], context, answers)


_READERS: dict[str, Callable[[Location, Task, str], Iterator[Example]]] = {
    "table": _read_table,
    "nsmc": _read_nsmc,
    "conll": _read_conll,
    "conllu": _read_conllu,
    "klue_ner": _read_klue_ner,
    "squad": _read_squad,
}
_EXAMPLES: dict[str, Callable[..., Example]] = {
    "classification": _to_text,
    "pair": _to_text,
    "regression": _to_text,
    "tagging": _to_tagged,
    "qa": _to_question,
    "choice": _to_choices,
}
