"""The interface between a worker and the launcher that started it.

There are two launchers: trainer/launch/ray_train.py (Ray Train) and trainer/launch/processes.py (spawned processes).
Both run trainer.train.worker.work and give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """A worker's rank among all workers, and its local rank among the workers of its node. Both count from 0.

    `world_size` is the number of all workers, and `local_world_size` is the number of workers on the node.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one start of a run's workers. It is the same on every rank."""

    first_step: int
    """Number of steps done when the workers started: 0, or the step at which the run resumed."""
    last_step: int
    """Number of steps done when the workers ended."""
    finished: bool
    """Whether all steps of the run are done. If false, the workers were asked to stop."""


Job = Callable[..., Outcome]
"""What a worker runs. A launcher calls it with the config and the keywords place, link, device and lease_token, and on
Ray also reader."""


class Link(Protocol):
    """A worker's connection to its launcher."""

    def say(self, line: str) -> None:
        """Show a line to the user."""

    def stop_requested(self) -> bool:
        """Return whether the launcher asks the worker to end after the current step."""
