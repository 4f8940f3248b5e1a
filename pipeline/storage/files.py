"""Reads and writes files by path or URL: the same functions serve local paths (and file://), s3:// and gs://.

A store has no rename. So that a file appears there whole or not at all, it is uploaded in one uninterrupted call.
`open_output` therefore first collects the content in a local temporary file, which needs as much disk as the file.
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

from pipeline.parquet_bounds import read_metadata
from pipeline.storage.clients import (
    AbsentError,
    StrPath,
    is_url,
    local_path,
    name_errors,
    name_full_disk,
    open_filesystem,
)
from pipeline.storage.durable import naming, replace_file
from pipeline.storage.paths import name_below

READ_AHEAD_BYTES = 1 << 20
"""Fewest bytes that `open_input` requests from a store at a time, by default."""

MAP_THREADS = 32
"""Number of files on a store that `map_paths` handles at the same time."""

Result = TypeVar("Result")

Location: TypeAlias = Path | str
"""A local Path, or a string that is the URL of an object store (s3://bucket/runs/x)."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The name, size and time of a file. `name` is the file's path relative to the folder that was listed, with forward
    slashes. `size` is in bytes, and `modified` is in seconds since 1970."""

    name: str
    size: int
    modified: float


def join(root: StrPath, *parts: str) -> str:
    """Return the path or URL `root` with `parts` joined to it."""
    if is_url(root):
        return "/".join([os.fspath(root).rstrip("/") or "/", *parts])
    return str(local_path(root).joinpath(*parts))


def locate(path: StrPath, *names: str) -> Location:
    """Return `path` (local, file:// or a store's URL) as a Location, with `names` joined to it."""
    if is_url(path):
        return join(path, *names).rstrip("/")
    return local_path(path).joinpath(*names)


def base_name(path: StrPath) -> str:
    """Return the last part of a path or URL."""
    return os.fspath(path).rstrip("/").rpartition("/")[2]


def parent_of(path: StrPath) -> str:
    """Return a path or URL without its last part. The parent of a store's bucket is the bucket itself, and the parent
    of / is /."""
    if not is_url(path):
        return str(local_path(path).parent)
    url = os.fspath(path).rstrip("/")
    above = url.rpartition("/")[0]
    return url if above.endswith("/") else above


def read_bytes(path: StrPath) -> bytes:
    """Return the content of a file."""
    with open_input(path) as stream:
        return stream.read()


def open_input(path: StrPath, *, read_ahead: int = READ_AHEAD_BYTES) -> IO[bytes]:
    """Open a file for seekable reading. On a store each request asks for at least `read_ahead` bytes."""
    if not is_url(path):
        return open(local_path(path), "rb")
    return io.BufferedReader(_StoreReader(os.fspath(path)), max(read_ahead, 1))


def open_native(path: StrPath) -> Any:
    """Open a file as a pa.NativeFile, from which pyarrow's readers request only the ranges that they need. The caller
    must read inside name_errors, so that errors name the URL."""
    system, place = open_filesystem(path)
    with name_errors(path):
        return system.open_input_file(place)


@contextmanager
def open_parquet(path: StrPath) -> Iterator[Any]:
    """Yield a pq.ParquetFile that verifies page checksums. On a store, one request reads neighbouring columns."""
    if not is_url(path):
        with open(local_path(path), "rb") as stream:
            metadata = read_metadata(stream)
        with pq.ParquetFile(local_path(path), metadata=metadata, page_checksum_verification=True) as file:
            yield file
        return
    with (
        name_errors(path, of_content=True),
        open_native(path) as raw,
        pq.ParquetFile(raw, metadata=read_metadata(raw), page_checksum_verification=True, pre_buffer=True) as file,
    ):
        yield file


def make_folder(path: StrPath) -> None:
    """Create a local folder and its missing parents; do nothing on a store, which needs no folders."""
    if not is_url(path):
        local_path(path).mkdir(parents=True, exist_ok=True)


def write_bytes(path: StrPath, data: bytes | bytearray | memoryview | Any, *, make_folders: bool = True) -> None:
    """Write a whole file, which appears complete or not at all. `data` is bytes, or anything with the buffer protocol.

    A missing local folder of the file is created. If `make_folders` is false, a missing folder raises OSError instead.
    This suits callers whose folder another process may remove on purpose.
    """
    if not is_url(path):
        with naming(local_path(path)), replace_file(local_path(path), make_folders=make_folders) as stream:
            stream.write(data)
        return
    system, place = open_filesystem(path)
    with name_errors(path), system.open_output_stream(place, compression=None) as stream:
        # Without compression=None pyarrow compresses by suffix. In one call, no code of ours can fail in the middle.
        stream.write(data)


def store_file(source: StrPath, path: StrPath) -> None:
    """Copy the local file `source` to `path` (local or on a store), where it appears complete or not at all. The copy
    needs little memory, even for a large file."""
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
    """Copy a file to the local path `target`, where it appears complete or not at all. Missing folders are created."""
    with open_input(path, read_ahead=8 * READ_AHEAD_BYTES) as stream, replace_file(Path(target)) as file:
        shutil.copyfileobj(stream, file, 8 * READ_AHEAD_BYTES)


@contextmanager
def open_output(path: StrPath, *, in_place: bool = False) -> Iterator[IO[bytes]]:
    """Yield a seekable file to write. The file appears under its name if the block ends without an error.

    For a store the content goes to a temporary file (in TMPDIR), which is then uploaded. With `in_place` a local file
    is written directly under its name, and removed on an error. This is enough if nobody reads the file before it is
    complete.
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
    """Yield a file to write sequentially, without a local copy. On a store, memory holds only the data that are being
    sent.

    If the block fails, part of the file may remain. So use this only for files that readers ignore until another file,
    which is written later, names them.
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
    """Return the files in a folder (with `below` also in its subfolders), sorted by name; [] if the folder is missing.

    On a store, one request returns up to 1,000 names. Raises StorageError if the store's bucket is missing, if access
    is denied, or if a name leads out of the folder.
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
    names = [
        StoredFile(name_below(folder, info.path[len(place) + 1 :]), info.size, info.mtime_ns / 1e9) for info in files
    ]
    return sorted(names, key=lambda file: file.name)


def list_names(folder: StrPath) -> set[str]:
    """Return the names of the files and folders directly in a folder, or an empty set if the folder is missing."""
    if not is_url(folder):
        return {path.name for path in local_path(folder).glob("*")}
    system, place = open_filesystem(folder)
    below = system.type_name == "gcs"  # gcs does not list folders that exist only as prefixes of files
    with name_errors(folder):
        found = system.get_file_info(fs.FileSelector(place, recursive=below, allow_not_found=True))
    return {name_below(folder, info.path[len(place) + 1 :]).partition("/")[0] for info in found}


def read_range(path: StrPath, *, offset: int, length: int) -> bytes:
    """Return `length` bytes of a file from byte `offset`, or fewer if the file ends earlier."""
    if not is_url(path):
        with open(local_path(path), "rb") as stream:
            stream.seek(offset)
            return stream.read(length)
    with open_native(path) as stream, name_errors(path):
        found: bytes = stream.read_at(max(0, min(length, stream.size() - offset)), offset)
        return found


def find_file(path: StrPath) -> StoredFile | None:
    """Return a file's base name, size and modification time as a StoredFile, or None if the path is missing or a
    folder."""
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
    """Return the size of a file in bytes. Raises FileNotFoundError if the file is missing."""
    if not is_url(path):
        return local_path(path).stat().st_size
    found = find_file(path)
    if found is None:
        raise AbsentError(f"{os.fspath(path)}: there is no such object; correct the URL, or upload it")
    return found.size


def map_paths(function: Callable[[str], Result], paths: Sequence[str]) -> list[Result]:
    """Return the result of `function` for every path, in order. If any path is on a store, MAP_THREADS calls run at a
    time, to hide latency."""
    if not any(map(is_url, paths)):
        return [function(path) for path in paths]
    with ThreadPoolExecutor(max_workers=MAP_THREADS, thread_name_prefix="storage") as pool:
        return list(pool.map(function, paths))


def exists(path: StrPath) -> bool:
    """Return whether the file or folder exists. On a store, a folder exists if anything is below that name."""
    if not is_url(path):
        return local_path(path).exists()
    system, place = open_filesystem(path)
    with name_errors(path):
        return bool(system.get_file_info(place).type != fs.FileType.NotFound)


def file_version(path: StrPath) -> str:
    """Return a text that changes when the file is rewritten. The text is made from the file's size and, on a store, its
    entity tag. If there is no entity tag, the modification time is used instead."""
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
    """Delete a file, or do nothing if it is missing."""
    if not is_url(path):
        local_path(path).unlink(missing_ok=True)
        return
    system, place = open_filesystem(path)
    with suppress(AbsentError), name_errors(path):
        system.delete_file(place)


def delete_tree(folder: StrPath) -> None:
    """Delete a folder with everything below it, or do nothing if the folder is missing. On a store, one request deletes
    up to 1,000 files. Raises ValueError if `folder` is a whole bucket of a store."""
    if not is_url(folder):
        with suppress(FileNotFoundError):
            shutil.rmtree(local_path(folder))
        return
    system, place = open_filesystem(folder)
    if "/" not in place:
        raise ValueError(f"{os.fspath(folder)}: refusing to delete a whole bucket; name a folder in it")
    with suppress(AbsentError), name_errors(folder):
        system.delete_dir(place)


class _StoreReader(io.RawIOBase):
    """An object on a store as an unbuffered file. Each read is one request for a range of bytes, and errors name the
    URL."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.name = url
        self._file = open_native(url)
        with name_errors(url):
            self._size = self._file.size()
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._place = max(0, offset + (0, self._place, self._size)[whence])
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any, /) -> int:
        wanted = min(len(buffer), self._size - self._place)
        if wanted <= 0:
            return 0
        with name_errors(self.name):
            data = self._file.read_at(wanted, self._place)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)

    def readall(self) -> bytes:
        rest = bytearray(max(0, self._size - self._place))
        return bytes(memoryview(rest)[: self.readinto(rest)])

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@contextmanager
def _write_in_place(path: Path) -> Iterator[IO[bytes]]:
    try:
        with open(path, "wb") as stream:
            yield stream
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _list_local(folder: Path, *, below: bool) -> list[StoredFile]:
    found = []
    for path in sorted(folder.rglob("*") if below else folder.glob("*")):
        with suppress(FileNotFoundError):  # renamed or removed since the listing
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                found.append(StoredFile(path.relative_to(folder).as_posix(), status.st_size, status.st_mtime))
    return sorted(found, key=lambda file: file.name)


def _as_text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
