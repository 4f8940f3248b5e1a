"""Turns paths of the config (folders, globs, lists, URLs) into sorted lists of files. Every error names path and
remedy."""

from __future__ import annotations

import fnmatch
import glob
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pipeline import storage
from pipeline.cleaning import REJECTS_NAME
from pipeline.config import PipelineConfig, SourceConfig
from pipeline.dataset import MANIFEST_NAME, TOKENIZER_FOLDER
from pipeline.sources.bytestreams import COMPRESSED, REFUSED
from pipeline.units import count_of

_LOGGER = logging.getLogger(__name__)

ARCHIVES = (".tar", ".tar.xz", ".tar.gz", ".tar.bz2", ".tar.zst", ".tgz", ".txz", ".tbz2", ".tbz", ".zip")
_SUFFIXES: dict[str, tuple[str, ...]] = {
    "wikipedia": (".xml",),
    "books": (".txt", ".text"),
    "text": (".txt", ".text"),
    "jsonl": (".jsonl", ".json", ".ndjson"),
    "parquet": (".parquet",),
    "any": ("",),
}


def list_files(source: SourceConfig, *, label: str) -> list[str]:
    """Return every file of a source once, sorted by path.

    A folder gives the files below it (links are followed) whose suffix fits the source's kind; one warning names the
    files that do not fit. Raises ValueError naming `label` (the source in the config), path and remedy if a file or
    folder is missing, a file is empty or has a format that is not supported, or a glob or folder gives no file. Raises
    OSError if a folder cannot be listed.
    """
    return _list_paths(source.paths, kind=source.kind, label=label)


def list_any_files(paths: Sequence[str], *, label: str) -> list[str]:
    """Return every file that the paths name, whatever its suffix. The paths are files, folders, globs or URLs. Order
    and errors are the same as in list_files."""
    return _list_paths(paths, kind="any", label=label)


def _list_paths(paths: Sequence[str], *, kind: str, label: str) -> list[str]:
    files: dict[str, int] = {}
    for given in paths:
        if storage.is_url(given):
            files.update(_list_stored(given, kind=kind, label=label))
            continue
        path = Path(given).expanduser()
        if path.is_dir():
            found = _choose_fitting(sorted(filter(_is_file, _walk(path, above=()))), folder=path, kind=kind)
            if not found:
                raise ValueError(_describe_no_file(given, kind=kind, label=label))
        elif path.is_file():
            found = [path]
        elif glob.has_magic(given):
            matches = filter(_is_file, map(Path, glob.glob(str(path), recursive=True)))
            found = [file for file in matches if kind != "wikipedia" or not is_multistream_index(file)]
            if not found:
                raise ValueError(
                    f"{label}: the glob {given} matches no file; check the path (relative to {Path.cwd()})"
                )
        else:
            raise ValueError(f"{label}: no such file or folder: {given} (relative to {Path.cwd()}); check path")
        gone = next((one for one in found if not one.exists()), None)
        if gone is not None:
            raise ValueError(f"{label}: {gone} is a broken link to {os.readlink(gone)}; repair or remove it")
        files.update({str(file): file.stat().st_size for file in found})
    for file, size in files.items():
        suffix = Path(file).suffix.lower()
        if suffix in REFUSED:
            raise ValueError(f"{label}: {file}: {REFUSED[suffix]}")
        if size == 0:
            raise ValueError(f"{label}: {file} is empty; remove it or fetch it again")
    return sorted(files)


def check_brought(config: PipelineConfig, *, but: Sequence[Path] = ()) -> None:
    """Raise ValueError if files that the user must fetch are missing. The setting download.bring names the sources that
    have such files. The message ends with the hint that download.bring gives for the source. Sources in the folders
    listed in `but` are not checked."""
    for index, source in enumerate(config.sources):
        hint = config.download.bring.get(source.display_name)
        if hint is None or any(Path(path).absolute().is_relative_to(folder) for path in source.paths for folder in but):
            continue
        try:
            list_files(source, label=f"sources.{index} ({source.display_name})")
        except (ValueError, storage.AbsentError) as error:
            raise ValueError(f"{error}. {hint}") from error


def refuse_own_files(config: PipelineConfig) -> None:
    """Raise ValueError if a source's path includes the vocabulary or a file that a build writes, because a later or
    resumed build would read such a file as text."""
    names = (f"{TOKENIZER_FOLDER}/vocab.txt", f"{TOKENIZER_FOLDER}/tokenizer.json", MANIFEST_NAME, "data/a.parquet")
    own: list[tuple[str, str | None, str]] = [("output", config.output, name) for name in names]
    own.append(("vocabulary.path", config.vocabulary.path, ""))
    own.append(("cleaning.keep_rejects", config.cleaning.keep_rejects, REJECTS_NAME))
    own += [(f"sources.{i}.clean_documents", one.clean_documents, "a.parquet") for i, one in enumerate(config.sources)]
    for index, source in enumerate(config.sources):
        for key, place, name in own:
            for given in source.paths if place is not None else ():
                if _takes(given, f"{place}/{name}" if name else str(place), kind=source.kind):
                    raise ValueError(
                        f"{key}={place}: sources.{index} ({source.kind}) reads {given}, so a build would read it as "
                        f"text; choose another path for one of them"
                    )


def _takes(given: str, file: str, *, kind: str) -> bool:
    """Return whether a source of kind `kind` with the path `given` would include `file`, even if `file` does not exist
    yet."""
    if storage.is_url(given) != storage.is_url(file):
        return False
    if not storage.is_url(given):
        given, file = os.path.realpath(os.path.expanduser(given)), os.path.realpath(os.path.expanduser(file))
    if given == file or (glob.has_magic(given) and _matches(file.split("/"), patterns=given.split("/"))):
        return True
    below = file.removeprefix(given.rstrip("/") + "/")
    return below != file and not os.path.isfile(given) and not _is_hidden(below) and _fits(Path(file), kind=kind)


def is_archive(path: str | Path) -> bool:
    """Return whether a file's suffix is one of ARCHIVES, which are the suffixes of zip and tar, compressed or not."""
    return Path(path).name.lower().endswith(ARCHIVES)


def is_multistream_index(path: Path) -> bool:
    """Return whether a file is, by its name, the index that comes with a multistream dump (a .bz2 of many streams)."""
    return "multistream-index" in path.name and ".txt" in path.name


def _list_stored(given: str, *, kind: str, label: str) -> dict[str, int]:
    """Return {URL: size in bytes} for the files that `given` names. `given` is the URL of a file, a folder or a glob on
    a store. In a folder, the files at any depth whose suffix fits `kind` count. Raises ValueError naming `label` if
    there is no file."""
    if glob.has_magic(given) and storage.find_file(given) is None:
        found = {
            url: size
            for url, size in _match_stored(given)
            if kind != "wikipedia" or not is_multistream_index(Path(url))
        }
        if not found:
            raise ValueError(f"{label}: the glob {given} matches no file; check the URL and list the bucket")
        return found
    one = storage.find_file(given)
    if one is not None:
        return {given: one.size}
    sizes = {storage.join(given, file.name): file.size for file in storage.list_files(given)}
    if not sizes:
        raise ValueError(f"{label}: no such file or folder: {given}; check the URL and list the bucket")
    visible = [Path(url) for url in sizes if not _is_hidden(url[len(given.rstrip("/")) + 1 :])]
    taken = _choose_fitting(visible, folder=given, kind=kind)
    if not taken:
        raise ValueError(_describe_no_file(given, kind=kind, label=label))
    return {url: size for url, size in sizes.items() if Path(url) in taken}


def _match_stored(pattern: str) -> Iterator[tuple[str, int]]:
    """Yield (URL, size in bytes) for each file on a store that matches the glob `pattern`. In the glob, ** matches any
    number of folders, and * and ? match within one name."""
    fixed = pattern[: min(pattern.index(sign) for sign in "*?[" if sign in pattern)].rpartition("/")[0]
    storage.check_url(pattern)
    wanted = pattern[len(fixed) + 1 :].split("/")
    for file in storage.list_files(fixed, below=len(wanted) > 1 or wanted == ["**"]):
        if _matches(file.name.split("/"), patterns=wanted):
            yield storage.join(fixed, file.name), file.size


def _matches(names: list[str], *, patterns: list[str]) -> bool:
    """Return whether the parts of a path (`names`) match the parts of a glob (`patterns`), by Python's rules for globs.
    A hidden name matches only a pattern with a leading dot."""
    if not patterns:
        return not names
    if patterns[0] == "**":
        deeper = bool(names) and not names[0].startswith(".") and _matches(names[1:], patterns=patterns)
        return deeper or _matches(names, patterns=patterns[1:])
    if not names or (names[0].startswith(".") and not patterns[0].startswith(".")):
        return False
    return fnmatch.fnmatchcase(names[0], patterns[0]) and _matches(names[1:], patterns=patterns[1:])


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _walk(folder: Path, *, above: tuple[str, ...]) -> Iterator[Path]:
    """Yield every file below `folder`, except hidden files and files in hidden folders. Links are followed, except back
    to a folder in `above` (the real paths of the folders that contain `folder`). Path.rglob would not do: it follows no
    links and silently skips unreadable folders."""
    real = os.path.realpath(folder)
    if real in above:
        return
    for path in folder.iterdir():
        if not _is_hidden(path.name):
            yield from _walk(path, above=(*above, real)) if path.is_dir() else (path,)


def _is_file(path: Path) -> bool:
    """Return whether a path is a file or a broken link. Broken links count, so that list_files can report them."""
    return path.is_file() or (path.is_symlink() and not path.exists())


def _choose_fitting(paths: Iterable[Path], *, folder: str | Path, kind: str) -> list[Path]:
    """Return the paths whose suffix fits the source's kind. If only some paths fit, warn about the others."""
    taken: list[Path] = []
    other: list[Path] = []
    for path in paths:
        (taken if _fits(path, kind=kind) else other).append(path)
    if taken and other:
        names = ", ".join([*(path.name for path in other[:5]), *(["..."] if len(other) > 5 else [])])
        _LOGGER.warning("%s: skipping %s not of kind %s: %s", folder, count_of(len(other), "file"), kind, names)
    return taken


def _describe_no_file(folder: str, *, kind: str, label: str) -> str:
    wanted = ", ".join(_SUFFIXES[kind])
    return (
        f"{label}: no file for kind {kind} below the folder {folder} (looked for {wanted}, also "
        f"compressed{' and archives' if kind == 'books' else ''}); give another path"
    )


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
