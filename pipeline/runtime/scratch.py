"""Makes scratch folders. A process locks its scratch folder while it uses the folder, and then removes it.

A killed process leaves its folder behind, but the lock ends with the process. So the next process that makes a scratch
folder in the same place sees that the old folder is unused, and removes the old folder. This works on every machine
that shares the file system. Object stores have no locks, so folders of killed processes stay there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline import storage


@contextmanager
def scratch_folder(parent: str | Path, *, prefix: str) -> Iterator[str]:
    """Yield the path or URL of a new folder in `parent` whose name begins with `prefix`. Remove the folder after the
    `with` block.

    If the file system has locks, first remove the folders in `parent` that begin with this prefix and were left behind
    by processes that no longer run.
    """
    if storage.is_url(parent):
        url = storage.join(parent, f"{prefix}{uuid.uuid4().hex[:16]}")
        try:
            yield url
        finally:
            storage.delete_tree(url)
        return
    parent = Path(parent)
    for left in parent.glob(f"{prefix}*"):
        _remove_unused(left)
    folder, lock = _make_locked(parent, prefix=prefix)
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _make_locked(parent: Path, *, prefix: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)  # another process removed it before it was locked


def _remove_unused(folder: Path) -> None:
    with suppress(OSError):  # the folder is in use, or not ours
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
