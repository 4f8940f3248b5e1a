"""How an error in a worker reaches the main process: through a file, because engines turn exceptions into text.

The file also tells the other local workers to stop, instead of finishing hours of work for nothing.
"""

from __future__ import annotations

import errno
import json
import os
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

FAILURE_NAME = "failure.json"
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong. `is_users`: the message is enough (bad input, full disk); else the details are our mistake."""

    message: str
    details: str
    is_users: bool


@contextmanager
def report_failure(folder: str) -> Iterator[None]:
    """Leave what the body raises in `folder`, and raise it on. ValueError and OSError are the user's to mend."""
    try:
        yield
    except Exception as error:
        is_users = isinstance(error, (ValueError, OSError))
        leave_failure(
            folder, message=describe_error(error, folder=folder), details=traceback.format_exc(), is_users=is_users
        )
        raise


def describe_error(error: Exception, *, folder: str | Path) -> str:
    """The error's message; `folder` is named where a disk is full and the error does not say which."""
    if isinstance(error, OSError) and error.errno in _FULL_DISK and error.filename is None:
        return f"{folder}: cannot be written ({error.strerror}); free space there or choose another output"
    return str(error)


def leave_failure(folder: str, *, message: str, details: str, is_users: bool) -> None:
    """Write FAILURE_NAME into `folder` unless it is there: the first failure is the cause of others."""
    target = Path(folder) / FAILURE_NAME
    partial = target.with_suffix(f".{uuid.uuid4().hex}")
    with suppress(OSError):  # on a full disk the exception itself still goes up
        partial.write_text(json.dumps(asdict(Failure(message, details, is_users))), encoding="ascii")
        if not target.exists():
            os.replace(partial, target)


def read_failure(folder: str) -> Failure | None:
    """The failure left in `folder`, if there is one."""
    path = Path(folder) / FAILURE_NAME
    return Failure(**json.loads(path.read_text(encoding="ascii"))) if path.exists() else None
