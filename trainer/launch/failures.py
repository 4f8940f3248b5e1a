"""How a worker reports its failure, under every launcher."""

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
    """Whether it is a ValueError or OSError, whose message suffices; other errors are shown with their traceback."""
    traceback: str
    time: float

    @classmethod
    def of(cls, error: Exception, *, rank: int) -> WorkerFailure:
        """Describe the exception that is being handled."""
        text = " ".join(str(error).split()) or type(error).__name__
        return cls(rank, text, isinstance(error, (ValueError, OSError)), traceback.format_exc(), time.time())


GO_ON = "; the same command goes on from the last checkpoint"
"""End of the message about a lost worker."""


class WorkerError(RuntimeError):
    """A worker failed, but not because of its input."""


class ClusterError(WorkerError):
    """Ray itself is lost: only a new command can start the workers again."""


def raise_first(failures: list[WorkerFailure]) -> None:
    """Raise the first failure, if any: ConfigError for bad input, otherwise WorkerError with the traceback.

    When one worker fails, the others fail a moment later in a collective that never ends. If several blame the input,
    rank 0 is preferred: it knows what all the others reported.
    """
    if not failures:
        return
    first = min(
        failures, key=lambda failure: (not failure.by_input, failure.by_input and failure.rank > 0, failure.time)
    )
    if first.by_input:
        raise ConfigError(first.message)
    raise WorkerError(f"worker {first.rank} failed: {first.message}\n{first.traceback}")
