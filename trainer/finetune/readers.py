"""Examples out of a task's files, one reader for each published format.

A row that is not as the format has it is refused with its place; only a label may be missing, in the test splits.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pipeline import storage
from pipeline.storage import Location
from trainer.finetune.config import Columns
from trainer.finetune.examples import ChoiceExample, Example, Question, TaggedExample, TaskDataError, TextExample
from trainer.finetune.tables import Row, read_json, read_table, read_text, take, to_json
from trainer.finetune.tasks import Task
from trainer.finetune.values import is_missing, to_answers, to_class, to_list, to_number, to_place, to_text

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
    place, columns = row[0], task.columns
    pair = task.kind == "pair" or _has_second(row, task=task)
    second = _take_text(row, columns.second) if pair else None
    label: str | float | None = None
    if labelled or columns.label.partition(".")[0] in row[1]:
        value = _take_deep(row, columns.label)
        if labelled or not _is_hidden(value, task=task):
            name = columns.label
            if task.kind == "regression":
                label = to_number(value, place=place, name=name, bounds=task.bounds)
            else:
                label = to_class(value, place=place, name=name, labels=task.labels)
    return TextExample(_take_id(row, task=task, number=number), _take_text(row, columns.first), second, label)


def _is_hidden(value: Any, *, task: Task) -> bool:
    """Return whether a test file hides its label: by nothing, or by -1, as the Hub's copies of GLUE do."""
    return is_missing(value) or (bool(task.labels or task.bounds) and str(value) in ("-1", "-1.0"))


def _has_second(row: Row, *, task: Task) -> bool:
    second = task.columns.second
    return task.kind == "regression" and (second in row[1] or second != Columns().second)


def _take_text(row: Row, column: str) -> str:
    return to_text(take(row, column), place=row[0], name=column)


def _take_id(row: Row, *, task: Task, number: int) -> str:
    column = task.columns.id
    if column is None or (column not in row[1] and task.name != task.kind):  # GLUE's train files have no index
        return str(number)
    return to_text(str(take(row, column)), place=row[0], name=column)


def _take_deep(row: Row, column: str) -> Any:
    outer, _, inner = column.partition(".")
    value = take(row, outer)
    return take((f"{row[0]}, {outer}", value), inner) if inner else value


def _to_tagged(row: Row, *, task: Task, number: int, labelled: bool) -> TaggedExample:
    columns, label = task.columns, task.columns.label
    units = to_list(take(row, columns.first), place=row[0], name=columns.first)
    labels = None
    if labelled or not is_missing(row[1].get(label)):
        labels = to_list(take(row, label), place=row[0], name=label)
    if labels is not None and len(labels) != len(units):
        raise TaskDataError(f"{row[0]}: has {len(units)} words and {len(labels)} labels; give one label a word")
    return TaggedExample(_take_id(row, task=task, number=number), units, labels)


def _to_question(row: Row, *, task: Task, number: int, labelled: bool) -> Question:
    place, columns = row[0], task.columns
    context = _take_text(row, columns.first)
    answers: tuple[tuple[str, int], ...] | None = None
    if labelled or columns.label in row[1]:
        value = take(row, columns.label)
        if isinstance(value, Mapping):
            answers = _to_hub_answers(value, place=place, context=context)
        else:
            answers = to_answers(value, take(row, columns.start), place=place, context=context)
    return Question(_take_id(row, task=task, number=number), _take_text(row, columns.second), context, answers)


def _to_hub_answers(value: Mapping[str, Any], *, place: str, context: str) -> tuple[tuple[str, int], ...]:
    """Return the answers of {text: [...], answer_start: [...]}, as the Hub has SQuAD."""
    row = (f"{place}, answers", value)
    return to_answers(take(row, "text"), take(row, "answer_start"), place=place, context=context)


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
        label = to_place(value)
        if (label is None or label >= len(names)) and (labelled or not is_missing(value)):
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
            rating, text = to_place(take(row, "rating")), _take_text(row, "review")
            if rating is None:
                raise TaskDataError(f"{row[0]}: rating is {review['rating']!r}, no number; mend or remove the row")
            if NSMC_NEGATIVE < rating < NSMC_POSITIVE or not text.strip():
                continue
            label = "1" if rating >= NSMC_POSITIVE else "0"
            yield TextExample(str(take(row, "review_id")), text, None, label)


def _read_reviews(path: Location) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    for place, content in _read_members(path) if ".tar" in str(path) else [(str(path), read_json(path))]:
        if not isinstance(content, list) or not all(isinstance(each, Mapping) for each in content):
            raise TaskDataError(f"{place}: is no list of objects, as the reviews of a film are; copy the file again")
        yield place, content


def _read_members(path: Location) -> Iterator[tuple[str, Any]]:
    """Yield the JSON files of a tar by their names."""
    try:
        with tarfile.open(fileobj=io.BytesIO(storage.read_bytes(path))) as archive:
            for member in sorted(archive.getmembers(), key=lambda each: each.name):
                content = archive.extractfile(member)
                if content is not None and member.name.endswith(".json"):
                    place = f"{path}/{member.name}"
                    yield place, to_json(content.read(), place=place)
    except tarfile.TarError as error:
        raise TaskDataError(f"{path}: is damaged or no tar; copy it again") from error


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
    for number, article in enumerate(_take_objects(read_json(path), "data", place=str(path))):
        place = f"{path} article {number}"
        if "paragraphs" not in article:  # a question with its context, as the Hub's copy of SQuAD has them
            yield _to_answered(article, context=article.get("context"), path=path, split=split)
            continue
        for paragraph in _take_objects(article, "paragraphs", place=place):
            for entry in _take_objects(paragraph, "qas", place=place):
                yield _to_answered(entry, context=paragraph.get("context"), path=path, split=split)


def _take_objects(tree: Any, key: str, *, place: str) -> list[Mapping[str, Any]]:
    found = tree.get(key) if isinstance(tree, Mapping) else None
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise TaskDataError(f"{place}: is not laid out as SQuAD: {key} is no list of objects; copy the file again")
    return found


def _to_answered(entry: Mapping[str, Any], *, context: Any, path: Location, split: str) -> Question:
    row = (f"{path} question {entry.get('id')}", entry)
    context = to_text(context, place=row[0], name="context")
    given = entry.get("answers")
    answers: tuple[tuple[str, int], ...] | None = None
    if isinstance(given, Mapping):
        answers = _to_hub_answers(given, place=row[0], context=context)
    elif given is not None:
        listed = _take_objects(entry, "answers", place=row[0])
        texts, starts = ([each.get(key) for each in listed] for key in ("text", "answer_start"))
        answers = to_answers(texts, starts, place=row[0], context=context)
    elif not split.startswith("test"):
        raise TaskDataError(f"{row[0]}: has no answers; give a list, which is empty if the question has no answer")
    return Question(str(take(row, "id")), _take_text(row, "question"), context, answers)


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
