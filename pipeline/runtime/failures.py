"""How an error in a worker reaches the main process: through a file, because engines turn exceptions into text.

The file also tells the other local workers to stop, instead of finishing hours of work for nothing.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline import storage
from pipeline.errors import Keeps, PassingError

FAILURE_NAME = "failure.json"


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong. `is_users`: the message is enough (bad input, full disk); else the details are our mistake.
    `keeps`: what of the finished pieces of the build is worth keeping."""

    message: str
    details: str
    is_users: bool
    keeps: Keeps


def choose_kept(error: BaseException | None) -> Keeps:
    """What to keep after an error: nothing where settings are to blame, which a ValueError says; all where the same
    command may get further another time; and what an error says of itself."""
    default: Keeps = "nothing" if isinstance(error, ValueError) else "all"
    found: Keeps = getattr(error, "keeps", default)
    return found


@contextmanager
def report_failure(folder: str, *, of_input: bool = False) -> Iterator[None]:
    """Leave what the body raises in `folder`, and raise it on. ValueError and OSError are the user's to mend;
    `of_input`: a ValueError says that a file of the input is to blame."""
    try:
        yield
    except Exception as error:
        is_users = isinstance(error, (ValueError, OSError))
        keeps = choose_kept(error)
        leave_failure(
            folder,
            message=describe_error(error, folder=folder),
            details=traceback.format_exc(),
            is_users=is_users,
            keeps="unchanged_input" if of_input and keeps == "nothing" else keeps,
        )
        raise


class AbandonedError(PassingError):
    """Work that nobody wants any more: another piece of the build has failed."""


def raise_if_abandoned(folder: str) -> None:
    """AbandonedError where a failure was left in `folder`: engines cannot stop a task that runs."""
    if storage.exists(storage.join(folder, FAILURE_NAME)):
        raise AbandonedError(f"{folder}: the build has failed elsewhere")


def describe_error(error: Exception, *, folder: str | Path) -> str:
    """The error's message; `folder` is named where a disk is full and the error does not say which."""
    if isinstance(error, OSError) and error.errno in storage.FULL_DISK and error.filename is None:
        return (
            f"{folder}: cannot be written ({error.strerror}); free space there and run the same command again, or "
            "choose another output"
        )
    return str(error)


def leave_failure(folder: str, *, message: str, details: str, is_users: bool, keeps: Keeps = "all") -> None:
    """Write FAILURE_NAME into `folder` unless it is there: the first failure is the cause of others."""
    target = storage.join(folder, FAILURE_NAME)
    with suppress(OSError):  # on a full disk the exception itself still goes up
        if storage.find_file(target) is None:
            text = json.dumps(asdict(Failure(message, details, is_users, keeps)))
            storage.write_bytes(target, text.encode("ascii"), make_folders=False)


def read_failure(folder: str) -> Failure | None:
    """The failure left in `folder`, if there is one."""
    try:
        return Failure(**json.loads(storage.read_bytes(storage.join(folder, FAILURE_NAME))))
    except FileNotFoundError:
        return None
