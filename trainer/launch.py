"""What the launchers share: where a worker stands, how it talks back, how a run is asked to stop.

trainer/launch_ray.py (Ray Train) and trainer/launch_processes.py (spawned processes) both run
trainer.worker.work and differ in nothing that reaches a number.
"""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from pipeline.settings import ConfigError

Say = Callable[[str], None]
"""Shows one line to the user."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what schedulers and `ray job stop` send."""


@dataclass(frozen=True, slots=True)
class Place:
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


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a worker ended early."""

    rank: int
    message: str
    """One line."""
    by_input: bool
    """A ValueError or OSError: the message says it all. Otherwise the traceback is for us."""
    traceback: str
    time: float

    @classmethod
    def of(cls, error: Exception, *, rank: int) -> Failure:
        """Describe an exception that is being handled."""
        text = " ".join(str(error).split()) or type(error).__name__
        return cls(rank, text, isinstance(error, (ValueError, OSError)), traceback.format_exc(), time.time())


GO_ON = "; the same command goes on from the last checkpoint"
"""How the message of a loss ends."""


class WorkerError(RuntimeError):
    """A worker failed, and not for its input."""


class ClusterError(WorkerError):
    """Ray itself cannot be worked with any more: workers can be started again by a new command alone."""


def raise_first(failures: list[Failure]) -> None:
    """Raise what went wrong first, if anything: ConfigError for bad input, otherwise WorkerError with the traceback.

    When one worker fails, the others fail a moment later, for a collective that never ends. Of several that blame the
    input rank 0 is believed: it knows what all have told it.
    """
    if not failures:
        return
    first = min(
        failures, key=lambda failure: (not failure.by_input, failure.by_input and failure.rank > 0, failure.time)
    )
    if first.by_input:
        raise ConfigError(first.message)
    raise WorkerError(f"worker {first.rank} failed: {first.message}\n{first.traceback}")


class StopRequest:
    """True once a signal has come; a second signal interrupts at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def listen(self) -> None:
        """Take the signals. Again after whatever takes them for itself, as ray.init does."""
        for number in STOP_SIGNALS:
            signal.signal(number, self.receive)

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Signal handler. Raises KeyboardInterrupt the second time."""
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = number


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a StopRequest inside the block. For the main thread."""
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    request.listen()
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
