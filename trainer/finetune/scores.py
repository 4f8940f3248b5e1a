"""Metrics by scikit-learn, scipy and seqeval; of answers by answers.py. All in shares of 1.

Only examples with a label count.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

from trainer.finetune import answers
from trainer.finetune.examples import Example, Question, TaggedExample
from trainer.finetune.predictions import OUTSIDE, Answer, Answers, Prediction
from trainer.finetune.tasks import Metric, Task

_PACKAGES = {"sklearn": "scikit-learn", "scipy": "scipy", "seqeval": "seqeval"}


def check_libraries() -> None:
    """ValueError where one that metrics need is missing: before hours of training."""
    for name in _PACKAGES:
        _load(name)


def score(
    task: Task, *, examples: Sequence[Example], predictions: Sequence[Prediction], threshold: float | None = None
) -> dict[str, float]:
    """Every metric of the task over the examples with a label, the task's own first; empty where none has one.

    `threshold`: of answers.choose_texts.
    """
    known = [
        (gold_of(example), prediction, example)
        for example, prediction in zip(examples, predictions, strict=True)
        if gold_of(example) is not None
    ]
    if not known:
        return {}
    if task.kind == "qa":
        return _score_answers(task, known, threshold=threshold)
    golds, found = [gold for gold, _, _ in known], [prediction for _, prediction, _ in known]
    return {metric: float(_METRICS[metric](task, golds, found)) for metric in task.metrics}


def gold_of(example: Example) -> Any:
    """What the file says is right; None where it says nothing."""
    if isinstance(example, TaggedExample):
        return example.labels
    if isinstance(example, Question):
        return example.answers
    return example.label


def guess_majority(task: Task, *, train: Sequence[Example], examples: Sequence[Example]) -> list[Prediction] | None:
    """Return what knowing only the commonest label of the training examples would predict; None if that says nothing.

    regression: the mean. tagging: each word's commonest label. qa: no answer, if some questions have none.
    """
    golds = [gold for gold in map(gold_of, train) if gold is not None]
    if task.kind == "qa":
        return None if all(golds) else [Answers((Answer("", 0.0),), 0.0)] * len(examples)
    if task.kind == "regression":
        return [fmean(golds)] * len(examples)
    if task.kind != "tagging":
        return [Counter(golds).most_common(1)[0][0]] * len(examples)
    counts: dict[str, Counter[str]] = {}
    for example in train:
        assert isinstance(example, TaggedExample)
        for unit, label in zip(example.units, example.labels or (), strict=False):
            counts.setdefault(unit, Counter())[label] += 1
    common = Counter(chain.from_iterable(golds)).most_common(1)[0][0]
    best = {unit: found.most_common(1)[0][0] for unit, found in counts.items()}
    return [tuple(best.get(unit, common) for unit in example.units) for example in examples]  # type: ignore[union-attr]


def _score_answers(
    task: Task, known: Sequence[tuple[Any, Prediction, Example]], *, threshold: float | None
) -> dict[str, float]:
    texts = answers.choose_texts([prediction for _, prediction, _ in known], threshold=threshold)
    rows = [
        answers.score_text(text, question=example, rules=task.answer_rules)
        for text, (_, _, example) in zip(texts, known, strict=True)
        if isinstance(example, Question)
    ]
    found = {"exact_match": fmean(exact for exact, _ in rows), "answer_f1": fmean(f1 for _, f1 in rows)}
    return {metric: found[metric] for metric in task.metrics}


def _accuracy(task: Task, golds: list[Any], found: list[Any]) -> float:
    if task.kind == "tagging":
        golds, found = list(chain.from_iterable(golds)), list(chain.from_iterable(found))
    return float(_load("sklearn.metrics").accuracy_score(golds, found))


def _f1(task: Task, golds: list[Any], found: list[Any]) -> float:
    """Of class "1" where there are two classes 0 and 1; of numbers above f1_above; else the mean over classes."""
    if task.f1_above is not None:
        limit = task.f1_above
        golds, found = ([str(int(value >= limit)) for value in values] for values in (golds, found))
    two = set(golds) | set(found) <= {"0", "1"}
    options = {"pos_label": "1"} if two else {"average": "macro"}
    return float(_load("sklearn.metrics").f1_score(golds, found, zero_division=0.0, **options))


def _matthews(task: Task, golds: list[Any], found: list[Any]) -> float:
    return float(_load("sklearn.metrics").matthews_corrcoef(golds, found))


def _pearson(task: Task, golds: list[Any], found: list[Any]) -> float:
    return 0.0 if _constant(golds, found) else float(_load("scipy.stats").pearsonr(golds, found).statistic)


def _spearman(task: Task, golds: list[Any], found: list[Any]) -> float:
    return 0.0 if _constant(golds, found) else float(_load("scipy.stats").spearmanr(golds, found).statistic)


def _constant(*columns: Sequence[float]) -> bool:
    """Whether a correlation is not defined."""
    return any(len(set(column)) < 2 for column in columns)


def _entity_f1(task: Task, golds: list[Any], found: list[Any]) -> float:
    """F1 of whole entities, as conlleval counts them; where labels are no entities of macro-averaged classes."""
    if not any(label == OUTSIDE or label[1:2] == "-" for label in chain.from_iterable(golds)):
        flat = [list(chain.from_iterable(rows)) for rows in (golds, found)]
        return float(_load("sklearn.metrics").f1_score(*flat, average="macro", zero_division=0.0))
    metrics = _load("seqeval.metrics")
    return float(metrics.f1_score(list(map(list, golds)), list(map(list, found)), zero_division=0))


_METRICS: dict[Metric, Callable[[Task, list[Any], list[Any]], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
    "entity_f1": _entity_f1,
}


def _load(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = _PACKAGES[module.partition(".")[0]]
        raise ValueError(
            f"{package} is not installed, which the metrics are by; install it: pip install 'cloze[finetune]'"
        ) from error
