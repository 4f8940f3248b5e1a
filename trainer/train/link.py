"""What a worker and its launcher know of each other: where it stands, how it talks back, what the run came to.

trainer/launch/ray_train.py (Ray Train) and trainer/launch/processes.py (spawned processes) both run
trainer.train.worker.work and differ in nothing that reaches a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a worker stands among the others."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to, the same on every rank."""

    first_step: int
    """The last step that was done when it started: 0, or the step it resumed at."""
    last_step: int
    """The last step that was done when it ended."""
    finished: bool
    """All steps are done; otherwise the run was asked to stop."""


class Link(Protocol):
    """A worker's line to whoever started it."""

    def say(self, line: str) -> None:
        """Show a line to the user."""

    def stop_requested(self) -> bool:
        """Whether the run is to end after the present step."""
