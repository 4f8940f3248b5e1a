"""Single values of a task's files, checked: texts, classes, numbers, lists and answers.

Every error is a TaskDataError that begins with the value's place, such as `dev.tsv line 3`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from trainer.finetune.examples import TaskDataError

GREATEST = 3e38
"""Numbers beyond this are infinite in fp32."""
_WHOLE = re.compile(r"([+-]?\d+)\.0+")


def is_missing(value: Any) -> bool:
    """Return whether a table has no value here: None, NaN or an empty text."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def to_text(value: Any, *, place: str, name: str) -> str:
    """Return a text as it is."""
    if not isinstance(value, str):
        raise TaskDataError(f"{place}: {name} is {value!r}, no text; mend the row or name another column")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TaskDataError(
            f"{place}: {name} has half a character at {error.start} ({value[error.start]!r}); mend it or remove the row"
        ) from error
    return value


def to_class(value: Any, *, place: str, name: str, labels: Sequence[str]) -> str:
    """Return the name of a class. True is 1, and so is 1.0 in a column of floats. If `labels` are given, the class must
    be one of them."""
    if is_missing(value) or isinstance(value, (list, dict)):
        raise TaskDataError(f"{place}: {name} is {value!r}, no class; give it a class or remove the row")
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    label = to_text(str(value), place=place, name=name).strip()
    if not label:
        raise TaskDataError(f"{place}: {name} is {value!r}, no class; give it a class or remove the row")
    if labels and label not in labels:
        whole = _WHOLE.fullmatch(label)
        if whole is not None and whole[1] in labels:
            return whole[1]
        raise TaskDataError(f"{place}: {name} is {label!r}, not one of {', '.join(labels)}; mend or remove the row")
    if re.search(r"[\t\r\n]", label):
        raise TaskDataError(f"{place}: {name} is {label!r}; take the tab or line break out of the name of the class")
    return label


def to_number(value: Any, *, place: str, name: str, bounds: tuple[float, float] | None) -> float:
    """Return a finite number, inside `bounds` if they are given."""
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise TaskDataError(f"{place}: {name} is {value!r}, no number; mend or remove the row") from error
    if not abs(number) < GREATEST:
        raise TaskDataError(f"{place}: {name} is {number}, which no model can learn; mend or remove the row")
    if bounds is not None and not bounds[0] <= number <= bounds[1]:
        raise TaskDataError(f"{place}: {name} is {number}, not from {bounds[0]:g} to {bounds[1]:g}; mend the row")
    return number


def to_place(value: Any) -> int | None:
    """Return a whole number of at least 0, given as a number or text (also 1.0), or None if `value` is something
    else."""
    whole = re.fullmatch(r"(\d+)(\.0+)?", str(value).strip())
    return None if whole is None or isinstance(value, bool) else int(whole[1])


def to_list(value: Any, *, place: str, name: str) -> tuple[str, ...]:
    """Return the texts of a list. A text is a list in JSON, or words with spaces between them."""
    if isinstance(value, str):
        try:
            found = json.loads(value) if value.lstrip().startswith("[") else value.split()
        except (ValueError, RecursionError):
            found = value.split()
        value = found
    if not isinstance(value, (list, tuple)) or None in value:
        raise TaskDataError(f"{place}: {name} is {value!r}; give a list with a text for each word")
    return tuple(to_text(str(each), place=place, name=name) for each in value)


def to_answers(texts: Any, starts: Any, *, place: str, context: str) -> tuple[tuple[str, int], ...]:
    """Return answers with their places in `context`, in characters. `texts` and `starts` are lists, or one value."""
    texts, starts = (
        list(each) if isinstance(each, (list, tuple)) else [] if is_missing(each) else [each]
        for each in (texts, starts)
    )
    if len(texts) != len(starts):
        raise TaskDataError(f"{place}: has {len(texts)} answers and {len(starts)} places; give each answer its place")
    answers = []
    for text, start in zip(texts, starts, strict=True):
        answer, first = to_text(text, place=place, name="an answer"), to_place(start)
        if not answer:
            raise TaskDataError(f"{place}: has an empty answer; give no answer if the question has none")
        there = None if first is None else context[first : first + len(answer)]
        if first is None or there != answer:
            raise TaskDataError(
                f"{place}: answer {answer!r} does not stand at character {start} of the context"
                f"{'' if there is None else f', there is {there!r}'}; mend answer_start"
            )
        answers.append((answer, first))
    return tuple(answers)
