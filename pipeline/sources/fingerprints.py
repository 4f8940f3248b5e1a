"""Makes fingerprints (hashes) of the input files. If a build is started again, it compares them to recognize whether a
finished data set was built from the same files.

Small files are hashed whole. Large files are hashed at 64 evenly spaced places, which takes 20 ms for any file. If a
large file changes between those places and keeps its length, only its modification time (list_modified) shows the
change. Therefore the modification time is compared too. A file on an object store is not read: its size and entity tag
are hashed.
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
    """Return one hash (hex) of the contents of all files. The files' names, folders and order do not matter."""
    return join_fingerprints(fingerprint_files(paths).values())


def fingerprint_files(paths: Iterable[str]) -> dict[str, str]:
    """Return {path: fingerprint (a hash, from fingerprint_file)}, sorted by path."""
    ordered = sorted(set(paths))
    return dict(zip(ordered, storage.map_paths(fingerprint_file, ordered), strict=True))


def join_fingerprints(parts: Iterable[str]) -> str:
    """Return one hash (hex) made from the fingerprints (hashes) of several files, in any order. fingerprint_inputs
    returns the same hash for the files themselves."""
    return hashlib.sha256(b"".join(sorted(map(bytes.fromhex, parts)))).hexdigest()


def list_modified(paths: Iterable[str]) -> dict[str, str]:
    """Return {path: time of the last change} for each large local file, with the time in a form that `touch -d`
    accepts. A file is large if its fingerprint (hash) does not cover every byte. Files on a store are left out, because
    their fingerprints show every change."""
    found = {path: Path(path).stat() for path in sorted(set(paths)) if not storage.is_url(path)}
    return {
        path: f"{datetime.fromtimestamp(status.st_mtime, UTC):%Y-%m-%d %H:%M:%S.%f} UTC"
        for path, status in found.items()
        if status.st_size > _WHOLE_BYTES
    }


def list_versions(paths: Iterable[str]) -> dict[str, str]:
    """Return {path: text with size and modification time} for each local file. At the end of a build, list_changed
    compares these texts with the files."""
    return {path: storage.file_version(path) for path in sorted(set(paths)) if not storage.is_url(path)}


class ChangedInputError(ValueError):
    """An input file was written while the build read that file. What the build made from other input files can be
    kept."""

    keeps: Keeps = "unchanged_input"


def list_changed(versions: Mapping[str, str]) -> dict[str, str]:
    """Return {path: new version} for the files that changed since list_versions returned `versions`. The build may have
    read one half of such a file before the change, and the other half after it. A file that is gone is left out,
    because the build had read it before it was removed."""
    present = {path: storage.file_version(path) for path in versions if storage.find_file(path) is not None}
    return {path: now for path, now in present.items() if now != versions[path]}


def fingerprint_file(path: str) -> str:
    """Return a hash (hex) of a file. It covers the whole content of a small local file, the size and 64 places of a
    large local file, and the size and entity tag of a file on a store."""
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
