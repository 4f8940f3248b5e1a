"""How the failure of a worker is told, whoever launched it."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass

from pipeline.settings import ConfigError


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """Why a worker ended early."""

    rank: int
    message: str
    """One line."""
    by_input: bool
    """A ValueError or OSError: the message says it all. Otherwise the traceback is for us."""
    traceback: str
    time: float

    @classmethod
    def of(cls, error: Exception, *, rank: int) -> WorkerFailure:
        """Describe an exception that is being handled."""
        text = " ".join(str(error).split()) or type(error).__name__
        return cls(rank, text, isinstance(error, (ValueError, OSError)), traceback.format_exc(), time.time())


GO_ON = "; the same command goes on from the last checkpoint"
"""How the message of a loss ends."""


class WorkerError(RuntimeError):
    """A worker failed, and not for its input."""


class ClusterError(WorkerError):
    """Ray itself cannot be worked with any more: workers can be started again by a new command alone."""


def raise_first(failures: list[WorkerFailure]) -> None:
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
