"""Paths of the config to files: folders, globs, lists, with every fault named. The order of listing never matters."""

from __future__ import annotations

import glob
import logging
from collections.abc import Iterable
from pathlib import Path

from pipeline.config import SourceConfig
from pipeline.sources.bytestreams import COMPRESSED, REFUSED

_LOGGER = logging.getLogger(__name__)

ARCHIVES = (".tar", ".tar.xz", ".tar.gz", ".tar.bz2", ".tar.zst", ".tgz", ".txz", ".tbz2", ".tbz", ".zip")
_SUFFIXES: dict[str, tuple[str, ...]] = {
    "wikipedia": (".xml",),
    "books": (".txt", ".text"),
    "text": (".txt", ".text"),
    "jsonl": (".jsonl", ".json", ".ndjson"),
    "parquet": (".parquet",),
}


def list_files(source: SourceConfig, *, label: str) -> list[Path]:
    """Every file of a source, each once, sorted by path.

    A folder gives the files below it that have a suffix of the kind; others there are named in one warning. Raises
    ValueError naming `label` (the source in the config), the path and the remedy for what is missing, matches nothing
    or is empty.
    """
    files: dict[Path, None] = {}
    for given in source.paths:
        path = Path(given).expanduser()
        if path.is_dir():
            found = _files_below(path, kind=source.kind)
            if not found:
                wanted = ", ".join(_SUFFIXES[source.kind])
                raise ValueError(
                    f"{label}: no file for kind {source.kind} below the folder {given} (looked for {wanted}, also "
                    f"compressed{' and archives' if source.kind == 'books' else ''}); give another path"
                )
        elif path.is_file():
            found = [path]
        elif glob.has_magic(given):
            found = _matching(given, kind=source.kind)
            if not found:
                raise ValueError(
                    f"{label}: the glob {given} matches no file; check the path (relative to {Path.cwd()})"
                )
        else:
            raise ValueError(f"{label}: no such file or folder: {given} (relative to {Path.cwd()}); check path")
        files.update(dict.fromkeys(found))
    for path in files:
        suffix = path.suffix.lower()
        if suffix in REFUSED:
            raise ValueError(f"{label}: {path}: {REFUSED[suffix]}")
        if path.stat().st_size == 0:
            raise ValueError(f"{label}: {path} is empty; remove it or fetch it again")
    return sorted(files)


def is_archive(path: Path) -> bool:
    """Whether a file holds members: tar, compressed or not, or zip."""
    return path.name.lower().endswith(ARCHIVES)


def is_multistream_index(path: Path) -> bool:
    """Whether a file is the index that lies beside a multistream dump."""
    return "multistream-index" in path.name and ".txt" in path.name


def _files_below(folder: Path, *, kind: str) -> list[Path]:
    taken: list[Path] = []
    other: list[Path] = []
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            (taken if _fits(path, kind=kind) else other).append(path)
    if taken and other:
        names = ", ".join(path.name for path in other[:5])
        _LOGGER.warning(
            "%s: %d files are not of kind %s and not read: %s%s",
            folder,
            len(other),
            kind,
            names,
            ", ..." if len(other) > 5 else "",
        )
    return taken


def _matching(pattern: str, *, kind: str) -> list[Path]:
    paths: Iterable[str] = glob.glob(str(Path(pattern).expanduser()), recursive=True)
    found = [Path(path) for path in paths if Path(path).is_file()]
    return [path for path in found if kind != "wikipedia" or not is_multistream_index(path)]


def _fits(path: Path, *, kind: str) -> bool:
    name = path.name.lower()
    if kind == "wikipedia":
        # Parts of a dump are named ...xml-p1p41242.bz2.
        return ".xml" in name and (
            path.suffix.lower() in (*COMPRESSED, *REFUSED) or ".xml" in path.suffix.lower() or "-p" in name
        )
    if kind == "books" and is_archive(path):
        return True
    for compression in COMPRESSED:
        name = name.removesuffix(compression)
    return name.endswith(_SUFFIXES[kind])
