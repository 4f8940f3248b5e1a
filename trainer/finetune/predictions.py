"""What a model says of each example, out of its logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from trainer.finetune.endings import count_cut
from trainer.finetune.examples import Example, Question, TaggedExample
from trainer.finetune.features import Feature

Logits: TypeAlias = npt.NDArray[np.float32]
OUTSIDE = "O"
"""The label of a word in no entity."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a question and what speaks for it."""

    text: str
    score: float
    """Sum of the logits of its first and its last token."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The best answers of one question."""

    best: tuple[Answer, ...]
    """With text, best first, none twice."""
    null_odds: float
    """Score of no answer, at [CLS], above that of the best answer; over all windows the least score."""


Prediction: TypeAlias = str | float | int | tuple[str, ...] | Answers
"""A class; a number; a choice; a label for each unit; answers."""


def to_classes(logits: Sequence[Logits], *, labels: Sequence[str]) -> list[Prediction]:
    """The likeliest class of each example."""
    return [labels[int(row.argmax())] for row in logits]


def to_numbers(logits: Sequence[Logits], *, bounds: tuple[float, float] | None) -> list[Prediction]:
    """The number of each example, inside the bounds."""
    low, high = bounds or (-np.inf, np.inf)
    return [min(max(float(row), low), high) for row in logits]


def to_choices(logits: Sequence[Logits]) -> list[Prediction]:
    """The likeliest choice of each example."""
    return [int(row.argmax()) for row in logits]


def to_tags(
    logits: Sequence[Logits], *, features: Sequence[Feature], examples: Sequence[Example], labels: Sequence[str]
) -> list[Prediction]:
    """Return a label for each unit: that of its first piece. A unit without a piece gets OUTSIDE, or the first label if
    there is no OUTSIDE.

    A character inside a piece continues the entity of the piece's first character.
    """
    rest = OUTSIDE if OUTSIDE in labels else labels[0]
    found: list[dict[int, str]] = [{} for _ in examples]
    for feature, values in zip(features, logits, strict=True):
        for unit, label in zip(feature.places, values.argmax(-1), strict=True):
            if unit >= 0:
                found[feature.example][unit] = labels[int(label)]
    tags: list[Prediction] = []
    for example, own in zip(examples, found, strict=True):
        assert isinstance(example, TaggedExample)
        row: list[str] = []
        for unit, text in enumerate(example.units):
            label = own.get(unit)
            if label is None and row and not example.separator and not text.isspace():
                label = row[-1].replace("B-", "I-", 1) if row[-1].startswith("B-") else row[-1]
            row.append(label if label is not None else rest)
        tags.append(tuple(row))
    return tags


def to_answers(
    logits: Sequence[Logits],
    *,
    features: Sequence[Feature],
    examples: Sequence[Example],
    longest: int,
    num_best: int,
    endings: Mapping[str, bool] | None = None,
) -> list[Prediction]:
    """The best spans of each question's windows; `longest`: tokens of an answer. logits [tokens, 2] each.

    `endings` (trainer.finetune.endings) says which ends of words to cut off.
    """
    spans: list[list[tuple[float, int, int, int]]] = [[] for _ in examples]
    nulls = [np.inf] * len(examples)
    for feature, values in zip(features, logits, strict=True):
        nulls[feature.example] = min(nulls[feature.example], float(values[0].sum()))
        spans[feature.example].extend(_best_spans(feature, values, longest=longest, num_best=num_best))
    answers: list[Prediction] = []
    for example, own, null in zip(examples, spans, nulls, strict=True):
        assert isinstance(example, Question)
        best: dict[str, float] = {}
        for score, start, last, end in sorted(own, key=lambda span: (-span[0], span[1], span[3])):
            stop = end - count_cut(example.context[last:end], endings=endings) if endings else end
            best.setdefault(example.context[start:stop], score)
            if len(best) == num_best:
                break
        kept = tuple(Answer(text, score) for text, score in best.items()) or (Answer("", float(null)),)
        answers.append(Answers(kept, float(null) - kept[0].score))
    return answers


def _best_spans(feature: Feature, values: Logits, *, longest: int, num_best: int) -> list[tuple[float, int, int, int]]:
    """Score, first character, first character of the last piece, and end of the best spans of a window."""
    inside = np.array(feature.places) >= 0
    widest = np.array(feature.widest)
    starts = [place for place in np.argsort(-values[:, 0], kind="stable") if inside[place] and widest[place]]
    ends = [place for place in np.argsort(-values[:, 1], kind="stable") if inside[place]]
    found = []
    for start in starts[:num_best]:
        for end in ends[:num_best]:
            if start <= end < start + longest:
                score = float(values[start, 0] + values[end, 1])
                found.append((score, feature.places[start], feature.places[end], feature.ends[end]))
    return found
