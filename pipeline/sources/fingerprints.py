"""Fingerprints of the input files, by which a rerun recognizes whether a finished set was built from the same ones.

Small files are hashed whole, large ones at 64 evenly spaced places: 20 ms for any file. A change of equal length
between those places shows only in the file's time (list_modified), which is compared too. A file on a store is not
read: its size and entity tag are hashed.
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
    """Return one hash (hex) of the contents of the files, independent of names, folders and order."""
    return join_fingerprints(fingerprint_files(paths).values())


def fingerprint_files(paths: Iterable[str]) -> dict[str, str]:
    """Return the fingerprint_file of each path, sorted by path."""
    ordered = sorted(set(paths))
    return dict(zip(ordered, storage.map_paths(fingerprint_file, ordered), strict=True))


def join_fingerprints(parts: Iterable[str]) -> str:
    """Combine fingerprints of files into the hash that fingerprint_inputs returns."""
    return hashlib.sha256(b"".join(sorted(map(bytes.fromhex, parts)))).hexdigest()


def list_modified(paths: Iterable[str]) -> dict[str, str]:
    """Return when each large local file, whose hash does not cover every byte, was last modified, as `touch -d` accepts
    it. Files on a store are left out: their fingerprint covers every change."""
    found = {path: Path(path).stat() for path in sorted(set(paths)) if not storage.is_url(path)}
    return {
        path: f"{datetime.fromtimestamp(status.st_mtime, UTC):%Y-%m-%d %H:%M:%S.%f} UTC"
        for path, status in found.items()
        if status.st_size > _WHOLE_BYTES
    }


def list_versions(paths: Iterable[str]) -> dict[str, str]:
    """Return size and time of each local file, for list_changed."""
    return {path: storage.file_version(path) for path in sorted(set(paths)) if not storage.is_url(path)}


class ChangedInputError(ValueError):
    """A file was written while the build read it; what was read from the others is good."""

    keeps: Keeps = "unchanged_input"


def list_changed(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the new versions of files written since list_versions, which may have been read half old, half new.
    Removed files are left out: they had been read before."""
    present = {path: storage.file_version(path) for path in versions if storage.find_file(path) is not None}
    return {path: now for path, now in present.items() if now != versions[path]}


def fingerprint_file(path: str) -> str:
    """Hash (hex) a whole small file, size and 64 places of a large one, or size and entity tag on a store."""
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
