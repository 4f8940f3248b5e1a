"""Where a run and its checkpoints lie: a local Path, or the URL of a folder on an object store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from pipeline.storage import files
from pipeline.storage.clients import is_url, local_path

Location: TypeAlias = Path | str
"""A string is the URL of an object store (s3://bucket/runs/x), never a local path."""


def locate(path: str | Path, *names: str) -> Location:
    """`path`, a local path, file:// or store's URL, or what is called so below it."""
    if is_url(path):
        return files.join(path, *names).rstrip("/")
    return local_path(path).joinpath(*names)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the block name `path`: those of a write or flush, such as a full disk's, name no file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
