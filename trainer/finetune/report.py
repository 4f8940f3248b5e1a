"""The outcome of a study: one row a task, as a Markdown table, as JSON, and as a picture beside published numbers."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

from pipeline import storage
from pipeline.storage import Location, locate
from trainer.export import read_export_mark
from trainer.finetune.published import GLUE, GLUE_TASKS, PUBLISHED, average_glue
from trainer.finetune.study import Finding
from trainer.finetune.tasks import find_task

REPORT_NAME, JSON_NAME, PICTURE_NAME = "report.md", "report.json", "scores.png"
MANY_SETTINGS = 1
"""Settings of a task above which the report lists each."""


@dataclass(frozen=True, slots=True)
class Row:
    """One task with one setting, over its seeds. All values are in shares of 1 and of dev."""

    label: str
    task: str
    kind: str
    setting: str
    metric: str
    value: float
    """The median over seeds."""
    best: float
    """The greatest over seeds."""
    values: tuple[float, ...]
    """By seed."""
    others: Mapping[str, float]
    """Medians of the other metrics."""
    majority: float | None
    """The median of guessing the commonest label; None for answers."""
    num_examples: Mapping[str, int]
    by_hash: bool


def make_rows(findings: Sequence[Finding]) -> list[Row]:
    """Return a row for each setting of each task, in the order of the runs; for MNLI also one for its second half."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for found in findings:
        groups.setdefault((found.run.label, found.run.setting), []).append(found)
    rows = []
    for (label, setting), runs in groups.items():
        for split in ("dev", "dev-mm"):
            if split in runs[0].result.metrics:
                rows.append(_make_row(label + split.removeprefix("dev"), setting=setting, runs=runs, split=split))
    return rows


def _make_row(label: str, *, setting: str, runs: Sequence[Finding], split: str) -> Row:
    first = runs[0].result
    dev = [run.result.metrics[split] for run in runs]
    guesses = [run.result.metrics.get(f"{split} majority", {}).get(first.metric) for run in runs]
    values = tuple(values[first.metric] for values in dev)
    return Row(
        label=label,
        task=first.task + split.removeprefix("dev"),
        kind=find_task(runs[0].run.config.task, columns=runs[0].run.config.columns).kind,
        setting=setting,
        metric=first.metric,
        value=median(values),
        best=max(values),
        values=values,
        others={name: median(each[name] for each in dev) for name in dev[0] if name != first.metric},
        majority=None if guesses[0] is None else median(guess for guess in guesses if guess is not None),
        num_examples=first.num_examples,
        by_hash=first.by_hash,
    )


def choose_rows(rows: Sequence[Row]) -> list[Row]:
    """Return each task's setting with the greatest median; the first of equals."""
    chosen: dict[str, Row] = {}
    for row in rows:
        if row.label not in chosen or row.value > chosen[row.label].value:
            chosen[row.label] = row
    return list(chosen.values())


def write_report(folder: Location, *, rows: Sequence[Row], model: str, left_out: Sequence[str]) -> str:
    """Write report.md, report.json and scores.png to `folder`; return the Markdown. `left_out`: a line for each task
    that was not trained. report.json names the checkpoint of which `model` is an export, for its card."""
    text = "\n".join(_render(rows, model=model, left_out=left_out)) + "\n"
    storage.write_bytes(storage.join(folder, REPORT_NAME), text.encode("utf-8"))
    checkpoint, step = read_export_mark(locate(model)) or (None, None)
    found = {"rows": [asdict(row) for row in rows], "left_out": list(left_out)}
    tree = {"model": model, "checkpoint": checkpoint, "step": step, **found}
    storage.write_bytes(storage.join(folder, JSON_NAME), (json.dumps(tree, indent=1) + "\n").encode("ascii"))
    storage.write_bytes(storage.join(folder, PICTURE_NAME), draw(choose_rows(rows)))
    return text


def _render(rows: Sequence[Row], *, model: str, left_out: Sequence[str]) -> Iterator[str]:
    chosen = choose_rows(rows)
    yield f"# {model} on {len(chosen)} {'task' if len(chosen) == 1 else 'tasks'}"
    yield ""
    yield "Percent on held-out examples: the median over seeds, the best run, and the share that guessing gets."
    yield ""
    yield "| task | metric | median | best | seeds | guessing | BERT-Base | BERT-Large | train | dev | setting |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for row in chosen:
        published = PUBLISHED.get(row.task, (None, None)) if not row.by_hash else (None, None)
        dev = "dev-mm" if row.label.endswith("-mm") else "dev"
        counts = f"{row.num_examples['train']:,} | {row.num_examples[dev]:,}{' by hash' if row.by_hash else ''}"
        cells = [row.value, row.best, len(row.values), row.majority, *published]
        shown = " | ".join(str(cell) if isinstance(cell, int) else _percent(cell) for cell in cells)
        others = "".join(f" ({name} {_percent(value)})" for name, value in row.others.items())
        yield f"| {row.label} | {row.metric}{others} | {shown} | {counts} | {row.setting} |"
    yield from _add_glue(chosen)
    yield ""
    yield "Published: Devlin et al. 2019, each task fine-tuned alone; GLUE's tasks on the test sets, the others on dev."
    if any(row.by_hash for row in chosen):
        yield "`by hash`: one file was split into train and dev, so no published number compares."
    yield from ("", *(f"Left out: {line}" for line in left_out)) if left_out else ()
    many = [row for row in rows if sum(other.label == row.label for other in rows) > MANY_SETTINGS]
    if many:
        yield from ("", "## All settings", "", "| task | setting | median | best | by seed |", "|---|---|---|---|---|")
        for row in many:
            seeds = ", ".join(map(_percent, row.values))
            yield f"| {row.label} | {row.setting} | {_percent(row.value)} | {_percent(row.best)} | {seeds} |"


def _add_glue(chosen: Sequence[Row]) -> Iterator[str]:
    """The average, if the study has every task of GLUE with its own dev set."""
    own = {row.task: row for row in chosen if not row.by_hash}
    if set(GLUE_TASKS) | {"mnli-mm"} <= own.keys():
        middle, best = (fmean(getattr(own[name], key) for name in GLUE) for key in ("value", "best"))
        published = " | ".join(_percent(average_glue(column)) for column in (0, 1))
        own_cells = f"{_percent(middle)} | {_percent(best)}"
        yield f"| **GLUE** | mean of nine, without WNLI | {own_cells} | | | {published} | | | |"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def draw(rows: Sequence[Row]) -> bytes:
    """Return a PNG: a line for each task with the median, guessing, and the numbers of BERT-Base and BERT-Large."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(8.0, 1.4 + 0.34 * len(rows)), dpi=150)
    places = list(range(len(rows)))[::-1]
    series = [("this model, median over seeds", [100 * row.value for row in rows], "o", "#1f4e79", 7.0)]
    for name, column, marker in (("BERT-Base", 0, "^"), ("BERT-Large", 1, "s")):
        shares = [None if row.by_hash else PUBLISHED.get(row.task, (None, None))[column] for row in rows]
        percents = [100 * share if share is not None else float("nan") for share in shares]
        series.append((f"{name}, published", percents, marker, "#c0392b", 5.0))
    guesses = [float("nan") if row.majority is None else 100 * row.majority for row in rows]
    series.append(("guessing the commonest label", guesses, "|", "#555555", 9.0))
    for place, row in zip(places, rows, strict=True):
        low, high = 100 * min(row.values), 100 * max(row.values)
        axis.plot([low, high], [place, place], color="#9ab8d4", linewidth=4.0, solid_capstyle="round", zorder=1)
    for name, values, marker, color, size in series:
        filled = color if marker != "s" else "none"
        axis.plot(values, places, marker, color=color, markerfacecolor=filled, markersize=size, label=name)
    axis.set_yticks(places, [f"{row.label}\n{row.metric.replace('_', ' ')}" for row in rows], fontsize=7)
    axis.set_xlim(min(0.0, *(100 * min(row.values) for row in rows)) - 2.0, 102.0)
    axis.set_ylim(-0.6, len(rows) - 0.4)
    axis.set_xlabel("percent on held-out examples")
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
    figure.tight_layout()
    content = io.BytesIO()
    figure.savefig(content, format="png")
    plt.close(figure)
    return content.getvalue()
