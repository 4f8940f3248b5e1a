"""What fine-tuning found of an export: the table of the model card, and the `model-index` that the hub reads.

`python -m trainer.finetune` writes report.json. It names the checkpoint of the model that was fine-tuned, so scores
never stand in the card of other weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline import storage
from pipeline.json_text import parse_json
from pipeline.markdown_text import escape_markdown
from pipeline.storage import locate

TASKS_NAME = "report.json"
_REMEDY = "run the same `python -m trainer.finetune` again: it writes the report from the runs that are done"
_TASK_TYPES = {
    "classification": "text-classification",
    "pair": "text-classification",
    "regression": "text-classification",
    "tagging": "token-classification",
    "qa": "question-answering",
    "choice": "multiple-choice",
}
"""The hub's name for each kind of task."""
_METRIC_TYPES = {
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "entity_f1": "f1",
    "answer_f1": "f1",
}
"""The hub's names for metrics that it calls otherwise."""
_DATA_SETS: dict[str, tuple[str, ...]] = {
    **{name: ("nyu-mll/glue", name) for name in ("cola", "sst2", "rte", "wnli", "mrpc", "qnli", "qqp", "stsb")},
    "mnli": ("nyu-mll/glue", "mnli_matched"),
    "mnli-mm": ("nyu-mll/glue", "mnli_mismatched"),
    "imdb": ("stanfordnlp/imdb",),
    "nsmc": ("e9t/nsmc",),
    **{f"klue-{name}": ("klue/klue", name) for name in ("nli", "sts", "ner")},
    "conll2003": ("eriktks/conll2003",),
    "wnut17": ("leondz/wnut_17",),
    "squad": ("rajpurkar/squad",),
    "squad2": ("rajpurkar/squad_v2",),
    "korquad": ("KorQuAD/squad_kor_v1",),
    "swag": ("allenai/swag",),
}
"""The hub's repository, and its configuration, of published tasks."""
_Share = Annotated[float, Field(ge=-1.0, le=1.0, allow_inf_nan=False)]


class TaskReportError(ValueError):
    """Raised if the report of a fine-tuning cannot be read, or is of another model."""


class _Foreign(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class TaskRow(_Foreign):
    """One task with one setting, as trainer.finetune reports it. All values are shares of 1 on held-out examples."""

    label: str
    task: str
    kind: str
    setting: str
    metric: str
    value: _Share
    """The median over seeds."""
    best: _Share
    values: list[_Share]
    """By seed."""
    others: dict[str, _Share]
    """Medians of the other metrics."""
    majority: _Share | None
    """What guessing the commonest label gets; None for answers."""
    num_examples: dict[str, int]
    by_hash: bool
    """Whether train and dev are parts of one file."""


class TaskReport(_Foreign):
    """The report of a fine-tuning: which checkpoint it was of, and each task's rows."""

    checkpoint: str
    """The sha256 of the checkpoint's manifest."""
    step: int
    rows: list[TaskRow]

    def best_rows(self) -> list[TaskRow]:
        """Return each task's setting with the greatest median; the first of equals."""
        chosen: dict[str, TaskRow] = {}
        for row in self.rows:
            if row.label not in chosen or row.value > chosen[row.label].value:
                chosen[row.label] = row
        return list(chosen.values())


def read_task_report(folder: str | Path) -> TaskReport:
    """Return the report in `folder`, the output of a fine-tuning. Raises TaskReportError if there is none, if it is
    damaged, or if the model was no export of a checkpoint."""
    path = locate(folder, TASKS_NAME)
    if storage.find_file(path) is None:
        raise TaskReportError(
            f"{path}: is missing; give the output of `python -m trainer.finetune` with several tasks or seeds, or "
            f"with --grid: those write it"
        )
    try:
        tree = parse_json(storage.read_bytes(path))
        if isinstance(tree, dict) and "checkpoint" in tree and tree["checkpoint"] is None:
            raise TaskReportError(
                f"{path}: is of the model {str(tree.get('model'))[:200]}, which is no export of a run; fine-tune the "
                f"export of this run"
            )
        report = TaskReport.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise TaskReportError(f"{path}: {key}: {first['msg']}; {_REMEDY}") from error
    except TaskReportError:
        raise
    except ValueError as error:
        raise TaskReportError(f"{path}: is damaged ({error}); {_REMEDY}") from error
    if not report.rows:
        raise TaskReportError(f"{path}: has no task; {_REMEDY}")
    return report


def render_tasks(report: TaskReport) -> list[str]:
    """Return the lines of the card's section about tasks."""
    lines = [
        "## Fine-tuned on tasks",
        "",
        "Percent on held-out examples, over the seeds of the best setting; the share that guessing the commonest label "
        "gets.",
        "",
        "| task | metric | median | best | seeds | guessing | training examples | held-out examples | setting |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in report.best_rows():
        others = "".join(f" ({escape_markdown(name)} {_percent(value)})" for name, value in row.others.items())
        held_out = row.num_examples.get(_split_of(row), 0)
        cells = [
            escape_markdown(row.label),
            escape_markdown(row.metric) + others,
            _percent(row.value),
            _percent(row.best),
            str(len(row.values)),
            "" if row.majority is None else _percent(row.majority),
            f"{row.num_examples.get('train', 0):,}",
            f"{held_out:,}{' by hash' if row.by_hash else ''}",
            escape_markdown(row.setting),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if any(row.by_hash for row in report.rows):
        lines += ["", "By hash: one file was split into training and held-out examples; no published number compares."]
    return [*lines, ""]


def model_index(report: TaskReport, *, name: str) -> list[dict[str, Any]]:
    """Return `model-index` of the card's front matter: for each task its metrics, as medians over seeds in shares of 1.
    `name` is the model's name."""
    return [{"name": name, "results": [_index_row(row) for row in report.best_rows()]}]


def _index_row(row: TaskRow) -> dict[str, Any]:
    where = _DATA_SETS.get(row.task, (row.task,))
    data_set: dict[str, Any] = {"type": where[0], "name": f"{row.label}{' (split by hash)' if row.by_hash else ''}"}
    if len(where) > 1:
        data_set["config"] = where[1]
    if not row.by_hash:
        data_set["split"] = "validation"
    values: Mapping[str, float] = {row.metric: row.value, **row.others}
    seeds = f"median of {len(row.values)} seeds" if len(row.values) > 1 else "one seed"
    return {
        "task": {"type": _TASK_TYPES.get(row.kind, row.kind), "name": row.label},
        "dataset": data_set,
        "metrics": [
            {"type": _METRIC_TYPES.get(metric, metric), "value": round(value, 4), "name": f"{metric}, {seeds}"}
            for metric, value in values.items()
        ],
    }


def _split_of(row: TaskRow) -> str:
    return "dev-mm" if row.label.endswith("-mm") else "dev"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
