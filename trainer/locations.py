"""Where a run and its checkpoints lie: a local Path, or the URL of a folder on an object store."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from pipeline import storage

Location: TypeAlias = Path | str
"""A string is the URL of an object store (s3://bucket/runs/x), never a local path."""


def locate(path: str | Path, *names: str) -> Location:
    """`path`, a local path, file:// or store's URL, or what is called so below it."""
    if storage.is_url(path):
        return storage.join(path, *names).rstrip("/")
    return storage.local_path(path).joinpath(*names)
