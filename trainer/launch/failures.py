"""Reports of failed workers, and the errors that the launchers (Ray Train and spawned processes) raise from them."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass

from pipeline.errors import describe_error
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
        """Return a report of `error`. Call this inside the `except` block of `error`, because the report copies the
        current traceback."""
        text = " ".join(describe_error(error).split()) or type(error).__name__
        return cls(rank, text, isinstance(error, (ValueError, OSError)), traceback.format_exc(), time.time())


CONTINUE_HINT = "; the same command continues from the last checkpoint"
"""Text at the end of each message about lost workers."""


class WorkerError(RuntimeError):
    """Raised if a worker failed or was lost, for a reason other than bad input."""


class ClusterError(WorkerError):
    """Raised if Ray itself was lost or cannot start the workers. The command then ends; a new command can continue the
    run."""


def raise_first(failures: list[WorkerFailure]) -> None:
    """Raise an error for the failure that caused the other failures in `failures`. Do nothing if `failures` is empty.

    When one worker fails, the other workers fail a moment later in a collective operation. So the earliest failure is
    the cause, with two exceptions. A report of bad input comes before all other failures. If several workers report bad
    input, the report of rank 0 comes first, because rank 0 knows what all workers reported. The error is ConfigError
    for bad input, and otherwise WorkerError with the traceback.
    """
    if not failures:
        return
    first = min(
        failures, key=lambda failure: (not failure.by_input, failure.by_input and failure.rank > 0, failure.time)
    )
    if first.by_input:
        raise ConfigError(first.message)
    raise WorkerError(f"worker {first.rank} failed: {first.message}\n{first.traceback}")
