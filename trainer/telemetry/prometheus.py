"""Give the metrics of a run to Prometheus through Ray, under names such as ray_cloze_loss.

On each node, Ray's agent serves the values that the node's processes set. Rank 0 sets the metrics of the steps. The
driver (the process that starts the workers) counts restarts. The tag `run` is the whole output path, because two runs
may have folders of the same name. Setting a value costs microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Counter, Gauge

STEP_GAUGES = {
    "step": "Last step that is done",
    "epoch": "Epoch of that step, from 0",
    "loss": "Training loss, nats",
    "mlm_loss": "Masked-LM loss, nats",
    "nsp_loss": "Next-sentence loss, nats",
    "learning_rate": "Learning rate",
    "grad_norm": "Gradient norm before clipping",
    "tokens_per_second": "Real tokens a second, all workers",
    "tflops": "Model FLOPs of a worker, 10^12 a second",
    "mfu": "Model FLOPs as a share of the GPU's dense bf16 peak",
    "data_wait_s": "Seconds that a worker waited for data in the step",
    "step_s": "Seconds of the step",
}
"""Maps a field of StepMetrics to its description."""
HELD_OUT_GAUGES = {
    "mlm_loss": "Held-out masked-LM loss, nats",
    "nsp_accuracy": "Held-out next-sentence accuracy",
    "unigram_loss": "Cross-entropy of word frequencies on the same tokens, nats",
}
"""Maps a field of Evaluation to its description."""
CHECKPOINT = "checkpoint_pause_s"
COUNTERS = {
    "tokens": "Real tokens trained on",
    "skipped_steps": "Steps whose update was left out, not being finite",
    "lost_rows": "Rows skipped, of row groups that cannot be read",
    "checkpoints": "Checkpoints begun",
    "restarts": "Groups of workers started after the first",
}
PREFIX = "cloze_"
TAG = "run"


def list_names() -> list[str]:
    """Return the names of all our metrics as Prometheus shows them, with the prefix and suffix that Ray adds."""
    gauges = [*STEP_GAUGES, CHECKPOINT, *(f"held_out_{name}" for name in HELD_OUT_GAUGES)]
    return [f"ray_{PREFIX}{name}" for name in gauges] + [f"ray_{PREFIX}{name}_total" for name in COUNTERS]


class Gauges:
    """The Prometheus metrics that rank 0 sets for one run."""

    def __init__(self, output: str) -> None:
        self._tags = {TAG: output}
        held_out = {f"held_out_{name}": text for name, text in HELD_OUT_GAUGES.items()}
        texts = {**STEP_GAUGES, **held_out, CHECKPOINT: "Seconds that training paused for the last checkpoint"}
        self._gauges = {
            name: Gauge(f"{PREFIX}{name}", description=text, tag_keys=(TAG,)) for name, text in texts.items()
        }
        self._counters = {name: _counter(name, text) for name, text in COUNTERS.items() if name != "restarts"}

    def write_step(self, record: Mapping[str, Any]) -> None:
        """Set the metrics of a step. `record` holds the fields of StepMetrics by name."""
        for name in STEP_GAUGES:
            self._set(name, record[name])
        self._count("tokens", record["tokens"])
        self._count("skipped_steps", int(record["skipped"]))
        self._count("lost_rows", record["lost_rows"])

    def write_evaluation(self, record: Mapping[str, Any]) -> None:
        """Set the metrics of a held-out evaluation. `record` is what Evaluation.record returned."""
        for name in HELD_OUT_GAUGES:
            self._set(f"held_out_{name}", record[name])

    def write_checkpoint(self, pause_s: float) -> None:
        """Set how long training paused for a checkpoint, in seconds, and count the checkpoint."""
        self._set(CHECKPOINT, pause_s)
        self._count("checkpoints", 1)

    def _set(self, name: str, value: float | None) -> None:
        if value is not None and math.isfinite(value):
            self._gauges[name].set(value, tags=self._tags)

    def _count(self, name: str, number: int) -> None:
        if number:
            self._counters[name].inc(number, tags=self._tags)


class RestartCount:
    """Counts how often the driver (the process that starts a run's workers) starts the workers again."""

    def __init__(self, output: str) -> None:
        self._tags = {TAG: output}
        self._counter = _counter("restarts", COUNTERS["restarts"])

    def add(self) -> None:
        """Count one restart."""
        self._counter.inc(1, tags=self._tags)


def _counter(name: str, text: str) -> Counter:
    return Counter(f"{PREFIX}{name}", description=text, tag_keys=(TAG,))
