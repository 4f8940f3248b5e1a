"""Published files are read as they are; the counts are those that their authors give."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.finetune.config import Columns, FinetuneConfig
from trainer.finetune.examples import ChoiceExample, Example, Question, TaggedExample, TextExample
from trainer.finetune.readers import read_examples
from trainer.finetune.splits import Splits, read_splits, shared_text
from trainer.finetune.tasks import find_task

PLACES = {
    "cola": ("eval/glue/CoLA", 8551, {"dev": 1043}),
    "sst2": ("eval/glue/SST-2", 6920, {"dev": 872, "test": 1821}),
    "rte": ("eval/glue/RTE", 2490, {"dev": 277, "test": 3000}),
    "wnli": ("eval/glue/WNLI", 635, {"dev": 71, "test": 146}),
    "stsb": ("eval/glue/STS-B", 5749, {"dev": 1500, "test": 1379}),
    "wnut17": ("eval/ner/wnut17", 3394, {"dev": 1009, "test": 1287}),
}
"""Folder, training examples, others."""
BY_HASH = {
    "nsmc": ("korean/nsmc", None),
    "klue-nli": ("korean/klue", 3000),
    "klue-sts": ("korean/klue", 519),
    "klue-ner": ("korean/klue", 5000),
    "korquad": ("korean/korquad", 5774),
    "swag": ("eval/swag", None),
    "codah": ("eval/swag", 2776),
    "squad2": ("eval/squad", None),
}
"""Folder with one file alone, and its examples."""


def read(task: str, *, folder: Path, said: list[str] | None = None) -> Splits:
    config = FinetuneConfig(task=task, model="", data=str(folder), output="")
    return read_splits(find_task(task, columns=Columns()), config=config, say=(said if said is not None else []).append)


@pytest.mark.parametrize("task", PLACES)
def test_the_splits_of_published_files_are_whole(shared_data: Path, task: str) -> None:
    place, train, others = PLACES[task]
    found = read(task, folder=shared_data / place)
    assert not found.by_hash
    assert len(found.train) == train
    assert {split: len(examples) for split, examples in found.evaluated.items()} == others


@pytest.mark.parametrize("task", BY_HASH)
def test_one_file_alone_is_split_by_hash_which_is_said(shared_data: Path, task: str) -> None:
    place, count = BY_HASH[task]
    said: list[str] = []
    found = read(task, folder=shared_data / place, said=said)
    dev = found.evaluated["dev"]
    assert found.by_hash
    assert len(said) == 1
    assert "by a hash of their texts" in said[0]
    if count is not None:
        assert len(found.train) + len(dev) == count
    held_out, texts = (len({shared_text(one) for one in side}) for side in (dev, (*found.train, *dev)))
    assert held_out == pytest.approx(0.2 * texts, abs=3 * (0.2 * 0.8 * texts) ** 0.5)  # three standard deviations
    assert not {example.id for example in dev} & {example.id for example in found.train}
    assert read(task, folder=shared_data / place) == found


def test_what_stands_in_the_files_is_what_is_read(shared_data: Path) -> None:
    cola = read("cola", folder=shared_data / "eval/glue/CoLA")
    text = "Our friends won't buy this analysis, let alone the next one we propose."
    assert cola.train[0] == TextExample("0", text, None, "1")
    rte = read("rte", folder=shared_data / "eval/glue/RTE")
    assert isinstance(rte.evaluated["test"][0], TextExample)
    assert rte.evaluated["test"][0].label is None
    sts = read("stsb", folder=shared_data / "eval/glue/STS-B")
    assert sts.train[1] == TextExample("1", "A man is playing a large flute.", "A man is playing a flute.", 3.8)
    klue = read("klue-sts", folder=shared_data / "korean/klue")
    assert all(isinstance(one, TextExample) and isinstance(one.label, float) and one.second for one in klue.train)
    ner = read("klue-ner", folder=shared_data / "korean/klue")
    first = next(one for one in (*ner.train, *ner.evaluated["dev"]) if one.id == "0")
    assert isinstance(first, TaggedExample)
    assert first.labels is not None
    assert "".join(first.units[:3]) == "\uacbd\ucc30\uc740"
    assert first.labels[:4] == ("B-OG", "I-OG", "O", "O")
    nsmc = read("nsmc", folder=shared_data / "korean/nsmc")
    assert Counter(one.label for one in nsmc.train if isinstance(one, TextExample)).keys() == {"0", "1"}


def test_answers_stand_where_the_files_say(shared_data: Path) -> None:
    seen = Counter[str]()
    for task, place in (("squad2", "eval/squad"), ("xquad-en", "eval/squad"), ("korquad", "korean/korquad")):
        found = read(task, folder=shared_data / place)
        for question in (*found.train, *found.evaluated["dev"]):
            assert isinstance(question, Question)
            for text, start in question.answers or ():
                assert question.context[start : start + len(text)] == text
            seen[f"{task} {bool(question.answers)}"] += 1
    assert seen["squad2 False"] > 10
    assert seen["xquad-en False"] == seen["korquad False"] == 0


def test_universal_dependencies_are_read_in_two_languages(shared_data: Path) -> None:
    english = read("ud-pos", folder=shared_data / "eval/pos/ud-english-ewt")
    first = next(one for one in (*english.train, *english.evaluated["dev"]) if one.id == "0")
    assert isinstance(first, TaggedExample)
    assert first.units[:3] == ("From", "the", "AP")
    assert (first.labels or ())[:3] == ("ADP", "DET", "PROPN")
    assert english.by_hash
    assert "test" in english.evaluated


def test_choices_follow_their_text(shared_data: Path) -> None:
    found = read("swag", folder=shared_data / "eval/swag")
    one = next(each for each in found.train if isinstance(each, ChoiceExample) and "lower their eyes" in each.first)
    assert one.first == "Students lower their eyes nervously."
    assert one.choices[1] == "She turns with two students."


@pytest.mark.parametrize(("task", "place"), [("korquad", "korean/korquad"), ("klue-nli", "korean/klue")])
def test_equal_texts_are_on_one_side_of_a_split_by_hash(shared_data: Path, task: str, place: str) -> None:
    found = read(task, folder=shared_data / place)
    sides = [{shared_text(example) for example in side} for side in (found.train, found.evaluated["dev"])]
    assert not sides[0] & sides[1]


def test_the_layouts_of_the_hub_are_read(shared_data: Path, tmp_path: Path) -> None:
    """SQuAD 2.0 without paragraphs, and SWAG as JSON objects one behind another."""
    samples = shared_data / "eval/hf-tests-samples"
    for name in ("train-v2.0.json", "dev-v2.0.json"):
        (tmp_path / name).write_bytes((samples / "SQUAD/sample.json").read_bytes())
    found = read("squad2", folder=tmp_path)
    first = found.train[0]
    assert isinstance(first, Question)
    assert (first.question, (first.answers or ())[0]) == ("In what country is Normandy located?", ("France", 159))
    assert {bool(one.answers) for one in found.train if isinstance(one, Question)} == {True, False}
    one = next(read_examples(samples / "swag/sample.json", task=find_task("swag", columns=Columns()), split="all"))
    assert isinstance(one, ChoiceExample)
    assert one.choices[0] == "A drum line passes by walking down the street playing their instruments."
    stsb = read("stsb", folder=samples / "STS-B")
    assert len(stsb.evaluated["dev"]) > 1


def test_codah_is_read_as_published(shared_data: Path) -> None:
    found = read("codah", folder=shared_data / "eval/swag")
    one = next(each for each in (*found.train, *found.evaluated["dev"]) if each.id == "0")
    assert isinstance(one, ChoiceExample)
    assert (one.choices[3], one.label) == ("tempted to snack when I feel this way.", 3)


def test_what_is_not_as_published_is_told_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"task=sst: did you mean sst2\?"):
        find_task("sst", columns=Columns())
    with pytest.raises(ValueError, match=r"columns has no effect with task=rte.*give task=pair"):
        find_task("rte", columns=Columns(first="x"))
    with pytest.raises(ValueError, match=r"holds no file of task=sst2; it has files named dev.tsv"):
        read("sst2", folder=tmp_path)
    (tmp_path / "train.tsv").write_text("sentence\tlabel\ngood\t1\nbad\n")
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\ngood\t2\n")
    with pytest.raises(ValueError, match=r"train.tsv line 3: has 1 fields, 2 are needed"):
        read("sst2", folder=tmp_path)
    (tmp_path / "train.tsv").write_text("sentence\tlabel\ngood\t1\n")
    with pytest.raises(ValueError, match=r"dev.tsv line 2: label is '2', not one of 0, 1"):
        read("sst2", folder=tmp_path)
    (tmp_path / "train.tsv").write_bytes(b"sentence\tlabel\n\xff\t1\n")
    with pytest.raises(ValueError, match=r"train.tsv: byte 15 is not UTF-8"):
        read("sst2", folder=tmp_path)
    (tmp_path / "train.tsv").rename(tmp_path / "train.tsv.xz")
    with pytest.raises(ValueError, match=r"train.tsv.xz: cannot be decompressed"):
        read("sst2", folder=tmp_path)


OWN = [
    (
        "pair",
        "csv",
        {"first": "q", "second": "a", "label": "good", "id": "n"},
        {"n": "7", "q": "x, y", "a": "z", "good": "1"},
        TextExample("7", "x, y", "z", "1"),
    ),
    (
        "regression",
        "tsv",
        {"first": "a", "second": "b", "label": "s"},
        {"a": "x", "b": "y", "s": "2.5"},
        TextExample("0", "x", "y", 2.5),
    ),
    ("regression", "jsonl", {"first": "a", "label": "s"}, {"a": "x", "s": 3}, TextExample("0", "x", None, 3.0)),
    (
        "tagging",
        "jsonl",
        {"first": "tokens", "label": "tags"},
        {"tokens": ["a", "b"], "tags": ["O", "B-X"]},
        TaggedExample("0", ("a", "b"), ("O", "B-X")),
    ),
    (
        "tagging",
        "csv",
        {"first": "words", "label": "tags"},
        {"words": "a b", "tags": "O B-X"},
        TaggedExample("0", ("a", "b"), ("O", "B-X")),
    ),
    (
        "qa",
        "parquet",
        {"first": "context", "second": "question", "label": "answers"},
        {"context": "kim came", "question": "who?", "answers": {"text": ["kim"], "answer_start": [0]}},
        Question("0", "who?", "kim came", (("kim", 0),)),
    ),
    (
        "qa",
        "jsonl",
        {"first": "c", "second": "q", "label": "a", "start": "s"},
        {"c": "kim came", "q": "?", "a": [], "s": []},
        Question("0", "?", "kim came", ()),
    ),
    (
        "choice",
        "parquet",
        {"first": "t", "choices": ("a", "b", "c")},
        {"t": "x", "a": "1", "b": "2", "c": "3", "label": 2},
        ChoiceExample("0", "x", ("1", "2", "3"), 2),
    ),
    (
        "choice",
        "csv",
        {},
        {"text": "x", "choice0": "1", "choice1": "2", "label": "0"},
        ChoiceExample("0", "x", ("1", "2"), 0),
    ),
]
"""Kind, ending, columns, a row, and the example that it is."""


@pytest.mark.parametrize(("kind", "ending", "columns", "row", "example"), OWN)
def test_a_row_of_ones_own_becomes_an_example(
    tmp_path: Path, kind: str, ending: str, columns: dict[str, Any], row: dict[str, Any], example: Example
) -> None:
    path = tmp_path / f"train.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    elif ending == "jsonl":
        path.write_text(json.dumps(row) + "\n")
    else:
        separator, quote = ("\t", "") if ending == "tsv" else (",", '"')
        lines = [list(row), [f"{quote}{value}{quote}" for value in row.values()]]
        path.write_text("".join(separator.join(line) + "\n" for line in lines))
    task = find_task(kind, columns=Columns.model_validate(columns))
    assert list(read_examples(path, task=task, split="train")) == [example]
