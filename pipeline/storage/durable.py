"""Durable writes: files and folders appear whole or not at all, even after a power cut.

Invariant: content is on the disk (fsync) before its name appears, and the name is on the disk before anything refers to
it. Without fsync a power cut may keep the name without the content, or the reverse. Cost: two fsyncs a file, a few
milliseconds on a busy disk.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ASIDE = ".aside-"
"""Prefix of a replaced folder that was moved aside because the system cannot exchange two folders in one step."""
_PARTIAL = re.compile(r"\.(.+)\.[0-9a-f]{16}")
_EXCHANGE = 2
_HERE = -100


@contextmanager
def replace_file(path: Path, *, make_folders: bool = True, durable: bool = True) -> Iterator[IO[bytes]]:
    """Yield a temporary file beside `path` to write. It is renamed to `path` at the end of the block, or removed on an
    error.

    Without `durable` the file still appears whole, but a power cut may undo the write.
    """
    if make_folders:
        path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:16]}")
    try:
        with open(partial, "w+b") as stream:
            yield stream
        if durable:
            rename_file(partial, final=path)
        else:
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def rename_file(source: Path, *, final: Path) -> None:
    """Rename the written file `source` to `final` on the same disk; content and name are durable afterwards."""
    sync(source)
    os.replace(source, final)
    sync(final.parent)


def replaced_by(name: str) -> str:
    """Return the name of the file that a killed replace_file was about to replace. `name` is the name of the temporary
    file that was left behind. If `name` is any other file's name, return ""."""
    found = _PARTIAL.fullmatch(name)
    return found[1] if found else ""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """If the block raises an OSError that names no file, such as "disk full", add `path` to the error."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or type(error) is not OSError:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def make_durable_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and make their names durable (fsync)."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in made:
        sync(path.parent)


def put_in_place(temporary: Path, *, final: Path) -> Path | None:
    """Rename the folder `temporary`, whose content is durable, to `final`. If there was a folder at `final` before,
    return the path where this old folder is now, so that the caller can remove it. Otherwise return None.

    On a system that can exchange two folders, `final` is whole at every moment. On other systems, two renames are
    needed. If the process is killed between the two renames, there is no folder at `final`. The old folder is then in
    the same parent folder, under the name of `final` with ASIDE in front.
    """
    replaced = None
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if not final.exists():
        temporary.rename(final)
    elif exchange is not None and exchange(_HERE, bytes(temporary), _HERE, bytes(final), _EXCHANGE) == 0:
        replaced = temporary
    else:
        replaced = final.with_name(f"{ASIDE}{final.name}")
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
        temporary.rename(final)
    sync(final.parent)
    return replaced


def sync(path: str | Path) -> None:
    """Make the content of a file, or the names in a folder, durable (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync folders
            raise
    finally:
        os.close(descriptor)


def sync_below(path: str | Path) -> None:
    """Make a file, or a folder and everything below it, durable (fsync)."""
    for found in [*Path(path).rglob("*"), path]:
        sync(found)


def find_existing(path: Path) -> Path:
    """Return `path` if it exists, or else its nearest parent that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


def free_bytes(path: Path) -> int:
    """Return the number of free bytes on the disk where `path` is, or will be."""
    return shutil.disk_usage(find_existing(path)).free
