"""Files of predictions score the same by scorers that read them and the published files by themselves.

Predictions are drawn, half of them right, so that no score is 0 or 1.
"""

from __future__ import annotations

import csv
import json
import lzma
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.finetune.answers import tune_threshold
from trainer.finetune.config import Columns, FinetuneConfig
from trainer.finetune.examples import Example, Question, TaggedExample
from trainer.finetune.outputs import write_predictions
from trainer.finetune.predictions import Answer, Answers, Prediction
from trainer.finetune.scores import gold_of, score
from trainer.finetune.splits import read_splits
from trainer.finetune.tasks import find_task

sklearn = pytest.importorskip("sklearn.metrics", reason="metrics are by scikit-learn")
stats = pytest.importorskip("scipy.stats")
seqeval = pytest.importorskip("seqeval.metrics", reason="metrics are by seqeval")


def predict(task_name: str, *, data: Path, output: Path) -> dict[str, float]:
    """Write drawn predictions of dev; return the scores that a run would report."""
    task = find_task(task_name, columns=Columns())
    config = FinetuneConfig(task=task_name, model="", data=str(data), output=str(output))
    examples = read_splits(task, config=config, say=lambda line: None).evaluated["dev"]
    draw = np.random.default_rng(1)
    found = [draw_prediction(example, others=examples, draw=draw) for example in examples]
    threshold = tune_threshold(found, examples=examples) if task_name == "squad2" else None
    write_predictions(output, task=task, split="dev", examples=examples, predictions=found, threshold=threshold)
    return score(task, examples=examples, predictions=found, threshold=threshold)


def draw_prediction(example: Example, *, others: Sequence[Example], draw: np.random.Generator) -> Prediction:
    other = others[int(draw.integers(len(others)))]
    right = bool(draw.random() < 0.5)
    if isinstance(example, Question):
        words = example.context.split()
        first = int(draw.integers(len(words)))
        text = " ".join(words[first : first + 3])
        if example.answers and right:
            text = f"the {example.answers[0][0]}!"
        return Answers((Answer(text, 1.0),), float(draw.normal() + 2.0 * (not example.answers)))
    if isinstance(example, TaggedExample):
        assert isinstance(other, TaggedExample)
        labels = other.labels or ()
        own = example.labels or ()
        return own if right else tuple(labels[place % len(labels)] for place in range(len(own)))
    gold: Prediction = gold_of(example if right else other)
    return gold + float(draw.normal()) if isinstance(gold, float) else gold


def read_tsv(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.mark.parametrize(
    ("task", "folder", "file", "column"),
    [("cola", "CoLA", "CoLA", None), ("sst2", "SST-2", "SST-2", "label"), ("rte", "RTE", "RTE", "label"),
     ("wnli", "WNLI", "WNLI", "label"), ("stsb", "STS-B", "STS-B", "score")],
)  # fmt: skip
def test_glue_by_scikit_learn_and_scipy(
    task: str, folder: str, file: str, column: str | None, shared_data: Path, tmp_path: Path
) -> None:
    data = shared_data / "eval/glue" / folder
    reported = predict(task, data=data, output=tmp_path)
    rows = read_tsv(data / "dev.tsv")
    golds = [row[1] for row in rows] if column is None else [row[rows[0].index(column)] for row in rows[1:]]
    names, *lines = read_tsv(tmp_path / f"{file}-dev.tsv")
    assert names == ["index", "prediction"]
    assert [int(index) for index, _ in lines] == list(range(len(golds)))
    found = [value for _, value in lines]
    if task == "stsb":
        numbers = [list(map(float, values)) for values in (golds, found)]
        own = {"spearman": stats.spearmanr(*numbers).statistic, "pearson": stats.pearsonr(*numbers).statistic}
    else:
        own = {"accuracy": sklearn.accuracy_score(golds, found)}
        if task == "cola":
            own["matthews"] = sklearn.matthews_corrcoef(golds, found)
    assert reported == pytest.approx(own)
    assert all(0.1 < value < 0.9 for value in own.values())


def read_blocks(text: str) -> list[list[list[str]]]:
    return [[line.split() for line in block.splitlines()] for block in re.split(r"\n\s*\n", text.strip())]


def test_entities_by_seqeval(shared_data: Path, tmp_path: Path) -> None:
    data = shared_data / "eval/ner/wnut17"
    reported = predict("wnut17", data=data, output=tmp_path)
    published = read_blocks((data / "emerging.dev.conll").read_text(encoding="utf-8"))
    written = read_blocks((tmp_path / "wnut17-dev.txt").read_text(encoding="utf-8"))
    assert [[row[:2] for row in block] for block in written] == published
    golds, tags = ([[row[column] for row in block] for block in written] for column in (1, 2))
    assert reported["entity_f1"] == pytest.approx(seqeval.f1_score(golds, tags))
    assert reported["accuracy"] == pytest.approx(seqeval.accuracy_score(golds, tags))
    assert 0.1 < reported["entity_f1"] < 0.9


def test_part_of_speech_by_counting(shared_data: Path, tmp_path: Path) -> None:
    data = shared_data / "eval/pos/ud-english-ewt"
    reported = predict("ud-pos", data=data, output=tmp_path)
    published = Counter()  # type: ignore[var-annotated]
    for block in lzma.decompress((data / "en_ewt-ud-dev.conllu.xz").read_bytes()).decode().strip().split("\n\n"):
        rows = [line.split("\t") for line in block.split("\n") if line[0] != "#"]
        published[tuple((row[1].replace(" ", ""), row[3]) for row in rows if row[0].isdecimal())] += 1
    text = (tmp_path / "ud-pos-dev.txt").read_text(encoding="utf-8")
    blocks = [[line.split(" ") for line in block.split("\n")] for block in text.rstrip("\n").split("\n\n")]
    assert not Counter(tuple(("".join(row[:-2]), row[-2]) for row in block) for block in blocks) - published
    words = [row for block in blocks for row in block]
    assert reported == {"accuracy": pytest.approx(sum(row[-2] == row[-1] for row in words) / len(words))}


def official_words(text: str) -> list[str]:
    """Lower case, without punctuation and articles, as words (Rajpurkar et al. 2016, section 6.1)."""
    bare = "".join(" " if letter.isspace() else letter for letter in text.lower() if letter not in string.punctuation)
    return [word for word in re.split(r"\b(?:a|an|the)\b|\s", bare) if word and not word.isspace()]


def official_scores(found: str, golds: list[str], *, second: bool) -> tuple[float, float]:
    """Exact match and F1 over words, the best over correct answers; `second`: of SQuAD 2.0, whose questions may have no
    answer."""
    if second:
        golds = [gold for gold in golds if official_words(gold)] or [""]
    exact, best = 0.0, 0.0
    for gold in golds:
        own, wanted = official_words(found), official_words(gold)
        exact = max(exact, float(" ".join(own) == " ".join(wanted)))
        common = sum(min(own.count(word), wanted.count(word)) for word in set(own))
        if second and not (own and wanted):
            best = max(best, float(own == wanted))
        elif common:
            precision, recall = common / len(own), common / len(wanted)
            best = max(best, 2 * precision * recall / (precision + recall))
    return exact, best


def list_questions(path: Path) -> Iterator[dict[str, Any]]:
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            yield from paragraph["qas"]


@pytest.mark.parametrize(("task", "file"), [("squad2", "dev-v2.0-2articles.json"), ("xquad-en", "xquad.en.json")])
def test_answers_by_the_published_rules(task: str, file: str, shared_data: Path, tmp_path: Path) -> None:
    data = shared_data / "eval/squad"
    reported = predict(task, data=data, output=tmp_path)
    texts = json.loads((tmp_path / "predictions.json").read_text(encoding="utf-8"))
    rows = [
        official_scores(texts[one["id"]], [each["text"] for each in one["answers"]], second=task == "squad2")
        for one in list_questions(data / file)
        if one["id"] in texts
    ]
    assert len(rows) == len(texts) > 50
    exact, f1 = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    assert reported == pytest.approx({"answer_f1": f1, "exact_match": exact})
    assert 0.3 < exact < f1 < 0.9


def test_choices_by_counting(shared_data: Path, tmp_path: Path) -> None:
    reported = predict("codah", data=shared_data / "eval/swag", output=tmp_path)
    golds = [row[-1] for row in read_tsv(shared_data / "eval/swag/codah_full_data.tsv")]
    with (tmp_path / "codah-dev.csv").open(newline="") as file:
        found = {row["id"]: row["pred"] for row in csv.DictReader(file)}
    right = sum(golds[int(number)] == choice for number, choice in found.items())
    assert len(found) > 400
    assert reported == {"accuracy": pytest.approx(right / len(found))}
