"""Reports errors of workers to the main process through a file, because engines turn exceptions into text.

The file also makes other workers stop early.
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
    """An error of a worker. `keeps` says which finished splits and shards are kept for the next start of the build.

    If `is_users` is true, the user can fix the error (bad input, full disk) and needs only the message. Otherwise the
    error is a bug, and `details` (a traceback) helps to find it.
    """

    message: str
    details: str
    is_users: bool
    keeps: Keeps


def choose_kept(error: BaseException | None) -> Keeps:
    """Return which finished work of a build to keep after `error`: the value of the error's attribute `keeps`.

    If the error has no such attribute, nothing is kept after a ValueError (bad settings). All finished work is kept
    after any other error, because the same command may get further next time.
    """
    default: Keeps = "nothing" if isinstance(error, ValueError) else "all"
    found: Keeps = getattr(error, "keeps", default)
    return found


@contextmanager
def report_failure(folder: str, *, of_input: bool = False) -> Iterator[None]:
    """If the body of the `with` raises an error, write the error to `folder` (leave_failure) and raise it again.

    A ValueError or OSError is reported as an error that the user can fix. If `of_input` is true, a ValueError is the
    fault of an input file. After a fault of an input file, the finished splits and shards are kept. The next start of
    the build uses those whose input files have not changed.
    """
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
    """The work is no longer needed, because a worker has failed at another split or shard of the build."""


def raise_if_abandoned(folder: str) -> None:
    """Raise AbandonedError if another worker has left a failure in `folder`. Tasks call this from time to time, because
    engines cannot stop a running task."""
    if storage.exists(storage.join(folder, FAILURE_NAME)):
        raise AbandonedError(f"{folder}: the build has failed elsewhere")


def describe_error(error: Exception, *, folder: str | Path) -> str:
    """Return the error's message. If the error says that a disk is full but names no path, the message names `folder`
    and the remedy."""
    if isinstance(error, OSError) and error.errno in storage.FULL_DISK and error.filename is None:
        return (
            f"{folder}: cannot be written ({error.strerror}); free space there and run the same command again, or "
            "choose another output"
        )
    return str(error)


def leave_failure(folder: str, *, message: str, details: str, is_users: bool, keeps: Keeps = "all") -> None:
    """Write a failure (see Failure) to the file FAILURE_NAME in `folder`. If the file exists, keep it as it is, because
    the first failure causes the later ones."""
    target = storage.join(folder, FAILURE_NAME)
    with suppress(OSError):  # if the disk is full, the exception itself still propagates
        if storage.find_file(target) is None:
            text = json.dumps(asdict(Failure(message, details, is_users, keeps)))
            storage.write_bytes(target, text.encode("ascii"), make_folders=False)


def read_failure(folder: str) -> Failure | None:
    """Return the failure that leave_failure wrote to `folder`, or None if there is none."""
    try:
        return Failure(**json.loads(storage.read_bytes(storage.join(folder, FAILURE_NAME))))
    except FileNotFoundError:
        return None
