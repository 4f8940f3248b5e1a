"""Handle bad steps (a non-finite or spiking loss): record them, roll back, skip their data, and finally abort.

A decision depends only on numbers that are the same on all ranks and on state that every checkpoint holds. So a resumed
run decides like an uninterrupted run. A non-finite update is never applied.
"""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pipeline.storage import locate, naming
from trainer.config import GuardConfig, TrainerConfig
from trainer.train.branch import branch_command

BAD_STEPS_NAME = "bad_steps.jsonl"


class DivergenceError(ValueError):
    """Raised if training diverged and another rollback is impossible or not allowed."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason why a step is bad: its loss spikes, or its loss or gradient is not finite."""

    reason: str
    """A description for the user, with the loss and the gradient norm."""
    applied: bool
    """Whether the weights were updated. True if the loss is finite but spikes, false if the loss or gradient is not
    finite."""


class RollBack(Exception):  # noqa: N818 (not an error: the run continues from a checkpoint)
    """Raised on every rank when the number of bad steps in a row reaches guard.max_bad_steps.

    A step is bad if its loss spikes, or if its loss or gradient is not finite. `step` is the last bad step, and `fault`
    says why this step is bad.
    """

    def __init__(self, fault: Fault, *, step: int) -> None:
        super().__init__(f"step {step}: {fault.reason}")
        self.fault, self.step = fault, step


class DivergenceGuard:
    """Judges every step of a run and counts the bad ones: those whose loss spikes, or whose loss or gradient is not
    finite.

    `tree` is the state that `to_tree` returned for a checkpoint (None: a new run).
    """

    def __init__(self, config: GuardConfig, *, tree: Mapping[str, Any] | None = None) -> None:
        tree = tree or {}
        self._config = config
        self.bad_steps: int = tree.get("bad_steps", 0)
        """Number of bad steps in a row, up to the step judged last."""
        self.first_bad: int = tree.get("first_bad", 0)
        """First step of the latest series of bad steps; 0 if no step was bad."""
        self.rollbacks: int = tree.get("rollbacks", 0)
        """How often the run rolled back to a checkpoint."""
        self.skips: list[list[int]] = [list(window) for window in tree.get("skips", [])]
        """Ranges of steps to skip, each as [first, last]. The data of these steps are read and discarded, and no update
        is made."""
        self._losses: deque[float] = deque(tree.get("losses", []), maxlen=config.spike_window)
        self._phase: int = tree.get("phase", 0)  # the phase that _losses are from

    def to_tree(self) -> dict[str, Any]:
        """Return the guard's whole state as a dictionary that JSON can hold, with the keys bad_steps, first_bad,
        rollbacks, skips, losses and phase."""
        return {
            "bad_steps": self.bad_steps,
            "first_bad": self.first_bad,
            "rollbacks": self.rollbacks,
            "skips": self.skips,
            "losses": list(self._losses),
            "phase": self._phase,
        }

    def is_skipped(self, step: int) -> bool:
        """Return whether the data of `step` is skipped because of an earlier rollback."""
        return any(first <= step <= last for first, last in self.skips)

    def judge(self, step: int, *, phase: int, loss: float, grad_norm: float, norm_is_bad: bool) -> Fault | None:
        """Judge a step and remember the result. Return the step's fault, or None if the step is good.

        `norm_is_bad` is true if the gradient norm is not finite and fp16's loss scale is not the cause. A loss is
        compared only with losses of the same phase (part of the run), because losses on another data set are higher or
        lower.
        """
        if phase != self._phase:
            self._losses.clear()
            self._phase = phase
        fault = self._find_fault(loss=loss, grad_norm=grad_norm, norm_is_bad=norm_is_bad)
        if fault is None:
            self.bad_steps = 0
            if self._config.spike_factor is not None:
                self._losses.append(loss)
            return None
        if self.bad_steps == 0:
            self.first_bad = step
        self.bad_steps += 1
        return fault

    def is_exhausted(self) -> bool:
        """Return whether the number of bad steps in a row has reached max_bad_steps, so that the run must roll back."""
        return self.bad_steps >= self._config.max_bad_steps

    def go_back(self, *, step: int, to: int, tree: Mapping[str, Any]) -> list[int]:
        """Update the guard for a rollback. `step` is the last bad step, and `to` is the step of the checkpoint to
        return to.

        `tree` is the guard's state in that checkpoint. Returns [first, last], the range of steps that is skipped from
        now on.
        """
        window = [max(to + 1, self.first_bad - self._config.skip_before), step]
        self.skips.append(window)
        self.rollbacks += 1
        self.bad_steps = 0
        self._losses.clear()
        self._losses.extend(tree.get("losses", []))
        self._phase = tree.get("phase", 0)
        return window

    def check_may_go_back(self, back: RollBack, *, config: TrainerConfig) -> None:
        """Raise DivergenceError if the run has already rolled back as often as max_rollbacks allows. `back` is the
        request for another rollback."""
        if self.rollbacks >= self._config.max_rollbacks:
            times = f"after going back {self.rollbacks} time{'s' * (self.rollbacks != 1)}"
            raise self.give_up(back, config=config, why=times)

    def give_up(self, back: RollBack, *, config: TrainerConfig, why: str) -> DivergenceError:
        """Return the error that ends the run, because the rollback `back` is not possible.

        The message gives the reason, `why`, and a command that continues the run in a new output directory.
        """
        rows = locate(config.output, BAD_STEPS_NAME)
        return DivergenceError(
            f"{back}, {self.bad_steps} bad step{'s' * (self.bad_steps > 1)} in a row from step {self.first_bad} on, "
            f"{why}; their rows are in {rows}. With another precision or a higher guard.max_rollbacks the same command "
            f"continues from the last checkpoint; a lower rate, a longer warm-up or other data need a new output: "
            f"{branch_command(config, before=self.first_bad)}"
        )

    def _find_fault(self, *, loss: float, grad_norm: float, norm_is_bad: bool) -> Fault | None:
        numbers = f"loss {loss:g}, gradient norm {grad_norm:g}"
        if not math.isfinite(loss) or norm_is_bad:
            return Fault(f"{numbers} (the update was not applied)", applied=False)
        factor, known = self._config.spike_factor, len(self._losses)
        if factor is not None and known == self._config.spike_window:
            usual = median(self._losses)
            if loss > factor * usual:
                return Fault(f"{numbers}: over {factor:g} times the median {usual:g} of {known} steps", applied=True)
        return None


def note_bad_step(
    run_directory: Path, *, step: int, epoch: int, fault: Fault, rows: Iterable[Sequence[int]], shards: Sequence[str]
) -> None:
    """Append a record of a bad step (with a non-finite or spiking loss) to bad_steps.jsonl, and sync the file to disk.

    The file is in the run directory. `rows` holds (epoch, index into `shards`, row group, row) for each row that any
    rank read in the step. `shards` holds the paths of the shards within the data set.
    """
    groups: dict[tuple[int, int, int], list[int]] = {}
    for of_epoch, shard, row_group, row in rows:
        groups.setdefault((of_epoch, shard, row_group), []).append(row)
    record = {
        "step": step,
        "epoch": epoch,
        "reason": fault.reason,
        "applied": fault.applied,
        "rows": [
            {"epoch": of_epoch, "shard": shards[shard], "row_group": row_group, "rows": sorted(members)}
            for (of_epoch, shard, row_group), members in sorted(groups.items())
        ],
    }
    path = run_directory / BAD_STEPS_NAME
    with naming(path), open(path, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
