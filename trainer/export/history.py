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
        """Return a Markdown table of about TABLE_ROWS steps, spread over the run, with training losses (smoothed) and
        held-out losses. Evaluated steps come first. `kind` names the main loss."""
        training = _smoothed(self.training)
        held_out = {record["step"]: record for record in self.evaluations}
        chosen = _spread(sorted(held_out), most=TABLE_ROWS)
        chosen += _spread([step for step in training if step not in chosen], most=TABLE_ROWS - len(chosen))
        if not chosen:
            return []
        lines = [
            f"| step | {kind} loss, training | held-out | next-sentence loss, training | held-out |",
            "|---:|---:|---:|---:|---:|",
        ]
        for step in sorted(chosen):
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


def _spread(steps: Sequence[int], *, most: int) -> list[int]:
    if len(steps) <= most:
        return list(steps)
    return [steps[round(place)] for place in np.linspace(0, len(steps) - 1, max(most, 0))]


def _number(value: float | None) -> str:
    return "" if value is None or not np.isfinite(value) else f"{value:.4f}"
