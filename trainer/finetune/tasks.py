"""The tasks: files, columns and labels as they were published, and the metrics that are reported on them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipeline.settings import ConfigError
from trainer.finetune.config import Columns
from trainer.finetune.examples import Kind

Metric: TypeAlias = Literal[
    "accuracy", "f1", "matthews", "pearson", "spearman", "entity_f1", "exact_match", "answer_f1"
]
Reader: TypeAlias = Literal["table", "nsmc", "conll", "conllu", "klue_ner", "squad"]
AnswerRules: TypeAlias = Literal["squad", "squad2", "korquad"]
"""The published scorer by whose rules answers are compared: evaluate-v1.1.py, evaluate-v2.0.py or KorQuAD's."""
Layout: TypeAlias = Literal["glue", "table", "conll", "squad", "choice"]

TABLES = ("csv", "tsv", "jsonl", "json", "parquet")
"""Endings of the files of a task of one's own."""


_NO_COLUMNS = Columns()


@dataclass(frozen=True, slots=True)
class Task:
    """What is published of a task."""

    name: str
    kind: Kind
    files: Mapping[str, tuple[str, ...]]
    """Patterns of file names of each split: train, dev, test, and where there are two halves dev-mm and test-mm."""
    metrics: tuple[Metric, ...]
    """The first is the task's own number."""
    columns: Columns = _NO_COLUMNS
    labels: tuple[str, ...] = ()
    """Classes in the order of their numbers; none: those of the training examples, sorted."""
    header: tuple[str, ...] | None = None
    """Names of the columns of files without a line of names."""
    headed: tuple[str, ...] = ()
    """Splits whose files have a line of names all the same."""
    reader: Reader = "table"
    layout: Layout = "table"
    file: str = ""
    """Predictions in the layout of GLUE: the file's name without its ending."""
    bounds: tuple[float, float] | None = None
    """regression: least and greatest number."""
    answer_rules: AnswerRules = "squad2"
    """qa: how answers are compared; only squad2 knows questions without an answer."""
    own_folder: bool = False
    """Whether its file names say too little (train.tsv), so that only a folder with the task's name holds the task."""
    f1_above: float | None = None
    """regression: two classes for F1, those of at least so much and the others."""


def _glue(
    name: str, file: str, kind: Kind, *, first: str, second: str = "text2", label: str = "label",
    index: str | None = "index", metrics: tuple[Metric, ...] = ("accuracy",), labels: tuple[str, ...] = ("0", "1"),
    header: tuple[str, ...] | None = None, bounds: tuple[float, float] | None = None,
    files: Mapping[str, tuple[str, ...]] | None = None,
) -> Task:  # fmt: skip
    return Task(
        name=name,
        kind=kind,
        files=files or {split: (f"{split}.tsv", f"{split}_*.tsv") for split in ("train", "dev", "test")},
        metrics=metrics,
        columns=Columns(id=index, first=first, second=second, label=label),
        labels=labels,
        header=header,
        headed=("test",),
        layout="glue",
        own_folder=True,
        file=file,
        bounds=bounds,
    )


_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")


def _klue(kind: str, ending: str) -> dict[str, tuple[str, ...]]:
    return {split: (f"klue-{kind}-v1*_{split}.{ending}",) for split in ("train", "dev", "test")}


def _squad(*names: str) -> dict[str, tuple[str, ...]]:
    return {split: tuple(name.format(split) for name in names) for split in ("train", "dev")}


XQUAD = ("ar", "de", "el", "en", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh")
"""Its languages: a task each, since all have the same ids."""
_UD = {split: (f"*-ud-{split}.conllu",) for split in ("train", "dev", "test")}

TASKS = {
    task.name: task
    for task in (
        _glue("cola", "CoLA", "classification", first="sentence", metrics=("matthews", "accuracy"),
              header=("source", "label", "mark", "sentence")),
        _glue("sst2", "SST-2", "classification", first="sentence"),
        _glue("rte", "RTE", "pair", first="sentence1", second="sentence2", labels=_ENTAILMENT),
        _glue("wnli", "WNLI", "pair", first="sentence1", second="sentence2"),
        _glue("mrpc", "MRPC", "pair", first="#1 String", second="#2 String", label="Quality",
              metrics=("f1", "accuracy"),
              files={"train": ("train.tsv", "msr_paraphrase_train.txt"), "dev": ("dev.tsv",),
                     "test": ("test.tsv", "msr_paraphrase_test.txt")}),
        _glue("qnli", "QNLI", "pair", first="question", second="sentence", labels=_ENTAILMENT),
        _glue("qqp", "QQP", "pair", first="question1", second="question2", label="is_duplicate", index="id",
              metrics=("f1", "accuracy")),
        _glue("mnli", "MNLI-m", "pair", first="sentence1", second="sentence2", label="gold_label", labels=_NLI,
              files={"train": ("train.tsv",), "dev": ("dev_matched.tsv",), "dev-mm": ("dev_mismatched.tsv",),
                     "test": ("test_matched.tsv",), "test-mm": ("test_mismatched.tsv",)}),
        _glue("stsb", "STS-B", "regression", first="sentence1", second="sentence2", label="score", labels=(),
              metrics=("spearman", "pearson"), bounds=(0.0, 5.0)),
        Task("imdb", "classification", {"train": ("train.*",), "test": (), "dev": ("test.*", "dev.*")},
             ("accuracy",), Columns(first="text", label="label"), own_folder=True),
        Task("nsmc", "classification", {"train": ("ratings_train.txt",), "dev": ("ratings_test.txt",),
                                        "all": ("nsmc-raw*.tar", "*.json")},
             ("accuracy",), Columns(id="id", first="document", label="label"), labels=("0", "1"), reader="nsmc",
             own_folder=True),
        Task("klue-nli", "pair", _klue("nli", "json"), ("accuracy",),
             Columns(id="guid", first="premise", second="hypothesis", label="gold_label"), labels=_NLI),
        Task("klue-sts", "regression", _klue("sts", "json"), ("pearson", "spearman", "f1"),
             Columns(id="guid", first="sentence1", second="sentence2", label="labels.label"), bounds=(0.0, 5.0),
             f1_above=3.0),
        Task("klue-ner", "tagging", _klue("ner", "tsv"), ("entity_f1", "accuracy"), reader="klue_ner", layout="conll"),
        Task("conll2003", "tagging", {"train": ("train.txt", "eng.train"), "dev": ("valid.txt", "dev.txt", "eng.testa"),
                                      "test": ("test.txt", "eng.testb")},
             ("entity_f1", "accuracy"), reader="conll", layout="conll", own_folder=True),
        Task("wnut17", "tagging", {"train": ("wnut17train.conll",), "dev": ("emerging.dev.conll",),
                                   "test": ("emerging.test.annotated",)},
             ("entity_f1", "accuracy"), reader="conll", layout="conll"),
        Task("ud-pos", "tagging", _UD, ("accuracy",), reader="conllu", layout="conll"),
        Task("squad", "qa", _squad("{}-v1.1.json"), ("answer_f1", "exact_match"), reader="squad", layout="squad",
             answer_rules="squad"),
        Task("squad2", "qa", _squad("{}-v2.0*.json"), ("answer_f1", "exact_match"), reader="squad", layout="squad"),
        *(
            Task(f"xquad-{language}", "qa", {"train": ("train-v1.1.json",), "dev": (f"xquad.{language}.json",)},
                 ("answer_f1", "exact_match"), reader="squad", layout="squad", answer_rules="squad")
            for language in XQUAD
        ),
        Task("korquad", "qa", _squad("KorQuAD_v1.0_{}.json"), ("answer_f1", "exact_match"), reader="squad",
             layout="squad", answer_rules="korquad"),
        Task("swag", "choice", {"train": ("train.csv",), "dev": ("val.csv", "dev.csv"), "test": ("test.csv",),
                                "all": ("*swag*.csv", "*.csv", "*.json")},
             ("accuracy",), Columns(first="sent1", choices=("ending0", "ending1", "ending2", "ending3")),
             layout="choice", own_folder=True),
        Task("codah", "choice", {"train": ("full_data.tsv", "codah*.tsv")}, ("accuracy",),
             Columns(choices=("choice0", "choice1", "choice2", "choice3")), layout="choice",
             header=("category", "text", "choice0", "choice1", "choice2", "choice3", "label")),
    )
}  # fmt: skip
"""By the name that --task takes."""

_OWN: dict[Kind, tuple[Metric, ...]] = {
    "classification": ("accuracy", "f1", "matthews"),
    "pair": ("accuracy", "f1", "matthews"),
    "regression": ("pearson", "spearman"),
    "tagging": ("entity_f1", "accuracy"),
    "qa": ("answer_f1", "exact_match"),
    "choice": ("accuracy",),
}
_LAYOUTS: dict[Kind, Layout] = {"tagging": "conll", "qa": "squad", "choice": "choice"}


_OWN_FILES = {split: tuple(f"{split}.{ending}" for ending in TABLES) for split in ("train", "dev", "test")}


def find_task(name: str, *, columns: Columns) -> Task:
    """A published task by its name, or one of a kind of one's own with these columns; ConfigError for another name.

    Columns given beside a published task are refused: its files say theirs.
    """
    if name in _OWN:
        return Task(name, name, _OWN_FILES, _OWN[name], columns, layout=_LAYOUTS.get(name, "table"))
    if name not in TASKS:
        known = [*TASKS, *_OWN]
        near = difflib.get_close_matches(name, known, n=1)
        raise ConfigError(f"task={name}: {f'did you mean {near[0]}?' if near else 'known: ' + ', '.join(known)}")
    if columns != Columns():
        raise ConfigError(
            f"columns has no effect with task={name}, whose files have columns of their own; leave it out, or give "
            f"task={TASKS[name].kind}"
        )
    return TASKS[name]
