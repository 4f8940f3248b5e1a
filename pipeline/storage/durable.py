"""Disks of this machine: what must be on one before something else says that it is there (a power cut keeps no order
of its own), and the room on them."""

from __future__ import annotations

import errno
import os
import shutil
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


def find_existing(path: Path) -> Path:
    """The path, or the nearest above it that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


def free_bytes(path: Path) -> int:
    """Bytes that may be written where `path` is, or will be."""
    return shutil.disk_usage(find_existing(path)).free
