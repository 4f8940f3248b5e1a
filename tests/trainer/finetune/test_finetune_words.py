"""Tags, answers and choices: learned from files, aligned to words and characters, scored as others score them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from task_models import BAD, GOOD, NAMES, SPECIAL, make_config, write_model
from trainer.finetune import Result, finetune
from trainer.finetune.answers import choose_texts, f1_of, matches, score_text, tune_threshold
from trainer.finetune.examples import Question, TaggedExample
from trainer.finetune.features import TextEncoder, make_features
from trainer.finetune.predictions import Answer, Answers, to_answers, to_tags

pytest.importorskip("sklearn", reason="metrics are by scikit-learn")
pytest.importorskip("seqeval", reason="metrics are by seqeval")


def run(task: str, *, model: Path, data: Path, output: Path, **settings: object) -> Result:
    found = finetune(make_config(task, model=model, data=data, output=output, **settings), say=lambda line: None)
    assert found is not None
    return found


def one_hot(labels: list[int], *, classes: int) -> Any:
    return np.eye(classes, dtype=np.float32)[labels]


def test_a_words_label_stands_at_its_first_piece_and_long_texts_go_on(model: Path) -> None:
    encoder = TextEncoder(model, max_length=8)
    units = ("the", "goodly", "kim's", "\u200b", "film", "was", "great")
    example = TaggedExample("0", units, ("O", "B-X", "B-P", "O", "O", "O", "B-X"))
    labels = ("B-P", "B-X", "O")
    features = make_features([example], encoder=encoder, labels=labels, stride=128)
    assert [feature.places for feature in features] == [(-1, 0, 1, -1, 2, -1, -1, -1), (-1, 4, 5, 6, -1)]
    assert [feature.target for feature in features] == [(-1, 2, 1, -1, 0, -1, -1, -1), (-1, 2, 2, 1, -1)]
    logits = [one_hot([max(0, one) for one in feature.target], classes=3) for feature in features]  # type: ignore[union-attr]
    assert to_tags(logits, features=features, examples=[example], labels=labels) == [example.labels]


def test_characters_inside_a_piece_go_on_with_its_entity(tmp_path: Path) -> None:
    """KLUE-NER labels characters, and spaces are units too."""
    model = write_model(tmp_path, words=[*SPECIAL, "\uc11c\uc6b8", "##\uc740", "\ud06c\ub2e4"], lowercase=False)
    labels = ("B-LC", "I-LC", "O")
    example = TaggedExample("0", tuple("\uc11c\uc6b8\uc740 \ud06c\ub2e4"), ("B-LC", "I-LC", "O", "O", "O", "O"), "")
    features = make_features([example], encoder=TextEncoder(model, max_length=16), labels=labels, stride=1)
    assert features[0].places == (-1, 0, 2, 4, -1)
    logits = [one_hot([2, 0, 2, 2, 2], classes=3)]
    assert to_tags(logits, features=features, examples=[example], labels=labels) == [example.labels]


def test_entities_are_learned_and_scored_as_seqeval_does(model: Path, tmp_path: Path) -> None:
    from seqeval.metrics import f1_score

    sentences = []
    for number in range(48):
        name, mind = NAMES[number % 3], [*GOOD, *BAD][number % 6]
        sentences.append(f"{name}\tB-PER\nwas\tO\n{mind}\tO\n\n")
        sentences.append(f"the\tO\n{mind}\tO\nfilm\tB-X\nplot\tI-X\n\n")
    for name in ("wnut17train.conll", "emerging.dev.conll"):
        (tmp_path / name).write_text("".join(sentences))
    found = run("wnut17", model=model, data=tmp_path, output=tmp_path / "out")
    assert found.metric == "entity_f1"
    assert found.value > 0.9
    text = (tmp_path / "out" / "wnut17-dev.txt").read_text()
    rows = [[line.split(" ") for line in part.splitlines()] for part in text.strip().split("\n\n")]
    assert rows[0][0][:2] == ["kim", "B-PER"]
    golds, tags = ([[line[column] for line in row] for row in rows] for column in (1, 2))
    assert f1_score(golds, tags) == pytest.approx(found.value)


def write_questions(folder: Path, *, version: str = "v1.1", unanswerable: bool = False) -> None:
    paragraphs = []
    for number in range(48):
        name, mind = NAMES[number % 3], [*GOOD, *BAD][number % 6]
        context = f"the film was {mind} and {name} was so ."
        answers = [{"text": name, "answer_start": context.index(name)}]
        entries = [{"id": f"q{number}", "question": "kim lee park", "answers": answers}]
        if unanswerable:
            entries.append({"id": f"n{number}", "question": "un un", "answers": []})
        paragraphs.append({"context": context, "qas": entries})
    tree = {"version": version, "data": [{"title": "t", "paragraphs": paragraphs}]}
    for split in ("train", "dev"):
        (folder / f"{split}-{version}.json").write_text(json.dumps(tree))


def test_answers_are_learned(model: Path, tmp_path: Path) -> None:
    write_questions(tmp_path)
    found = run("squad", model=model, data=tmp_path, output=tmp_path / "out", max_length=32, stride=8, epochs=12.0)
    assert found.metrics["dev"]["exact_match"] > 0.9
    texts = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert len(texts) == 48
    best = json.loads((tmp_path / "out" / "nbest_predictions.json").read_text())["q0"]
    assert best[0]["text"] == texts["q0"]
    assert sum(one["probability"] for one in best) == pytest.approx(1.0)
    assert not (tmp_path / "out" / "null_odds.json").exists()


def test_no_answer_is_an_answer_of_squad_2(model: Path, tmp_path: Path) -> None:
    write_questions(tmp_path, version="v2.0", unanswerable=True)
    found = run("squad2", model=model, data=tmp_path, output=tmp_path / "out", max_length=32, epochs=8.0)
    assert found.metrics["dev"]["exact_match"] > 0.8
    assert found.metrics["dev majority"]["exact_match"] == 0.5, "never an answer"
    odds = json.loads((tmp_path / "out" / "null_odds.json").read_text())
    assert min(odds[f"n{number}"] for number in range(48)) > max(odds[f"q{number}"] for number in range(48))


def test_every_answer_of_real_contexts_comes_back_from_its_window(shared_data: Path, tmp_path: Path) -> None:
    """Perfect logits give the answer's own text wherever it ends where a piece ends; windows overlap."""
    from trainer.finetune.config import Columns
    from trainer.finetune.readers import read_examples
    from trainer.finetune.tasks import find_task

    words = (shared_data / "bert/bert-base-uncased-vocab.txt").read_text().splitlines()
    model = write_model(tmp_path, words=words)
    task = find_task("xquad-en", columns=Columns())
    examples = list(read_examples(shared_data / "eval/squad/xquad.en.json", task=task, split="dev"))[:200]
    encoder = TextEncoder(model, max_length=64)
    features = make_features(examples, encoder=encoder, labels=(), stride=16)
    assert len(features) > 2 * len(examples)
    logits = []
    for feature in features:
        values = np.zeros((len(feature.rows[0].ids), 2), np.float32)
        assert isinstance(feature.target, tuple)
        if feature.target[0]:
            values[feature.target[0], 0] = values[feature.target[1], 1] = 9.0
        logits.append(values)
    found = to_answers(logits, features=features, examples=examples, longest=30, num_best=5)
    right = 0
    for example, answers in zip(examples, found, strict=True):
        assert isinstance(example, Question)
        assert isinstance(answers, Answers)
        right += answers.best[0].text == (example.answers or ())[0][0]
    assert right >= 190


def test_each_token_counts_where_it_has_most_context(model: Path) -> None:
    context = " ".join(["the", "film", "was", "good"] * 5)
    question = Question("0", "kim", context, (("good", context.index("good")),))
    features = make_features([question], encoder=TextEncoder(model, max_length=14), labels=(), stride=4)
    counted = [
        place for feature in features for place, widest in zip(feature.places, feature.widest, strict=True) if widest
    ]
    assert sorted(counted) == [start for start in range(len(context)) if not start or context[start - 1] == " "]
    assert features[0].target == (6, 6)
    assert features[-1].target == (0, 0)


def test_a_long_question_leaves_half_a_row_to_the_context(model: Path) -> None:
    question = Question("0", "kim " * 40, "the film was good", ())
    features = make_features([question], encoder=TextEncoder(model, max_length=9), labels=(), stride=128)
    assert [len(feature.rows[0].ids) for feature in features] == [9, 7]
    assert [feature.rows[0].first_length for feature in features] == [5, 5]


@pytest.mark.parametrize(
    ("answer", "gold", "exact", "f1"),
    [
        ("the Normans", "Normans.", True, 1.0),
        ("", "", True, 1.0),
        ("", "Normans", False, 0.0),
        ("Normans", "a", False, 0.0),
        ("in the 10th century", "10th century", False, 0.8),
        ("10th-century", "10thcentury", True, 1.0),
        ("An  apple", "apple", True, 1.0),
        ("to be or to be", "to be", False, 2 * 2 / 7),
        ("X (y)", "x y", True, 1.0),
    ],
)
def test_answers_are_compared_as_by_squads_scorer(answer: str, gold: str, exact: bool, f1: float) -> None:
    """By hand from evaluate-v2.0.py."""
    assert matches(answer, gold=gold, rules="squad2") == exact
    assert f1_of(answer, gold=gold, rules="squad2") == pytest.approx(f1)


def test_the_best_of_several_answers_counts_and_korean_by_characters() -> None:
    several = Question("0", "", "", (("in the 10th century", 0), ("10th", 7), ("the", 3)))
    assert score_text("10th century", question=several, rules="squad2") == (0.0, pytest.approx(0.8))
    article = Question("0", "", "", (("the", 0),))
    assert score_text("the", question=article, rules="squad2") == (1.0, 1.0)
    assert score_text("the", question=article, rules="squad") == (1.0, 0.0)  # evaluate-v1.1.py: no word in common
    korean = Question("0", "", "", (("\uc911\ub825", 0),))
    assert score_text("\uc911\ub825\uc758", question=korean, rules="korquad") == (0.0, pytest.approx(0.8))
    assert score_text("\u300a\uc911\ub825\u300b", question=korean, rules="korquad") == (1.0, 1.0)
    assert score_text("\uc911\ub825\uc758", question=korean, rules="squad") == (0.0, 0.0)


def test_the_threshold_is_the_best_there_is() -> None:
    questions = [Question(str(n), "", "x", (("x", 0),) if n % 2 else ()) for n in range(6)]
    odds = [1.0, -3.0, 2.0, 0.0, -1.0, -2.0]
    found = [Answers((Answer("x", 1.0),), value) for value in odds]
    threshold = tune_threshold(found, examples=questions)
    shares = {}
    for value in (-9.0, *odds):
        texts = choose_texts(found, threshold=value)
        shares[value] = sum(
            score_text(text, question=one, rules="squad2")[1] for text, one in zip(texts, questions, strict=True)
        )
    assert shares[threshold] == max(shares.values()) == 5.0
    assert choose_texts(found, threshold=None) == ["x"] * 6


def test_choices_are_learned(model: Path, tmp_path: Path) -> None:
    names = [
        "",
        "video-id",
        "fold-ind",
        "startphrase",
        "sent1",
        "sent2",
        "gold-source",
        *(f"ending{n}" for n in range(4)),
        "label",
    ]
    lines = [",".join(names)]
    for number in range(48):
        endings = [BAD[(number + place) % 3] for place in range(4)]
        endings[number % 4] = GOOD[number % 3]
        lines.append(",".join([str(number), "v", "0", "", "the film", "it was", "gold", *endings, str(number % 4)]))
    for name in ("train", "val"):
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    found = run("swag", model=model, data=tmp_path, output=tmp_path / "out", epochs=12.0)
    assert found.value > 0.9
    assert found.metrics["dev majority"]["accuracy"] == 0.25
    assert (tmp_path / "out" / "swag-dev.csv").read_text().splitlines()[:2] == ["id,pred", "0,0"]
