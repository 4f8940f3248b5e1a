"""What a run recorded up to a step, for the model card: losses, curve, time and hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from pipeline.markdown_text import escape_markdown
from pipeline.storage import Location, locate
from pipeline.units import count_of, describe_seconds
from trainer.checkpoint import CheckpointState
from trainer.telemetry import EVALUATIONS_NAME, METRICS_NAME, read_thinned, render_curve, smooth

MAX_RECORDS = 20_000
"""Records to read of a longer log, evenly spaced."""
TABLE_ROWS = 10


@dataclass(frozen=True, slots=True)
class History:
    """The records of a run up to the exported step, oldest first."""

    training: Sequence[Mapping[str, Any]] = ()
    evaluations: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def read(cls, run: Location, *, through: int) -> History:
        """Return the records in the run directory `run` of steps up to `through`."""
        records = [
            [record for record in read_thinned(locate(run, name), most=MAX_RECORDS) if record["step"] <= through]
            for name in (METRICS_NAME, EVALUATIONS_NAME)
        ]
        return cls(*records)

    def draw(self) -> bytes | None:
        """Return the loss curve as a PNG, or None if no step is recorded."""
        return render_curve(self.training, self.evaluations) if self.training else None

    def table(self, *, kind: str) -> list[str]:
        """Return a Markdown table of at most TABLE_ROWS steps, spread over the run, with training losses (smoothed) and
        held-out losses. `kind` names the main loss."""
        training = _smoothed(self.training)
        held_out = {record["step"]: record for record in self.evaluations}
        chosen = _spread(list(training), preferred=list(held_out))
        if not chosen:
            return []
        lines = [
            f"| step | {kind} loss, training | held-out | next-sentence loss, training | held-out |",
            "|---:|---:|---:|---:|---:|",
        ]
        for step in chosen:
            mlm, nsp = training.get(step, (None, None))
            record = held_out.get(step, {})
            cells = map(_number, (mlm, record.get("mlm_loss"), nsp, record.get("nsp_loss")))
            lines.append(f"| {step:,} | {' | '.join(cells)} |")
        return [*lines, "", "Training losses are means over neighbouring steps; losses are in nats.", ""]

    def cost(self, state: CheckpointState) -> list[str]:
        """Return a line about time, workers, hardware and rate, as far as they are recorded."""
        rates = [rate for record in self.training if (rate := record.get("tokens_per_second"))]
        device = escape_markdown(state.versions.get("device", "")) or "unknown hardware"
        parts = [f"{count_of(state.world_size, 'worker')} on {device}"]
        if state.seconds:
            parts.append(f"{describe_seconds(state.seconds)} of training")
        if rates:
            parts.append(f"{median(rates):,.0f} tokens a second (median over steps)")
        libraries = [f"{name} {version}" for name, version in state.versions.items() if name != "device"]
        line = f"{', '.join(parts)}."
        return [line + (f" Versions: {escape_markdown(', '.join(libraries))}." if libraries else ""), ""]


def _smoothed(records: Sequence[Mapping[str, Any]]) -> dict[int, tuple[float, float]]:
    """Return step -> (masked-LM loss, next-sentence loss), each a mean over neighbouring steps."""
    mlm, nsp = (
        smooth(np.array([record.get(key) for record in records], dtype=np.float64)) for key in ("mlm_loss", "nsp_loss")
    )
    return {record["step"]: (float(mlm[place]), float(nsp[place])) for place, record in enumerate(records)}


def _spread(steps: Sequence[int], *, preferred: Sequence[int]) -> list[int]:
    """Return at most TABLE_ROWS of `steps` and `preferred`, about evenly spread, and one of `preferred` where one is
    near."""
    known = sorted({*steps, *preferred})
    if not known:
        return []
    gap = (known[-1] - known[0]) / (TABLE_ROWS - 1)
    chosen = set()
    for place in np.linspace(known[0], known[-1], TABLE_ROWS):
        near = [step for step in preferred if abs(step - place) <= gap / 2]
        chosen.add(min(near or known, key=lambda step: abs(step - float(place))))
    return sorted(chosen)


def _number(value: float | None) -> str:
    return "" if value is None or not np.isfinite(value) else f"{value:.4f}"
