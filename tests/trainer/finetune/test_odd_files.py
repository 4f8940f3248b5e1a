"""Files as strangers have them: what is wrong is told with its place before the training, what is right is read."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from task_models import make_config, write_opinions
from trainer.finetune import finetune
from trainer.finetune.config import Columns, FinetuneConfig
from trainer.finetune.examples import ChoiceExample, Question, TaggedExample, TaskDataError, TextExample
from trainer.finetune.splits import Splits, read_splits
from trainer.finetune.tasks import find_task
from trainer.finetune.worker import describe_unseen, find_labels


def read(folder: Path, *, task: str, files: dict[str, str], columns: dict[str, Any] | None = None) -> Splits:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_bytes(text.encode("utf-8"))
    own = Columns.model_validate(columns or {})
    config = FinetuneConfig(task=task, model="", data=str(folder), output="", columns=own)
    return read_splits(find_task(task, columns=own), config=config, say=lambda line: None)


def both(name: str, text: str) -> dict[str, str]:
    return {name.format(split): text for split in ("train", "dev")}


def squad(answers: Any, *, context: Any = "the film was good", question: Any = "who?", ids: str = "a") -> str:
    entries = [{"id": each, "question": question, "answers": answers} for each in ids]
    return json.dumps({"data": [{"paragraphs": [{"context": context, "qas": entries}]}]})


def answer(text: Any, start: Any) -> list[dict[str, Any]]:
    return [{"text": text, "answer_start": start}]


STS = "index\tsentence1\tsentence2\tscore\n0\ta\tb\t{}\n"
QUESTION = '{{"text": "the film", "text2": "who?", "label": {}, "answer_start": {}}}\n'


def asked(answers: Any, **other: Any) -> dict[str, str]:
    return json_file(squad(answers, **other))


def json_file(text: str) -> dict[str, str]:
    return both("{}-v1.1.json", text)


def table(text: str) -> dict[str, str]:
    return both("{}.csv", text)


def rows(text: str) -> dict[str, str]:
    return both("{}.jsonl", text)


@pytest.mark.parametrize(
    ("task", "files", "message"),
    [
        ("regression", table("text,label\na,nan\n"), "train.csv line 2: label is nan, which no model can learn"),
        ("regression", table("text,label\na,-inf\n"), "train.csv line 2: label is -inf, which no model"),
        ("regression", table("text,label\na,1e300\n"), "train.csv line 2: label is 1e\\+300, which no model"),
        ("stsb", both("{}.tsv", STS.format("nan")), "train.tsv line 2: score is nan, which"),
        ("stsb", both("{}.tsv", STS.format("77")), "train.tsv line 2: score is 77.0, not from 0 to 5"),
        ("classification", table("text,label\na,\n"), "train.csv line 2: label is '', no class; give it"),
        ("classification", table("text,label\na,  \n"), "train.csv line 2: label is '  ', no class; give it"),
        ("classification", rows('{"text": "a", "label": null}'), "entry 0: label is None, no class; give"),
        ("classification", rows('{"text": "a", "label": [1]}'), "entry 0: label is \\[1\\], no class"),
        ("classification", rows('{"text": "a", "label": "x\\ty"}'), "take the tab or line break out of"),
        ("classification", rows('{"text": "\\ud83d", "label": 1}'), "entry 0: text has half a character at 0"),
        ("classification", rows('{"text": "a", "label": "\\ud83d"}'), "entry 0: label has half a character"),
        ("classification", table("text,text,label\na,b,x\n"), "train.csv line 1: has two columns named 'text'"),
        ("classification", both("{}.tsv", "text\ttext\tlabel\na\tb\tx\n"), "train.tsv line 1: has two columns named"),
        ("classification", both("{}.json", "[" * 100_000), "train.json line 1: is not valid JSON"),
        ("tagging", rows('{"text": null, "label": ["O"]}'), "entry 0: text is None; give a list"),
        ("tagging", rows('{"text": 5, "label": ["O"]}'), "entry 0: text is 5; give a list"),
        ("tagging", rows('{"text": {"a": 1}, "label": ["O"]}'), "entry 0: text is {'a': 1}; give a list"),
        ("tagging", rows('{"text": ["a"], "label": [null]}'), "entry 0: label is \\[None\\]; give a list"),
        ("tagging", rows('{"text": [], "label": []}'), "train.jsonl: holds no example"),
        ("qa", rows(QUESTION.format('{"text": ["film"]}', 4)), "entry 0, answers: has no column 'answer_start'"),
        ("qa", rows(QUESTION.format('{"text": ["film"], "answer_start": []}', 4)), "has 1 answers and 0 places"),
        ("qa", rows(QUESTION.format('["film", "the"]', "[4]")), "has 2 answers and 1 places; give each"),
        ("qa", rows(QUESTION.format("5", "4")), "entry 0: an answer is 5, no text"),
        ("qa", rows(QUESTION.format('"film"', '"x"')), "'film' does not stand at character x of"),
        ("qa", table("text,text2,label,answer_start\nfilm,who?,film,\n"), "has 1 answers and 0 places"),
        ("choice", rows("".join(
            json.dumps({"text": "a", "label": 0} | {f"choice{each}": "b" for each in range(count)}) for count in (2, 3)
        )), "train.jsonl, example 1: has 3 choices, the first example has 2; give all the same number"),
        ("choice", rows('{"text": "a", "choice0": "b", "choice1": "c", "label": true}'), "label is True; give"),
        ("squad", asked(answer("film", 5)), "question a: answer 'film' does not stand at character 5 "
         "of the context, there is 'ilm '; mend answer_start"),
        ("squad", asked(answer("film", -13)), "does not stand at character -13 of the context; mend"),
        ("squad", asked(answer("film", None)), "does not stand at character None of the context"),
        ("squad", asked(answer("", 4)), "question a: has an empty answer; give no answer if"),
        ("squad", asked(None), "question a: has no answers; give a list, which is empty if"),
        ("squad", asked(answer("film", 4), question=None), "question a: question is None, no text"),
        ("squad", asked([], context=None), "question a: context is None, no text"),
        ("squad", asked([], question="\ud83d"), "question a: question has half a character"),
        ("squad", asked(answer("film", 4), ids="aa"), "has two questions with the id 'a'; give each"),
        ("squad", asked("abc"), "question a: is not laid out as SQuAD: answers is no list of objects"),
        ("squad", json_file("[]"), "is not laid out as SQuAD: data is no list of objects; copy the file again"),
        ("squad", json_file('{"data": [{"paragraphs": [{"qas": "abc"}]}]}'), "article 0: .* qas is no list of"),
        ("squad", json_file('{"data": [{"paragraphs": [{"context": "a", "qas": [{"answers": []}]}]}]}'),
         "question None: has no column 'id'"),
        ("squad", json_file("[" * 100_000), "train-v1.1.json: is not valid JSON"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(task: str, files: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(TaskDataError, match=message):
        read(tmp_path, task=task, files=files)


def review(**changes: Any) -> bytes:
    return json.dumps([{"review_id": "1", "rating": "10", "review": "good"} | changes]).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "nsmc-raw.tar: is damaged or no tar; copy it again"),
        (b"{", "nsmc-raw.tar/a.json: is not valid JSON"),
        (b"\xff", "nsmc-raw.tar/a.json: is not valid JSON"),
        (b"[5]", "nsmc-raw.tar/a.json: is no list of objects, as the reviews of a film are"),
        (review(rating="x"), "nsmc-raw.tar/a.json entry 0: rating is 'x', no number; mend or remove"),
        (review(review=None), "nsmc-raw.tar/a.json entry 0: review is None, no text"),
    ],
)
def test_raw_reviews_that_cannot_be_read_are_named(content: bytes | None, message: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "nsmc-raw.tar", "w") as archive:
        member = tarfile.TarInfo("a.json")
        member.size = len(content or b"")
        archive.addfile(member, io.BytesIO(content or b""))
    if content is None:
        (tmp_path / "nsmc-raw.tar").write_bytes(b"no tar")
    with pytest.raises(TaskDataError, match=message):
        read(tmp_path, task="nsmc", files={})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("state.pt", b"abc", "state.pt: is damaged; remove it to train from the beginning"),
        ("state.pt", b"", "state.pt: is damaged; remove it to train from the beginning"),
        ("result.json", b"{", "result.json: is damaged; remove it to train again"),
        ("result.json", b"5", "result.json: is damaged; remove it to train again"),
    ],
)
def test_a_damaged_file_of_a_run_is_named(name: str, content: bytes, message: str, model: Path, tmp_path: Path) -> None:
    write_opinions(tmp_path / "data")
    (tmp_path / name).write_bytes(content)
    config = make_config("sst2", model=model, data=tmp_path / "data", output=tmp_path, device="cpu", epochs=1.0)
    with pytest.raises(ValueError, match=message):
        finetune(config, say=lambda line: None)


@pytest.mark.parametrize(
    ("task", "columns", "message"),
    [
        ("classification", {"id": "nope"}, "train.csv line 2: has no column 'nope', but text, label"),
        ("regression", {"second": "nope"}, "train.csv line 2: has no column 'nope', but text, label"),
    ],
)
def test_a_named_column_that_is_not_there_is_refused(
    task: str, columns: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(TaskDataError, match=message):
        read(tmp_path, task=task, files=both("{}.csv", "text,label\na,1\nb,2\n"), columns=columns)


def test_classes_that_a_column_of_floats_has_are_whole_numbers(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        pq.write_table(pa.table({"text": ["a", "b"], "label": [1.0, 0.0]}), tmp_path / f"{split}.parquet")
    assert [one.label for one in texts(read(tmp_path, task="classification", files={}))] == ["1", "0"]
    glue = both("{}.tsv", "sentence\tlabel\na\t1.0\nb\t0\n")
    assert [one.label for one in texts(read(tmp_path / "glue", task="sst2", files=glue))] == ["1", "0"]
    (choice,) = read(
        tmp_path / "choice",
        task="choice",
        files=rows('{"text": "a", "choice0": "b", "choice1": "c", "label": 1.0}'),
    ).train
    assert choice == ChoiceExample("0", "a", ("b", "c"), 1)


def texts(found: Splits) -> list[TextExample]:
    return [one for one in found.train if isinstance(one, TextExample)]


def test_test_files_may_hide_their_labels(tmp_path: Path) -> None:
    """By nothing, or by -1 as the Hub's copies of GLUE."""
    files = both("{}.tsv", "index\tsentence\tlabel\n0\ta\t1\n1\tb\t0\n")
    hidden = read(tmp_path, task="sst2", files=files | {"test.tsv": "index\tsentence\tlabel\n0\ta\t-1\n1\tb\t\n"})
    assert [one.label for one in hidden.evaluated["test"] if isinstance(one, TextExample)] == [None, None]
    files = both("{}.tsv", STS.format(3))
    (hidden_score,) = read(tmp_path, task="stsb", files=files | {"test.tsv": STS.format("-1.0")}).evaluated["test"]
    assert isinstance(hidden_score, TextExample)
    assert hidden_score.label is None


@pytest.mark.parametrize("before", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_marks_and_quotes_are_read(before: str, end: str, tmp_path: Path) -> None:
    lines = ["sentence\tlabel", '"so\t1', ' \u3000"\U0001f600\u200d" "\t0', "\t1"]
    found = read(tmp_path, task="sst2", files=both("{}.tsv", before + "".join(line + end for line in lines)))
    assert [(one.first, one.label) for one in texts(found)] == [
        ('"so', "1"), (' \u3000"\U0001f600\u200d" "', "0"), ("", "1"),
    ]  # fmt: skip
    words = "".join(line + end for line in ("kim\tB-X", "was\tO", "", "so\tO"))
    files = {"wnut17train.conll": before + words, "emerging.dev.conll": before + words}
    found = read(tmp_path, task="wnut17", files=files)
    assert [one.units for one in found.train if isinstance(one, TaggedExample)] == [("kim", "was"), ("so",)]
    word = "\t".join(["1", "kim", "kim", "PROPN", *"______"])
    universal = before + "".join(line + end for line in ("# text = kim", word, "", word))
    found = read(tmp_path, task="ud-pos", files={"a-ud-train.conllu": universal, "a-ud-dev.conllu": universal})
    assert [one.labels for one in found.train if isinstance(one, TaggedExample)] == [("PROPN",), ("PROPN",)]


def test_a_question_without_answers_in_csv_and_a_context_longer_than_pythons_csv_takes(tmp_path: Path) -> None:
    context = "the film " * 20_000
    text = f"text,text2,label,answer_start\n{context},who?,,\n{context},what?,film,4\n"
    found = [one for one in read(tmp_path, task="qa", files=table(text)).train if isinstance(one, Question)]
    assert [one.answers for one in found] == [(), (("film", 4),)]


def test_labels_that_training_does_not_have_are_told(tmp_path: Path) -> None:
    files = {"train.csv": "text,label\na,x\nb,y\n", "dev.csv": "text,label\na,x\nb,z\nc,z\n"}
    found = read(tmp_path, task="classification", files=files)
    labels = find_labels(find_task("classification", columns=Columns()), examples=found.train)
    assert list(describe_unseen(found, labels=labels)) == [
        "dev: 2 labels of classes that no training example has (z); predictions there count as wrong"
    ]
    tags = {
        "train.jsonl": '{"text": ["a", "b"], "label": ["O", "B-X"]}',
        "dev.jsonl": '{"text": ["a", "b"], "label": ["O", "B-Y"]}',
    }
    found = read(tmp_path / "tags", task="tagging", files=tags)
    assert list(describe_unseen(found, labels=("B-X", "O"))) == [
        "dev: 1 label of classes that no training example has (B-Y); predictions there count as wrong"
    ]
    assert list(describe_unseen(found, labels=())) == []


def test_one_class_alone_is_named(tmp_path: Path) -> None:
    found = read(tmp_path, task="classification", files=both("{}.csv", "text,label\na,x\n"))
    with pytest.raises(TaskDataError, match="all training examples have the label 'x'; give two classes or more"):
        find_labels(find_task("classification", columns=Columns()), examples=found.train)
