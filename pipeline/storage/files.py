"""Files by path or URL: the same functions for local paths (and file://), s3:// and gs://, over pyarrow.fs.

A store has no rename. A file appears there whole, under the name that it keeps, or not at all: content is uploaded in
one uninterrupted call, for which `open_output` gathers it in a local temporary file first (disk: the file's size).
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from pipeline.storage.clients import (
    AbsentError,
    StrPath,
    is_url,
    local_path,
    name_errors,
    name_full_disk,
    open_filesystem,
)
from pipeline.storage.durable import replace_file

READ_AHEAD_BYTES = 1 << 20
"""Least bytes of a request while a file is read through `open_input`."""

MAP_THREADS = 32
"""Files on a store that `map_paths` looks at together."""

Result = TypeVar("Result")

Location: TypeAlias = Path | str
"""A local Path, or the URL of an object store (s3://bucket/runs/x) as a string, never a local path."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file below a folder: `name` is relative to that, with forward slashes; `modified` in seconds since 1970."""

    name: str
    size: int
    modified: float


def join(root: StrPath, *parts: str) -> str:
    """A path below `root`, itself a path or a URL."""
    return (
        "/".join([os.fspath(root).rstrip("/") or "/", *parts])
        if is_url(root)
        else str(local_path(root).joinpath(*parts))
    )


def locate(path: StrPath, *names: str) -> Location:
    """`path`, a local path, file:// or store's URL, or what is called so below it."""
    if is_url(path):
        return join(path, *names).rstrip("/")
    return local_path(path).joinpath(*names)


def base_name(path: StrPath) -> str:
    """The last part of a path or URL."""
    return os.fspath(path).rstrip("/").rpartition("/")[2]


def parent_of(path: StrPath) -> str:
    """A path or URL without its last part."""
    return os.fspath(path).rstrip("/").rpartition("/")[0] if is_url(path) else str(local_path(path).parent)


def read_bytes(path: StrPath) -> bytes:
    """All of a file."""
    with open_input(path) as stream:
        return stream.read()


def open_input(path: StrPath, *, read_ahead: int = READ_AHEAD_BYTES) -> IO[bytes]:
    """A file to read, seekable. On a store each request asks for at least `read_ahead` bytes."""
    if not is_url(path):
        return open(local_path(path), "rb")
    return io.BufferedReader(_StoreReader(os.fspath(path)), max(read_ahead, 1))


def open_native(path: StrPath) -> Any:
    """A file for pyarrow's own readers (pa.NativeFile), which ask for the ranges that they want. Enclose in name_errors
    what reads from it."""
    system, place = open_filesystem(path)
    with name_errors(path):
        return system.open_input_file(place)


@contextmanager
def open_parquet(path: StrPath) -> Iterator[Any]:
    """A pq.ParquetFile whose pages are checked against their checksums. From a store the columns that are asked for
    come in few requests, joined where they lie near each other."""
    if not is_url(path):
        with pq.ParquetFile(local_path(path), page_checksum_verification=True) as file:
            yield file
        return
    with (
        name_errors(path, of_content=True),
        open_native(path) as native,
        pq.ParquetFile(native, page_checksum_verification=True, pre_buffer=True) as file,
    ):
        yield file


def make_folder(path: StrPath) -> None:
    """Make a local folder, and those above it, where it is absent; a store has none to make."""
    if not is_url(path):
        local_path(path).mkdir(parents=True, exist_ok=True)


def write_bytes(path: StrPath, data: bytes | bytearray | memoryview | Any, *, make_folders: bool = True) -> None:
    """Write a whole file (bytes, or anything with the buffer protocol). Nobody sees a part of it.

    Without `make_folders` a local folder that is absent is an OSError: it was removed, and shall not come back.
    """
    if not is_url(path):
        with replace_file(local_path(path), make_folders=make_folders) as stream:
            stream.write(data)
        return
    system, place = open_filesystem(path)
    with name_errors(path), system.open_output_stream(place, compression=None) as stream:
        # Not compressed (pyarrow goes by the name else), and in one call, before whose end nothing of ours can fail.
        stream.write(data)


def store_file(source: StrPath, path: StrPath) -> None:
    """Upload a local file. Nobody sees a part of it; memory is flat."""
    if not is_url(path):
        with open(source, "rb") as file, replace_file(local_path(path)) as stream:
            shutil.copyfileobj(file, stream, READ_AHEAD_BYTES)
        return
    if os.path.getsize(source) == 0:
        write_bytes(path, b"")
        return
    with pa.memory_map(os.fspath(source), "r") as mapped:
        write_bytes(path, mapped.read_buffer())


def fetch_file(path: StrPath, target: StrPath) -> None:
    """Copy a file to a local one, which appears whole; folders are made."""
    with open_input(path, read_ahead=8 * READ_AHEAD_BYTES) as stream, replace_file(Path(target)) as file:
        shutil.copyfileobj(stream, file, 8 * READ_AHEAD_BYTES)


@contextmanager
def open_output(path: StrPath, *, in_place: bool = False) -> Iterator[IO[bytes]]:
    """A file to write, seekable, that appears under its name once the block has ended without an error.

    On a store it is gathered in a temporary file (TMPDIR) and then uploaded. `in_place`: a local one is written under
    its own name at once and removed on an error, which is enough where nobody looks for the name before.
    """
    if not is_url(path):
        with (_write_in_place if in_place else replace_file)(local_path(path)) as stream:
            yield stream
        return
    with name_full_disk(tempfile.gettempdir()), tempfile.NamedTemporaryFile(prefix="cloze-") as file:
        yield file
        file.flush()
        store_file(file.name, path)


@contextmanager
def open_stream(path: StrPath) -> Iterator[IO[bytes]]:
    """A file to write from front to back, in pieces, without a local copy (memory on a store: what is under way).

    Where the block fails a part of the file may stand there: for files that count only once a later one names them.
    """
    if not is_url(path):
        local_path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(local_path(path), "wb") as file:
            yield file
        return
    system, place = open_filesystem(path)
    with name_errors(path), system.open_output_stream(place, compression=None) as stream:
        yield stream


def list_files(folder: StrPath, *, below: bool = True) -> list[StoredFile]:
    """Every file in a folder (and `below` it), sorted by name; none where there is no such folder.

    On a store 1,000 names a request. StorageError where the bucket is absent or denied.
    """
    if not is_url(folder):
        return _list_local(local_path(folder), below=below)
    system, place = open_filesystem(folder)
    with name_errors(folder):
        if "/" not in place:
            system.get_file_info(place)
        found = system.get_file_info(fs.FileSelector(place, recursive=below, allow_not_found=True))
        if not found and system.get_file_info(place.partition("/")[0]).type == fs.FileType.NotFound:
            raise FileNotFoundError(place)
    files = [info for info in found if info.type == fs.FileType.File]
    names = [StoredFile(info.path[len(place) + 1 :], info.size, info.mtime_ns / 1e9) for info in files]
    return sorted(names, key=lambda file: file.name)


def list_names(folder: StrPath) -> set[str]:
    """Names of the files and folders directly in a folder; none where there is no such folder."""
    if not is_url(folder):
        return {path.name for path in local_path(folder).glob("*")}
    system, place = open_filesystem(folder)
    below = system.type_name == "gcs"  # where a folder of which nothing but files is stored is not listed
    with name_errors(folder):
        found = system.get_file_info(fs.FileSelector(place, recursive=below, allow_not_found=True))
    return {info.path[len(place) + 1 :].partition("/")[0] for info in found}


def read_range(path: StrPath, *, offset: int, length: int) -> bytes:
    """Bytes of a file from `offset`, fewer where it ends before."""
    if not is_url(path):
        with open(local_path(path), "rb") as stream:
            stream.seek(offset)
            return stream.read(length)
    with open_native(path) as stream, name_errors(path):
        found: bytes = stream.read_at(max(0, min(length, stream.size() - offset)), offset)
        return found


def find_file(path: StrPath) -> StoredFile | None:
    """Size and time of one file, under its last name; None where there is none (a folder is none)."""
    if not is_url(path):
        try:
            status = local_path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return StoredFile(base_name(path), status.st_size, status.st_mtime) if local_path(path).is_file() else None
    system, place = open_filesystem(path)
    with name_errors(path):
        info = system.get_file_info(place)
    return StoredFile(base_name(path), info.size, info.mtime_ns / 1e9) if info.type == fs.FileType.File else None


def size_of(path: StrPath) -> int:
    """Bytes of a file; FileNotFoundError where there is none."""
    if not is_url(path):
        return local_path(path).stat().st_size
    found = find_file(path)
    if found is None:
        raise AbsentError(f"{os.fspath(path)}: there is no such object; correct the URL, or put it there")
    return found.size


def map_paths(function: Callable[[str], Result], paths: Sequence[str]) -> list[Result]:
    """`function` of every path, in order: of those on stores MAP_THREADS at a time, since what they wait for is the
    answer of a server."""
    if not any(map(is_url, paths)):
        return [function(path) for path in paths]
    with ThreadPoolExecutor(max_workers=MAP_THREADS, thread_name_prefix="storage") as pool:
        return list(pool.map(function, paths))


def exists(path: StrPath) -> bool:
    """Whether there is such a file, or a folder (on a store: anything below that name)."""
    if not is_url(path):
        return local_path(path).exists()
    system, place = open_filesystem(path)
    with name_errors(path):
        return bool(system.get_file_info(place).type != fs.FileType.NotFound)


def file_version(path: StrPath) -> str:
    """What changes when the file is written again: its entity tag on a store that has one, else size and time."""
    if is_url(path):
        with open_native(path) as stream, name_errors(path):
            size = stream.size()
            known = {_as_text(key).lower(): _as_text(value) for key, value in (stream.metadata() or {}).items()}
        tag = known.get("etag", "").strip('"')
        if tag:
            return f"{size} bytes, tag {tag}"
    found = find_file(path)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    return f"{found.size} bytes, modified {found.modified:.6f}"


def delete(path: StrPath) -> None:
    """Remove one file; it is no error that there is none."""
    if not is_url(path):
        local_path(path).unlink(missing_ok=True)
        return
    system, place = open_filesystem(path)
    with suppress(AbsentError), name_errors(path):
        system.delete_file(place)


def delete_tree(folder: StrPath) -> None:
    """Remove a folder with all that is below it; it is no error that there is none. On a store 1,000 names a
    request."""
    if not is_url(folder):
        with suppress(FileNotFoundError):
            shutil.rmtree(local_path(folder))
        return
    system, place = open_filesystem(folder)
    if "/" not in place:
        raise ValueError(f"{os.fspath(folder)}: a bucket is not emptied; name a folder in it")
    with suppress(AbsentError), name_errors(folder):
        system.delete_dir(place)


class _StoreReader(io.RawIOBase):
    """An object as a raw file: every read is one request for a range. Its errors name the URL."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.name = url
        self._file = open_native(url)
        with name_errors(url):
            self._size = self._file.size()
        self._place = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """As any file."""
        self._place = max(0, offset + (0, self._place, self._size)[whence])
        return self._place

    def tell(self) -> int:
        """As any file."""
        return self._place

    def readinto(self, buffer: Any, /) -> int:
        """As any file."""
        wanted = min(len(buffer), self._size - self._place)
        if wanted <= 0:
            return 0
        with name_errors(self.name):
            data = self._file.read_at(wanted, self._place)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)

    def readall(self) -> bytes:
        """As any file, in one request."""
        rest = bytearray(max(0, self._size - self._place))
        return bytes(memoryview(rest)[: self.readinto(rest)])

    def close(self) -> None:
        """As any file."""
        if not self.closed:
            self._file.close()
        super().close()


@contextmanager
def _write_in_place(path: Path) -> Iterator[IO[bytes]]:
    complete = False
    try:
        with open(path, "wb") as stream:
            yield stream
        complete = True
    finally:
        if not complete:
            path.unlink(missing_ok=True)


def _list_local(folder: Path, *, below: bool) -> list[StoredFile]:
    found = []
    for path in sorted(folder.rglob("*") if below else folder.glob("*")):
        with suppress(FileNotFoundError):  # renamed or removed meanwhile
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                continue
            found.append(StoredFile(path.relative_to(folder).as_posix(), status.st_size, status.st_mtime))
    return sorted(found, key=lambda file: file.name)


def _as_text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
