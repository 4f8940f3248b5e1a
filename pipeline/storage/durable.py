"""What reaches a disk, and when: files and folders that appear whole, or not at all, also after a power cut.

Invariant: content is on the disk (fsync) before a name for it appears, and the name before anything else may say that
it is there. A power cut keeps no order of its own. Cost: two fsyncs a file, some milliseconds on a busy disk.
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
"""Before the name of a folder that could not swap places with the one that replaces it."""
_PARTIAL = re.compile(r"\.(.+)\.[0-9a-f]{16}")
_EXCHANGE = 2
_HERE = -100


@contextmanager
def replace_file(path: Path, *, make_folders: bool = True, durable: bool = True) -> Iterator[IO[bytes]]:
    """A neighbour of `path` to write, which takes its name at the end; removed on an error.

    Not `durable`: nobody sees a part of it, but a power cut may undo it.
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
    """Let a file that is written take the name `final`, both durable, in a folder of the same disk."""
    sync(source)
    os.replace(source, final)
    sync(final.parent)


def replaced_by(name: str) -> str:
    """Which name a file of replace_file would have taken, if a kill left it under this one; "" for any other."""
    found = _PARTIAL.fullmatch(name)
    return found[1] if found else ""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the block that name no file, such as a full disk's, name `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or type(error) is not OSError:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def make_durable_folder(folder: Path) -> None:
    """Make a folder, and those above it, if absent; their names are then on disk."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in made:
        sync(path.parent)


def put_in_place(temporary: Path, *, final: Path) -> Path | None:
    """Rename the folder `temporary`, whose content is on the disk, to `final`, durable; returns where a folder that was
    there is now, to be removed.

    At every moment `final` is whole, or after a kill in between, where the system knows no exchange, ASIDE + its name.
    """
    replaced = _put_in_place(temporary, final=final)
    sync(final.parent)
    return replaced


def _put_in_place(temporary: Path, *, final: Path) -> Path | None:
    if not final.exists():
        temporary.rename(final)
        return None
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if exchange is not None and exchange(_HERE, bytes(temporary), _HERE, bytes(final), _EXCHANGE) == 0:
        return temporary
    aside = final.with_name(f"{ASIDE}{final.name}")
    shutil.rmtree(aside, ignore_errors=True)
    final.rename(aside)
    temporary.rename(final)
    return aside


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
