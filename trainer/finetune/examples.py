"""The examples in a task's files: texts and labels, before they become tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["classification", "pair", "regression", "tagging", "qa", "choice"]


class TaskDataError(ValueError):
    """Raised if a task's files are missing, damaged, or laid out otherwise."""


@dataclass(frozen=True, slots=True)
class TextExample:
    """One text or two, and the class or number."""

    id: str
    first: str
    second: str | None
    label: str | float | None
    """A class by its name, a number for regression; None where the file has none."""


@dataclass(frozen=True, slots=True)
class TaggedExample:
    """Units (words, or characters) with a label each."""

    id: str
    units: tuple[str, ...]
    labels: tuple[str, ...] | None
    separator: str = " "
    """Between the units in the text; "" where they are characters."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context, with the answers that people gave. An empty tuple: there is no answer."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...] | None
    """Text and place in the context, in characters; None where the file does not say."""


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A text and what may follow it."""

    id: str
    first: str
    choices: tuple[str, ...]
    label: int | None


Example: TypeAlias = TextExample | TaggedExample | Question | ChoiceExample
