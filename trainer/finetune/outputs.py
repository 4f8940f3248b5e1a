"""Predictions in the layouts that the tasks' authors ask for.

glue    SST-2.tsv: index and prediction, a line of names first (gluebenchmark.com); -dev in the name of held-out ones
squad   predictions.json {id: text}, nbest_predictions.json, null_odds.json, for evaluate-v1.1.py and -v2.0.py
conll   a word, its label and the prediction a line, blank lines between sentences, for conlleval
choice  pred,... the number of the choice a line, as SWAG's leaderboard takes it
table   id and prediction, tab separated
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline import storage
from pipeline.storage import Location
from trainer.finetune.answers import choose_texts
from trainer.finetune.examples import Example, TaggedExample
from trainer.finetune.predictions import Answers, Prediction
from trainer.finetune.tasks import Task


def write_predictions(
    folder: Location,
    *,
    task: Task,
    split: str,
    examples: Sequence[Example],
    predictions: Sequence[Prediction],
    threshold: float | None = None,
) -> list[str]:
    """Write a split's predictions below `folder`; returns the files' names."""
    files = _LAYOUTS[task.layout](task, split, examples, predictions, threshold)
    for name, text in files.items():
        storage.write_bytes(storage.join(folder, name), text.encode("utf-8"))
    return list(files)


def _glue(
    task: Task, split: str, examples: Sequence[Example], predictions: Sequence[Prediction], threshold: float | None
) -> Mapping[str, str]:
    name = task.file.replace("-m", "-mm") if split.endswith("-mm") else task.file
    side = "" if split.startswith("test") else "-dev"
    return {f"{name}{side}.tsv": _lines(("index", "prediction"), enumerate(predictions))}


def _table(
    task: Task, split: str, examples: Sequence[Example], predictions: Sequence[Prediction], threshold: float | None
) -> Mapping[str, str]:
    rows = [(example.id, prediction) for example, prediction in zip(examples, predictions, strict=True)]
    return {f"{task.name}-{split}.tsv": _lines(("id", "prediction"), rows)}


def _choice(
    task: Task, split: str, examples: Sequence[Example], predictions: Sequence[Prediction], threshold: float | None
) -> Mapping[str, str]:
    rows = [(example.id, prediction) for example, prediction in zip(examples, predictions, strict=True)]
    text = "".join(f"{name},{value}\n" for name, value in [("id", "pred"), *rows])
    return {f"{task.name}-{split}.csv": text}


def _conll(
    task: Task, split: str, examples: Sequence[Example], predictions: Sequence[Prediction], threshold: float | None
) -> Mapping[str, str]:
    lines = []
    for example, tags in zip(examples, predictions, strict=True):
        assert isinstance(example, TaggedExample)
        assert isinstance(tags, tuple)
        separator = " " if example.separator else "\t"  # a character may be a space
        for unit, gold, tag in zip(example.units, example.labels or tags, tags, strict=True):
            lines.append(separator.join([unit, gold, tag]) if example.labels is not None else f"{unit}{separator}{tag}")
        lines.append("")
    return {f"{task.name}-{split}.txt": "\n".join(lines)}


def _squad(
    task: Task, split: str, examples: Sequence[Example], predictions: Sequence[Prediction], threshold: float | None
) -> Mapping[str, str]:
    texts = choose_texts(predictions, threshold=threshold)
    ids = [example.id for example in examples]
    best, odds = {}, {}
    for name, answers in zip(ids, predictions, strict=True):
        assert isinstance(answers, Answers)
        best[name] = _with_shares(answers, with_none=threshold is not None)
        odds[name] = answers.null_odds
    side = "" if split == "dev" else f"-{split}"
    files = {
        f"predictions{side}.json": dict(zip(ids, texts, strict=True)),
        f"nbest_predictions{side}.json": best,
    }
    if threshold is not None:
        files[f"null_odds{side}.json"] = odds
    return {name: json.dumps(tree, indent=1, ensure_ascii=False) + "\n" for name, tree in files.items()}


def _with_shares(answers: Answers, *, with_none: bool) -> list[dict[str, Any]]:
    """The best answers with their shares of a softmax over them, as run_squad.py writes them."""
    rows = [(answer.text, answer.score) for answer in answers.best]
    if with_none:
        rows.append(("", answers.best[0].score + answers.null_odds))
    greatest = max(value for _, value in rows)
    total = math.fsum(math.exp(value - greatest) for _, value in rows)
    return [{"text": text, "probability": math.exp(value - greatest) / total, "score": value} for text, value in rows]


def _lines(names: Sequence[str], rows: Any) -> str:
    shown = [names, *((key, f"{value:.9g}" if isinstance(value, float) else value) for key, value in rows)]
    return "".join(f"{first}\t{second}\n" for first, second in shown)


_LAYOUTS: Mapping[str, Any] = {"glue": _glue, "table": _table, "choice": _choice, "conll": _conll, "squad": _squad}
