"""What must be on the disk before something else says that it is there: a power cut keeps no order of its own."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def sync(path: str | Path) -> None:
    """Make the content of a file, or the names in a folder, durable (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a network file system that cannot do it with folders
            raise
    finally:
        os.close(descriptor)


def sync_below(path: str | Path) -> None:
    """Make a file, or a folder with all that is below it, durable."""
    for found in [*Path(path).rglob("*"), path]:
        sync(found)
