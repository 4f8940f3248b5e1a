"""Record the metrics of a run: one JSON object a step, a tracker's scalars, gauges for Prometheus, progress lines.

Invariant: after a resume at step N, metrics.jsonl holds the steps 1 to N and no later ones.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from pipeline import storage
from pipeline.console import Say
from pipeline.json_text import parse_json
from pipeline.storage import Location, naming
from pipeline.units import describe_seconds
from trainer.config import TrainerConfig
from trainer.telemetry.trackers import Tracker, open_tracker

if TYPE_CHECKING:
    from trainer.data import Step
    from trainer.telemetry.evaluation import Evaluation
    from trainer.telemetry.prometheus import Gauges

logger = logging.getLogger(__name__)

METRICS_NAME = "metrics.jsonl"
EVALUATIONS_NAME = "evaluations.jsonl"

SMOOTHING = 0.9
"""Weight of the past in the running mean of step times, from which the remaining time is estimated."""


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """The metrics of one step, over all workers. Losses are in nats; `nsp_*` (next sentence) are None if no pair has a
    label."""

    step: int
    epoch: int
    loss: float
    mlm_loss: float
    nsp_loss: float | None
    mlm_accuracy: float
    nsp_accuracy: float | None
    learning_rate: float
    grad_norm: float
    """Gradient norm before clipping."""
    tokens: int
    pairs: int
    masked: int
    tokens_per_second: float
    tflops: float
    """Rate of one worker, in 10^12 model FLOPs a second (trainer/telemetry/flops.py)."""
    mfu: float | None
    """`tflops` as a share of the GPU's dense bf16 peak; None if the peak is unknown."""
    data_wait_s: float
    """Seconds that a worker waited for data, as a mean over the workers."""
    step_s: float
    skipped: bool
    """Whether the update was skipped, because the loss or the gradient norm is not finite (which in fp16 can come from
    a too large loss scale)."""
    lost_rows: int = 0
    """Rows skipped in this step because their row groups cannot be read."""
    phase: int = 0
    """Index of the run's phase, from 0. `epoch` is counted within the phase."""
    hours: float | None = None
    """Hours of training over all starts of the run, when the step ends."""
    peak_memory_gb: float | None = None
    """Peak memory of tensors on the first worker's GPU since the worker's start, in units of 10^9 bytes; None on a
    CPU."""


_NUMBERS = re.compile(r"(_loss|_accuracy|tokens_per_second)(/|$)")
"""Matches the keys of numbers in records, also of a single source (`mlm_loss/NAME`)."""
_MOST = 1e300  # JSON may have whole numbers that are no floats
BLOCK_BYTES = 2**20
"""Number of bytes by which a search from the end of a long file moves back in each try."""


class JsonLines:
    """An append-only file of JSON objects, one a line, in ascending order of their key `step`. It is flushed at every
    line.

    When the file is opened, objects of steps after `keep_through` are cut off, and so is an incomplete last line. To
    find where to cut, the last BLOCK_BYTES of the file are read, and earlier blocks only if needed. Damaged lines that
    whole lines follow stay in the file, and readers pass over them.
    """

    def __init__(self, path: Path, *, keep_through: int) -> None:
        self.path = path
        path.touch()
        with open(path, "r+b") as stream:
            stream.truncate(_end_of_step(stream, step=keep_through))
        self._stream = open(path, "a", encoding="ascii")  # noqa: SIM115 (closed by close)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one object. Floats keep full precision. Floats that are not finite become null, because JSON does not
        know them."""
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        with naming(self.path):
            self._stream.write(json.dumps(finite, allow_nan=False) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        with naming(self.path):
            self._stream.close()


def read_json_lines(path: Location) -> list[dict[str, Any]]:
    """Return the objects of a JsonLines file, without damaged lines; an empty list if there is no file."""
    with suppress(FileNotFoundError):
        return [record for _, record in _whole_lines(storage.read_bytes(path).splitlines(keepends=True))]
    return []


def read_last_lines(path: Location, *, through: float = math.inf) -> list[dict[str, Any]]:
    """Return the last objects of a JsonLines file (one JSON object a line, by ascending step), oldest first.

    Only objects whose step is at most `through` are returned. If the file is long, only the last of these objects are
    returned: at most about BLOCK_BYTES in total, and at least one object. If there is no file, return an empty list.
    """
    with suppress(FileNotFoundError), storage.open_input(path) as stream:
        _seek_before(stream, step=through)
        return [record for _, record in takewhile(lambda pair: pair[1]["step"] <= through, _whole_lines(stream))]
    return []


def read_thinned(path: Location, *, most: int) -> list[dict[str, Any]]:
    """Return the objects of a JsonLines file (one JSON object a line). If the file has more than `most` objects, return
    only up to `most` evenly spaced objects, and also the last object."""
    with suppress(FileNotFoundError), storage.open_input(path) as stream:
        count = sum(block.count(b"\n") for block in iter(lambda: stream.read(BLOCK_BYTES), b""))
        stream.seek(0)
        every = max(1, -(-count // most))
        lines = (line for number, line in enumerate(stream) if number % every == 0 or number == count - 1)
        return [record for _, record in _whole_lines(lines)]
    return []


class RunLog:
    """Writes the records of one rank: the ids of the rows that it trained on. Rank 0 also writes metrics and
    evaluations (to files, the experiment tracker and Prometheus) and progress lines.

    `say` shows a line to the user, and `gauges` are the run's Prometheus metrics (None: not wanted). An earlier start
    of the run may have recorded steps after `resume_step`. These records are removed when the RunLog is made.
    """

    def __init__(
        self,
        run_directory: Path,
        *,
        config: TrainerConfig,
        rank: int,
        world_size: int,
        resume_step: int,
        say: Say,
        gauges: Gauges | None = None,
    ) -> None:
        self._say, self._rank = say, rank
        self._progress = Progress(max_steps=config.max_steps, max_hours=config.max_hours)
        self._gauges = gauges
        recorded = read_last_lines(run_directory / METRICS_NAME) if rank == 0 else []
        self.recorded_step: int = recorded[-1]["step"] if recorded else 0
        """Last step that an earlier start of the run recorded; 0 if there is none, and on ranks other than 0."""
        if rank == 0:
            for path in run_directory.glob(rows_name("*")):  # also cut files of ranks that no longer exist
                if path.name not in [rows_name(other) for other in range(world_size)]:
                    JsonLines(path, keep_through=resume_step).close()
        names = [METRICS_NAME, EVALUATIONS_NAME] if rank == 0 else []
        if config.logging.row_ids:
            names.append(rows_name(rank))
        self._files = {name: JsonLines(run_directory / name, keep_through=resume_step) for name in names}
        evaluations = read_last_lines(run_directory / EVALUATIONS_NAME) if rank == 0 else []
        self.evaluated_step: int = evaluations[-1]["step"] if evaluations else -1
        """Step of the last evaluation recorded before this start; -1 if there is none, and on ranks other than 0."""
        self._tracker = None if rank else open_tracker(config, run_directory=run_directory, resume_step=resume_step)

    def say(self, line: str) -> None:
        """Show a line if this is rank 0."""
        if self._rank == 0:
            self._say(line)

    def write_step(self, metrics: StepMetrics, *, data: Step, show: bool) -> None:
        """Record one training step. If `show`, also show it to the user as a progress line. `data` is this rank's part
        of the step."""
        rows = self._files.get(rows_name(self._rank))
        if rows is not None:
            place = {"step": metrics.step, "phase": metrics.phase, "epoch": metrics.epoch}
            rows.write({**place, "rows": row_ids(data)})
        if self._rank != 0:
            return
        self._progress.add(metrics.step_s)
        record = dataclasses.asdict(metrics)
        self._files[METRICS_NAME].write(record)
        self._write_scalars("train", record)
        if self._gauges is not None:
            self._gauges.write_step(record)
        if show:
            self._say(self._progress.line(metrics))

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Record and show one held-out evaluation."""
        if self._rank != 0:
            return
        record = evaluation.record()
        self._files[EVALUATIONS_NAME].write(record)
        self._write_scalars("validation", record)
        if self._gauges is not None:
            self._gauges.write_evaluation(record)
        for line in evaluation.lines():
            self._say(line)

    def write_checkpoint(self, pause_s: float) -> None:
        """Record how long training paused for a checkpoint (only for Prometheus)."""
        if self._gauges is not None:
            self._gauges.write_checkpoint(pause_s)

    def close(self) -> None:
        """Close the files and the tracker."""
        for file in self._files.values():
            file.close()
        self._with_tracker(lambda tracker: tracker.close())

    def _write_scalars(self, part: str, record: Mapping[str, Any]) -> None:
        numbers = {key: value for key, value in record.items() if isinstance(value, (int, float)) and key != "step"}
        named = {f"{part}/{key}": value for key, value in numbers.items()}
        self._with_tracker(lambda tracker: tracker.write(named, step=record["step"]))

    def _with_tracker(self, act: Callable[[Tracker], None]) -> None:
        """Call `act` with the tracker. If `act` fails, continue without the tracker, because a tracker must not stop a
        run."""
        if self._tracker is None:
            return
        try:
            act(self._tracker)
        except Exception as error:
            self._tracker = None
            logger.warning(
                "the tracker failed (%s: %s); training continues without it, and metrics.jsonl has everything",
                type(error).__name__, " ".join(str(error).split()),
            )  # fmt: skip


def rows_name(rank: int | str) -> str:
    """Return the name of the file in which a rank records the rows that it trained on. If `rank` is `*`, return a
    pattern that matches the files of all ranks."""
    return f"rows-{rank}.jsonl"


def row_ids(data: Step) -> list[list[int]]:
    """Return a list [epoch, shard, row group, row] for every pair in `data`, this rank's part of a step. The shard is
    an index into `data.shard_paths`."""
    return [
        ids
        for each in data.micro_batches
        if each is not None
        for ids in np.stack([each.epochs, each.shards, each.row_groups, each.rows], axis=1).tolist()
    ]


class Progress:
    """Formats the metrics of a step and the remaining time as one line."""

    def __init__(self, *, max_steps: int, max_hours: float | None = None) -> None:
        self._max_steps, self._max_hours = max_steps, max_hours
        self._steps = 0
        self._mean_step_s = 0.0

    def add(self, step_s: float) -> None:
        """Add a step's duration to the running mean. The second step's duration replaces the first one's, because the
        first step includes work that is done only once."""
        self._steps += 1
        weight = SMOOTHING if self._steps > 2 else 0.0
        self._mean_step_s = weight * self._mean_step_s + (1.0 - weight) * step_s

    def line(self, metrics: StepMetrics) -> str:
        """Return a line such as `step 120/400  loss 6.213 (mlm 5.520, nsp 0.693)  lr 9.1e-04  ...  31 s left`."""
        width = len(str(self._max_steps))
        parts = f"mlm {metrics.mlm_loss:.3f}"
        if metrics.nsp_loss is not None:
            parts += f", nsp {metrics.nsp_loss:.3f}"
        remaining = (self._max_steps - metrics.step) * self._mean_step_s
        if self._max_hours is not None and metrics.hours is not None:
            remaining = max(0.0, min(remaining, 3600 * (self._max_hours - metrics.hours)))
        return (
            f"step {metrics.step:>{width}}/{self._max_steps}  loss {metrics.loss:.3f} ({parts})  "
            f"lr {metrics.learning_rate:.1e}  norm {metrics.grad_norm:.2f}  "
            f"{metrics.tokens_per_second:,.0f} tokens/s  "
            + (f"mfu {metrics.mfu:.1%}  " if metrics.mfu is not None else "")
            + f"waiting {metrics.data_wait_s / max(metrics.step_s, 1e-9):.0%}  {describe_seconds(remaining)} left"
            + ("  (update skipped: not finite)" if metrics.skipped else "")
        )


def _end_of_step(stream: IO[bytes], *, step: int) -> int:
    start = _seek_before(stream, step=step)
    kept = [0, *(end for end, _ in takewhile(lambda pair: pair[1]["step"] <= step, _whole_lines(stream)))]
    return start + kept[-1]


def _seek_before(stream: IO[bytes], *, step: float) -> int:
    """Move the file `stream` to the start of a line whose step is at most `step`. Return the line's offset in bytes.

    The search goes back from the end of the file by BLOCK_BYTES at a time. Each time it tries one line, and it takes
    the first line that fits. If no line fits, move to the start of the file and return 0.
    """
    place = stream.seek(0, os.SEEK_END)
    while place > BLOCK_BYTES:
        place -= BLOCK_BYTES
        stream.seek(place)
        stream.readline()  # skip a partial line
        start = stream.tell()
        line = next(_whole_lines(stream), None)
        if line is not None and line[1]["step"] <= step:
            return stream.seek(start)
    return stream.seek(0)


def _whole_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each JSON object with the place of its line's end (bytes from the first of `lines`), and pass over damaged
    lines. A line is damaged if it does not end in a newline, holds no object with a step, or has another value than a
    number or null as a loss, accuracy or rate, for example after a power cut."""
    end = 0
    for line in lines:
        end += len(line)
        try:
            record = parse_json(line)
        except ValueError:
            continue
        if not line.endswith(b"\n") or not isinstance(record, dict) or type(record.get("step")) is not int:
            continue
        if abs(record["step"]) < _MOST and all(_is_sound(key, value) for key, value in record.items()):
            yield end, record


def _is_sound(key: str, value: Any) -> bool:
    """Whether the log could have `value` for `key`: a number or null where numbers are expected, and a list only as
    rows."""
    if _NUMBERS.search(key):
        return value is None or (type(value) in (int, float) and abs(value) < _MOST)
    return key == "rows" or not isinstance(value, (list, dict))
