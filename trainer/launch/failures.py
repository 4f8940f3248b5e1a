"""How a worker reports its failure, under either launcher."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass

from pipeline.settings import ConfigError


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """A worker's report of why it ended early."""

    rank: int
    message: str
    """The error's text in one line."""
    by_input: bool
    """Whether the error is a ValueError or OSError, whose message suffices. Other errors are shown with their
    traceback."""
    traceback: str
    time: float

    @classmethod
    def of(cls, error: Exception, *, rank: int) -> WorkerFailure:
        """Return the report of the exception that is being handled."""
        text = " ".join(str(error).split()) or type(error).__name__
        return cls(rank, text, isinstance(error, (ValueError, OSError)), traceback.format_exc(), time.time())


CONTINUE_HINT = "; the same command continues from the last checkpoint"
"""End of the message about a lost worker."""


class WorkerError(RuntimeError):
    """A worker failed or was lost, for a reason other than bad input."""


class ClusterError(WorkerError):
    """Ray itself was lost or cannot start the workers, so only a new command can start them again."""


def raise_first(failures: list[WorkerFailure]) -> None:
    """Raise the first failure, if any: ConfigError for bad input, otherwise WorkerError with the traceback.

    The first is the cause: when one worker fails, the others fail a moment later in a collective operation. Reports of
    bad input come first, and rank 0's before all others, because rank 0 knows what all workers reported.
    """
    if not failures:
        return
    first = min(
        failures, key=lambda failure: (not failure.by_input, failure.by_input and failure.rank > 0, failure.time)
    )
    if first.by_input:
        raise ConfigError(first.message)
    raise WorkerError(f"worker {first.rank} failed: {first.message}\n{first.traceback}")
