"""Plot a run: training losses, held-out losses, and the unigram and bigram baselines that a model must beat.

Takes about a second, most of it matplotlib's import. Long runs are averaged down to MAX_POINTS points.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.storage import replace_file
from trainer.telemetry.metrics import EVALUATIONS_NAME, METRICS_NAME, read_thinned

CURVE_NAME = "curve.png"
MAX_RECORDS = 20_000
"""Maximum number of steps to read. If a run is longer, only evenly spaced steps are read."""
MAX_POINTS = 1000
SMOOTHING_SHARE = 0.02
"""Each point of the smooth line is a mean over this share of the steps."""

FloatArray = npt.NDArray[np.float64]


def draw_curve(run_directory: Path) -> Path:
    """Draw RUN/curve.png from RUN/metrics.jsonl and RUN/evaluations.jsonl, and return the path of the picture.

    Raises ValueError if no step is recorded.
    """
    records = read_thinned(run_directory / METRICS_NAME, most=MAX_RECORDS)
    if not records:
        raise ValueError(f"{run_directory / METRICS_NAME}: no step is recorded, so there is no curve to draw")
    evaluations = read_thinned(run_directory / EVALUATIONS_NAME, most=MAX_POINTS)
    path = run_directory / CURVE_NAME
    with replace_file(path) as stream:
        stream.write(render_curve(records, evaluations))
    return path


def render_curve(records: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a PNG of losses over steps, from records of steps (at least one) and of held-out evaluations."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    panels = [("mlm_loss", "masked-LM loss, nats")]
    if any(record.get("nsp_loss") is not None for record in records):
        panels.append(("nsp_loss", "next-sentence loss, nats"))
    figure, axes = plt.subplots(1, len(panels), figsize=(5.5 * len(panels), 4.0), dpi=150, squeeze=False)
    for axis, (key, label) in zip(axes[0], panels, strict=True):
        steps = np.array([record["step"] for record in records], dtype=np.float64)
        losses = np.array([record.get(key) for record in records], dtype=np.float64)  # None becomes NaN
        axis.plot(*average_down(steps, losses), color="#9ab8d4", linewidth=0.8)
        axis.plot(*average_down(steps, smooth(losses)), color="#1f4e79", linewidth=1.8, label="training")
        held_out = [(record["step"], record[key]) for record in evaluations if record.get(key) is not None]
        if held_out:
            axis.plot(*zip(*held_out, strict=True), "o", color="#c0392b", label=f"held out: {held_out[-1][1]:.3f}")
        if key == "mlm_loss" and evaluations:
            for name, dashes in (("unigram", "--"), ("bigram", ":")):
                loss = evaluations[-1].get(f"{name}_loss")
                if loss is not None:
                    axis.axhline(loss, color="#555555", linestyle=dashes, linewidth=1.2, label=f"{name}: {loss:.3f}")
        axis.set_xlabel("step")
        axis.set_ylabel(label)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False)
    figure.tight_layout(w_pad=3.0)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    plt.close(figure)
    return content.getvalue()


def smooth(values: FloatArray) -> FloatArray:
    """Return the running mean of `values`, ignoring NaN.

    Each value is replaced by the mean over a window around the value. The length of the window is SMOOTHING_SHARE times
    the length of the curve. At both ends of the curve the window is shorter.
    """
    half = max(1, math.ceil(values.size * SMOOTHING_SHARE / 2))
    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    index = np.arange(values.size)
    first, stop = np.maximum(index - half, 0), np.minimum(index + half + 1, values.size)
    with np.errstate(invalid="ignore"):
        return np.asarray((sums[stop] - sums[first]) / (counts[stop] - counts[first]), dtype=np.float64)


def average_down(steps: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Reduce a curve to at most MAX_POINTS points. Return the steps and the values of these points.

    `steps` and `values` hold the coordinates of the given curve's points. If there are more than MAX_POINTS points,
    they are cut into MAX_POINTS ranges of equal length, and each range becomes one point, the mean of the range.
    """
    if steps.size <= MAX_POINTS:
        return steps, values
    bounds = np.linspace(0, steps.size, MAX_POINTS + 1).astype(np.int64)[:-1]
    sizes = np.diff(np.append(bounds, steps.size))
    return np.add.reduceat(steps, bounds) / sizes, np.add.reduceat(values, bounds) / sizes
