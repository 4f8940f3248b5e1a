"""Fingerprint of the input files, so that a rerun knows whether a finished set was made from the same ones.

Small files are hashed whole, large ones at 64 evenly spaced places: 20 ms for any file. A change of the same length
between those places is seen by the file's time alone (list_modified), which counts beside the hash. Of a file on a
store nothing is read: its size and entity tag count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from pipeline import storage
from pipeline.errors import Keeps

_WHOLE_BYTES = 64 << 20
_PLACES = 64
_PLACE_BYTES = 1 << 16


def fingerprint_inputs(paths: Iterable[str]) -> str:
    """Hash over the contents of the files, whatever their names, folders and order."""
    return join_fingerprints(fingerprint_files(paths).values())


def fingerprint_files(paths: Iterable[str]) -> dict[str, str]:
    """fingerprint_file of each path, in order of path."""
    ordered = sorted(set(paths))
    return dict(zip(ordered, storage.map_paths(fingerprint_file, ordered), strict=True))


def join_fingerprints(parts: Iterable[str]) -> str:
    """The hash of fingerprint_inputs from those of the files."""
    return hashlib.sha256(b"".join(sorted(map(bytes.fromhex, parts)))).hexdigest()


def list_modified(paths: Iterable[str]) -> dict[str, str]:
    """When each large file was last modified, as `touch -d` takes it: a hash does not look at every byte of these. What
    a store says of a file is in its fingerprint."""
    found = {path: Path(path).stat() for path in sorted(set(paths)) if not storage.is_url(path)}
    return {
        path: f"{datetime.fromtimestamp(status.st_mtime, UTC):%Y-%m-%d %H:%M:%S.%f} UTC"
        for path, status in found.items()
        if status.st_size > _WHOLE_BYTES
    }


def list_versions(paths: Iterable[str]) -> dict[str, str]:
    """Size and time of each file of this machine, for list_changed."""
    return {path: storage.file_version(path) for path in sorted(set(paths)) if not storage.is_url(path)}


class ChangedInputError(ValueError):
    """A file was written while the build read it; what was read of the others is good."""

    keeps: Keeps = "unchanged_input"


def list_changed(versions: Mapping[str, str]) -> dict[str, str]:
    """What the files are now that were written since list_versions: what was read of one is neither the old nor the
    new. One that was removed was read before."""
    present = {path: storage.file_version(path) for path in versions if storage.find_file(path) is not None}
    return {path: now for path, now in present.items() if now != versions[path]}


def fingerprint_file(path: str) -> str:
    """Hash of a file's content: of all of it, or of its size and places; on a store of its size and entity tag."""
    if storage.is_url(path):
        return hashlib.sha256(storage.file_version(path).encode()).hexdigest()
    with open(path, "rb") as stream:
        size = Path(path).stat().st_size
        if size <= _WHOLE_BYTES:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        digest = hashlib.sha256(b"%d:" % size)
        for place in range(_PLACES):
            stream.seek((size - _PLACE_BYTES) * place // (_PLACES - 1))
            digest.update(stream.read(_PLACE_BYTES))
    return digest.hexdigest()
