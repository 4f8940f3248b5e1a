"""The interface between a worker and its launcher: the worker's place, its link back, the outcome of the run.

trainer/launch/ray_train.py (Ray Train) and trainer/launch/processes.py (spawned processes) both run
trainer.train.worker.work and give the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """A worker's place among all workers and among those of its node."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a run, the same on every rank."""

    first_step: int
    """Steps done when it started: 0, or the step at which it resumed."""
    last_step: int
    """Steps done when it ended."""
    finished: bool
    """Whether all steps are done; otherwise the run was asked to stop."""


class Link(Protocol):
    """A worker's connection to its launcher."""

    def say(self, line: str) -> None:
        """Show a line to the user."""

    def stop_requested(self) -> bool:
        """Whether the run should end after the current step."""
