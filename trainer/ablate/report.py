"""The table of a ladder, in one part for each objective, because losses of different objectives do not compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from pipeline import storage
from pipeline.markdown_text import escape_markdown
from pipeline.storage import Location
from trainer.config import Objective

_TITLES: dict[Objective, tuple[str, str]] = {
    "masked_next_sentence": ("Masked tokens and next sentences", "masked-LM loss"),
    "masked": ("Masked tokens, no next sentences", "masked-LM loss"),
    "left_to_right": ("Left to right", "next-token loss"),
}


@dataclass(frozen=True, slots=True)
class TaskScore:
    """The scores of one task on dev, by seed, in shares of 1."""

    label: str
    metric: str
    values: tuple[float, ...]
    majority: float | None
    """Of guessing the commonest label; None for answers."""

    def show(self) -> str:
        """Return the median, and the least and greatest over seeds if there are several."""
        middle = f"{median(self.values):.1%}"
        if len(self.values) == 1:
            return middle
        return f"{middle} ({min(self.values):.1%} to {max(self.values):.1%})"


@dataclass(frozen=True, slots=True)
class Row:
    """One rung of a ladder."""

    name: str
    objective: Objective
    data_hash: str
    """Of the data set whose held-out rows gave the losses."""
    weights_of: str | None
    steps: int
    loss: float | None
    """Held-out, in nats for each predicted token; None without held-out rows."""
    unigram: float | None
    """The loss of token frequencies alone at the same tokens."""
    nsp_accuracy: float | None
    scores: tuple[TaskScore, ...]

    def record(self) -> dict[str, Any]:
        """Return all of it as JSON holds it."""
        return asdict(self)


def write_report(output: Location, *, rows: Sequence[Row]) -> str:
    """Write report.md and report.json to `output`; return the Markdown."""
    text = "\n".join(render(rows))
    storage.write_bytes(storage.join(output, "report.md"), text.encode("utf-8"))
    tree = {"rows": [row.record() for row in rows]}
    storage.write_bytes(storage.join(output, "report.json"), (json.dumps(tree, indent=1) + "\n").encode("utf-8"))
    return text


def render(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the report: a table for each objective and data set."""
    groups: dict[tuple[Objective, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.objective, row.data_hash), []).append(row)
    lines = ["# Ablations", ""]
    for (objective, data_hash), members in groups.items():
        title, loss = _TITLES[objective]
        several = len({key for key in groups if key[0] == objective}) > 1
        tasks = members[0].scores
        guesses = [f", guessing {score.majority:.1%}" if score.majority is not None else "" for score in tasks]
        heads = [f"{score.label}: {score.metric}{guess}" for score, guess in zip(tasks, guesses, strict=True)]
        columns = ["model", "steps", f"held-out {loss}", "of token frequencies", "next-sentence accuracy", *heads]
        lines += [f"## {title}{f' (data set {data_hash[:12]})' if several else ''}", ""]
        lines += [f"| {' | '.join(columns)} |", "|---" + "|---:" * (len(columns) - 1) + "|"]
        for row in members:
            numbers = [
                _show(row.loss),
                _show(row.unigram),
                "" if row.nsp_accuracy is None else f"{row.nsp_accuracy:.1%}",
            ]
            cells = [escape_markdown(row.name), f"{row.steps:,}", *numbers, *(score.show() for score in row.scores)]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += [
        "Losses are in nats for each predicted token, and compare within a table only. Scores are of dev: the median "
        "over seeds of fine-tuning, with the least and the greatest. Each model was pretrained with one seed, so the "
        "noise is at least this spread.",
        "",
    ]
    return lines


def _show(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
