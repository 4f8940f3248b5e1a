"""Draws the curves (losses) from bench/learning.py for docs/LEARNING.md. Takes two seconds, mostly to import
matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.learning_tasks import SEEDS, Curve
from trainer.telemetry.curve import average_down, smooth

COLOURS = {"ours": "#1f4e79", "transformers": "#d9822b"}
PANELS = {"mlm": "masked-LM loss, nats", "nsp": "next-sentence loss, nats"}


def draw_steps(curves: Mapping[str, Curve], path: Path) -> None:
    """Draw both losses by step, for the runs of all seeds."""
    chosen = [curve for curve in curves.values() if curve["part"] == "steps"]
    figure, axes = open_figure(len(PANELS))
    for axis, (loss, label) in zip(axes, PANELS.items(), strict=True):
        seen: set[str] = set()
        for curve in chosen:
            who = curve["who"]
            axis.plot(*line_of(curve[loss]), color=COLOURS[who], linewidth=1.2, alpha=0.8, label=label_once(who, seen))
        set_limits(axis, [curve[loss] for curve in chosen])
        axis.set_xlabel("step")
        axis.set_ylabel(label)
        axis.legend(frameon=False, title=f"seeds {', '.join(map(str, SEEDS))}")
    save(figure, path)


def draw_resume(curves: Mapping[str, Curve], path: Path) -> None:
    """Draw the losses of the resumed run over those of the uninterrupted run."""
    resumed = curves.get(f"resume-ours-{SEEDS[0]}")
    lines = {
        "uninterrupted": (curves.get(f"whole-ours-{SEEDS[0]}"), "#1f4e79", "-"),
        "stopped and resumed": (resumed, "#c0392b", "--"),
    }
    figure, axes = open_figure(len(PANELS))
    for axis, (loss, label) in zip(axes, PANELS.items(), strict=True):
        shown = [(name, curve, colour, style) for name, (curve, colour, style) in lines.items() if curve is not None]
        for name, curve, colour, style in shown:
            axis.plot(*line_of(curve[loss]), color=colour, linestyle=style, linewidth=1.4, label=name)
        for stop in [] if resumed is None else resumed.get("stops", []):
            axis.axvline(stop, color="#555555", linewidth=1.0, linestyle=":", label=f"stopped at step {stop:,}")
        set_limits(axis, [curve[loss] for _, curve, _, _ in shown])
        axis.set_xlabel("step")
        axis.set_ylabel(label)
        axis.legend(frameon=False)
    save(figure, path)


def draw_time(curves: Mapping[str, Curve], path: Path) -> None:
    """Draw the held-out loss by training time, with a panel for each model size."""
    chosen = [curve for curve in curves.values() if curve["part"] == "time"]
    sizes = sorted(dict.fromkeys(curve["size"] for curve in chosen))
    figure, axes = open_figure(len(sizes))
    for axis, size in zip(axes, sizes, strict=True):
        for curve in (curve for curve in chosen if curve["size"] == size):
            points = [
                (each["time_s"], each["mlm_loss"]) for each in curve["evaluations"] if each["mlm_loss"] is not None
            ]
            axis.plot(*zip(*points, strict=True), "o-", color=COLOURS[curve["who"]], markersize=4, label=curve["who"])
        axis.set_title(f"BERT {size}")
        axis.set_xlabel("training time, s")
        axis.set_ylabel("held-out masked-LM loss, nats")
        axis.legend(frameon=False)
    save(figure, path)


def draw_recipes(curves: Mapping[str, Curve], path: Path) -> None:
    """Draw the held-out loss of each recipe by training time, the best at the top of the legend."""
    from matplotlib import pyplot as plt

    chosen = sorted(
        (curve for curve in curves.values() if curve["part"] == "recipe"),
        key=lambda curve: curve["evaluations"][-1]["mlm_loss"] or math.inf,
    )
    figure, (axis,) = open_figure(1)
    colours = plt.get_cmap("tab10")
    for index, curve in enumerate(chosen):
        points = [
            (each["time_s"] / 60, each["mlm_loss"]) for each in curve["evaluations"] if each["mlm_loss"] is not None
        ]
        label = curve["name"].removeprefix("recipe-")
        axis.plot(*zip(*points, strict=True), "o-", color=colours(index % 10), markersize=3, linewidth=1.2, label=label)
    axis.set_xlabel("training time, minutes")
    axis.set_ylabel("held-out masked-LM loss, nats")
    axis.legend(frameon=False, fontsize=8)
    save(figure, path)


PICTURES: Mapping[str, Callable[[Mapping[str, Curve], Path], None]] = {
    "steps": draw_steps,
    "resume": draw_resume,
    "time": draw_time,
    "recipe": draw_recipes,
}
"""For each part of the comparison, the function that draws its picture, learning-PART.png."""


def open_figure(panels: int) -> tuple[Any, Any]:
    """Return a figure with `panels` panels side by side, and the axes of the panels."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, panels, figsize=(5.5 * panels, 4.0), dpi=150, squeeze=False)
    for axis in axes[0]:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes[0]


def line_of(losses: Sequence[float | None]) -> tuple[Any, Any]:
    """Return (steps, smoothed losses) of the points to draw."""
    values = np.array([math.nan if loss is None else loss for loss in losses], dtype=np.float64)
    return average_down(np.arange(1.0, values.size + 1), smooth(values))


def set_limits(axis: Any, curves: Sequence[Sequence[float | None]]) -> None:
    """Limit the vertical axis so that the steep fall of the first steps is left out and the end of the curves is
    readable."""
    known = [loss for losses in curves for loss in losses[len(losses) // 50 :] if loss is not None]
    if known:
        low, high = np.quantile(known, [0.0, 0.98])
        axis.set_ylim(low - 0.05 * (high - low), high + 0.15 * (high - low))


def label_once(name: str, seen: set[str]) -> str | None:
    """Return `name` if it is not in `seen` yet, otherwise None. So the legend lists each name once."""
    if name in seen:
        return None
    seen.add(name)
    return name


def save(figure: Any, path: Path) -> None:
    """Write the figure to `path` and close it."""
    from matplotlib import pyplot as plt

    figure.tight_layout(w_pad=3.0)
    figure.savefig(path)
    plt.close(figure)
