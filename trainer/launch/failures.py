"""Reports of failed workers, and the errors that the launchers (Ray Train and spawned processes) raise from them."""

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
    """Whether the error is a ValueError or OSError. Such an error counts as bad input and is shown without its
    traceback."""
    traceback: str
    time: float

    @classmethod
    def of(cls, error: Exception, *, rank: int) -> WorkerFailure:
        """Return a report of `error`. Call this while `error` is being handled, because the report takes over the
        traceback."""
        text = " ".join(str(error).split()) or type(error).__name__
        return cls(rank, text, isinstance(error, (ValueError, OSError)), traceback.format_exc(), time.time())


CONTINUE_HINT = "; the same command continues from the last checkpoint"
"""End of each message about lost workers."""


class WorkerError(RuntimeError):
    """Raised if a worker failed or was lost, for a reason other than bad input."""


class ClusterError(WorkerError):
    """Raised if Ray itself was lost or cannot start the workers. Only a new command can then start them again."""


def raise_first(failures: list[WorkerFailure]) -> None:
    """Raise an error for the one of `failures` that caused the others, or do nothing if there are no failures.

    Bad input raises ConfigError, and anything else WorkerError with the traceback. When one worker fails, the others
    fail a moment later in a collective operation, so the earliest failure is the cause. But bad input comes before all
    other failures, and rank 0's report of bad input before those of other ranks, because rank 0 knows what all workers
    reported.
    """
    if not failures:
        return
    first = min(
        failures, key=lambda failure: (not failure.by_input, failure.by_input and failure.rank > 0, failure.time)
    )
    if first.by_input:
        raise ConfigError(first.message)
    raise WorkerError(f"worker {first.rank} failed: {first.message}\n{first.traceback}")
