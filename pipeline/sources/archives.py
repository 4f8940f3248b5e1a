"""Reads the members of .zip and .tar archives, compressed or not, in place: nothing is unpacked to disk.

Several workers share one archive. A zip or plain tar is split into ranges of members. A compressed tar is one stream:
each of its n splits decompresses all of it and takes every n-th member. For xz this costs little. It is read at 60
MB/s, and preparing the text takes 30 times as long.
"""

from __future__ import annotations

import io
import lzma
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from pipeline import storage
from pipeline.documents import Split
from pipeline.parquet_bounds import MOST_EXPANSION
from pipeline.sources.bytestreams import PIECE_BYTES, compression_of, read_pieces

MOST_MEMBER_BYTES = 256 << 20
SPLIT_TEXT_BYTES = 16 << 20
_MOST_PARTS = 32
TEXT_SHARE = {"xz": 3.5, "bz2": 3.5, "gzip": 2.6, "zstd": 2.8, "": 1.0}
"""For each compression, the estimated bytes of text per byte of a book's file."""
_FREE_BYTES = 64 << 20
_MOST_HEADER_BYTES = 1 << 20
_LONG_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME)
_ZIP_MEMBER, _ZIP_END = b"PK\x03\x04", b"PK\x05\x06"
# Offset of the number of members in a zip's end record, and size of that record with the longest possible comment.
_ZIP_COUNT, _ZIP_END_BYTES = 10, 22 + (1 << 16)
_SHOWN_NAME = 200
_LOOK_BYTES = 1 << 14  # requested from a store at a time, to read the header of a member
_ZIP_FAULTS = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(NotImplementedError, RuntimeError, EOFError, OSError, UnicodeError),
)
_TAR_FAULTS = (tarfile.TarError, EOFError, OSError, ValueError, OverflowError, RecursionError)
"""What reading a header raises: ValueError or OverflowError for a size beyond 64 bits in a record of pax, and
RecursionError for a thousand long names in a row."""
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


class Member(NamedTuple):
    """A file of an archive. `name` is ARCHIVE!MEMBER. `data` is the file's content, or None if the file was refused and
    not read. If it was refused, `reason` (the name of a counter of omissions) and `detail` say why."""

    name: str
    data: bytes | None
    reason: str = ""
    detail: str = ""


def split_archive(path: str | Path, *, source: int, split_bytes: int | None = None) -> list[Split]:
    """Return the splits of an archive (its parts, each for one worker), in order. `source` is the source's index in the
    config.

    `split_bytes` says about how many bytes of text a split of a zip or plain tar has (default: SPLIT_TEXT_BYTES).
    Raises ValueError if the archive is damaged or empty, or if a zip expands too much.
    """
    size = storage.size_of(path)
    if _is_zip(path):
        return _split_zip(path, source=source, split_bytes=split_bytes)
    compression = compression_of(path)
    if not compression:
        return _split_tar(path, source=source, split_bytes=split_bytes)
    whole = Split(source, str(path), 0, -1, size, round(TEXT_SHARE[compression] * size))
    return whole.share(_MOST_PARTS, part_bytes=SPLIT_TEXT_BYTES)


def read_members(split: Split, *, suffixes: tuple[str, ...]) -> Iterator[Member]:
    """Yield every file of a split in order as a Member. Hidden files (which packing on a Mac adds) are left out.

    A Member has no data, but a reason, in three cases. The reason is "book_over_budget" if the file has more than
    MOST_MEMBER_BYTES. It is "not_a_text_file" for a link, a device or a sparse file, and if the name ends in none of
    `suffixes`. It is "unsafe_name" if the path leads out of the archive or contains control characters. Raises
    ValueError naming archive, member and byte if the archive is damaged.
    """
    path = split.path
    found = _read_zip(path, split) if _is_zip(path) else _read_tar(path, split)
    shown = (entry for entry in found if not _is_hidden(entry.name) or _is_unsafe(entry.name))
    for number, entry in enumerate(shown):
        if split.takes(number):
            yield _judge(entry, path=path, suffixes=suffixes)


class _Entry(NamedTuple):
    """A member of a zip or tar before its content is read. `is_plain` is False for a link, a device or a sparse file.
    `place` is the byte where the member's header begins."""

    name: str
    size: int
    is_plain: bool
    place: int
    archive: zipfile.ZipFile | tarfile.TarFile
    handle: zipfile.ZipInfo | tarfile.TarInfo


def _judge(entry: _Entry, *, path: str, suffixes: tuple[str, ...]) -> Member:
    name = f"{Path(path).name}!{_shown(entry.name)}"
    if _is_unsafe(entry.name):
        return Member(name, None, "unsafe_name", "leads out of the archive, or holds control characters")
    if not entry.is_plain:
        return Member(name, None, "not_a_text_file", "a link, a device or a sparse file")
    if not entry.name.lower().endswith(suffixes):
        return Member(name, None, "not_a_text_file")
    if entry.size > MOST_MEMBER_BYTES:
        return Member(name, None, "book_over_budget", f"more than {MOST_MEMBER_BYTES} bytes")
    if isinstance(entry.archive, zipfile.ZipFile):
        assert isinstance(entry.handle, zipfile.ZipInfo)
        try:
            return Member(name, entry.archive.read(entry.handle))
        except storage.StorageError:
            raise
        except _ZIP_FAULTS as error:
            raise ValueError(
                f"{path}: member {_shown(entry.name)} (byte {entry.place}) cannot be read: {error}; "
                f"fetch the archive again, or pack it without a password"
            ) from error
    assert isinstance(entry.handle, tarfile.TarInfo)
    file = entry.archive.extractfile(entry.handle)
    assert file is not None
    try:
        return Member(name, file.read())
    except tarfile.TarError as error:
        raise ValueError(
            f"{path}: the archive ends inside member {_shown(entry.name)} (byte {entry.place}): it is truncated; "
            f"remove it and fetch it again"
        ) from error


# ---- zip ----


@contextmanager
def _open_zip(path: str | Path) -> Iterator[zipfile.ZipFile]:
    with storage.open_input(path) as file:
        try:
            archive = zipfile.ZipFile(file)
        except storage.StorageError:
            raise
        except _ZIP_FAULTS as error:
            raise ValueError(f"{path}: not a complete zip archive: {error}; remove it and fetch it again") from error
        with archive:
            yield archive


def _split_zip(path: str | Path, *, source: int, split_bytes: int | None) -> list[Split]:
    with _open_zip(path) as archive:
        members = archive.infolist()
        first = min((member.header_offset for member in members), default=0)
        file = archive.fp
        assert file is not None
        file.seek(0)
        follows = first > 0 and file.read(len(_ZIP_MEMBER)) == _ZIP_MEMBER
        file.seek(max(0, file.seek(0, io.SEEK_END) - _ZIP_END_BYTES))
        tail = file.read()
        (stated,) = struct.unpack_from("<H", tail, tail.rfind(_ZIP_END) + _ZIP_COUNT)
    # zipfile does not check the stated number, which is 0xFFFF if there are more members than 16 bits can say.
    if stated not in (len(members) & 0xFFFF, 0xFFFF):
        raise ValueError(
            f"{path}: its index lists {len(members)} of {stated} members: it is damaged; remove it and fetch it again"
        )
    if follows:
        raise ValueError(
            f"{path}: another zip archive comes before byte {first}, where the indexed one begins; give each archive "
            f"as a separate file"
        )
    total = sum(member.file_size for member in members)
    if total > max(_FREE_BYTES, MOST_EXPANSION * storage.size_of(path)):
        raise ValueError(
            f"{path}: its {len(members)} members expand to {total} bytes, more than {MOST_EXPANSION} times the "
            f"archive; this cannot be text, remove the file"
        )
    sizes = [(member.compress_size, member.file_size) for member in members]
    return _cut(path, source=source, sizes=sizes, places=list(range(len(members) + 1)), split_bytes=split_bytes)


def _read_zip(path: str, split: Split) -> Iterator[_Entry]:
    with _open_zip(path) as archive:
        for member in archive.infolist()[split.start : split.end]:
            if not member.is_dir():
                yield _Entry(member.filename, member.file_size, True, member.header_offset, archive, member)


# ---- tar ----


class _CheckedHeader(tarfile.TarInfo):
    """A tar header that is checked when it is read. It raises ReadError if the header is damaged, or if its long name
    or extra records take more than a megabyte. Without this check, tarfile takes a damaged header for the end of the
    archive, and reads long records into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _CheckedHeader:
        try:
            header = super().frombuf(buf, encoding, errors)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(str(error)) from error
        if header.type in (*_LONG_HEADERS, tarfile.GNUTYPE_LONGLINK) and header.size > _MOST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {header.size} bytes")
        return header


def _split_tar(path: str | Path, *, source: int, split_bytes: int | None) -> list[Split]:
    """Return the splits of a plain tar, as ranges of bytes. Only the headers are read, not the members' content."""
    places: list[int] = []
    sizes: list[tuple[int, int]] = []
    with storage.open_input(path, read_ahead=_LOOK_BYTES) as file, _open_tar(path, file=file, mode="r:") as archive:
        for member in _walk(archive, path=path):
            places.append(member.offset)
            sizes.append((member.size, member.size if member.isreg() else 0))
        end = archive.offset
        _check_end(archive, path=path)
    return _cut(path, source=source, sizes=sizes, places=[*places, end], split_bytes=split_bytes)


def _read_tar(path: str, split: Split) -> Iterator[_Entry]:
    whole = bool(compression_of(path))
    file: io.RawIOBase = _PieceFile(read_pieces(path) if whole else read_pieces(path, start=split.start, end=split.end))
    shift = 0 if whole else split.start
    with _open_tar(path, file=file, mode="r|") as archive:
        for member in _walk(archive, path=path):
            if not member.isdir():
                plain = member.isreg() and not member.issparse()
                yield _Entry(member.name, member.size, plain, shift + member.offset, archive, member)
        if whole:
            _check_end(archive, path=path)


def _check_end(archive: tarfile.TarFile, *, path: str | Path) -> None:
    """Raise ValueError if the tar `archive`, whose last member was read, has no end mark, or if another tar follows the
    end mark in the same file."""
    file, end = archive.fileobj, archive.offset
    assert file is not None
    if file.tell() == end:
        raise ValueError(
            f"{path}: ends at byte {end} of its content without a tar end mark: it is truncated; fetch it again"
        )
    place = file.tell()
    while block := file.read(PIECE_BYTES):
        skipped = (len(block) - len(block.lstrip(b"\0"))) // tarfile.BLOCKSIZE * tarfile.BLOCKSIZE
        if skipped == len(block):
            place += skipped
            continue
        with suppress(tarfile.TarError):  # data that are no tar header are harmless
            _CheckedHeader.frombuf(block[skipped : skipped + tarfile.BLOCKSIZE], tarfile.ENCODING, "surrogateescape")
            raise ValueError(
                f"{path}: another tar archive follows at byte {place + skipped} of its content, after the end of the "
                f"first; give each archive as a separate file"
            )
        return


def _open_tar(path: str | Path, *, file: io.RawIOBase | IO[bytes], mode: str) -> tarfile.TarFile:
    try:
        return tarfile.open(  # type: ignore[call-overload,no-any-return]
            fileobj=file, mode=mode, bufsize=PIECE_BYTES, tarinfo=_CheckedHeader, errorlevel=2
        )
    except storage.StorageError:
        raise
    except _TAR_FAULTS as error:
        if str(path) in str(error):  # of the decompressor, which names the file
            raise
        raise ValueError(f"{path}: not a complete tar archive: {error}; remove it and fetch it again") from error


def _walk(archive: tarfile.TarFile, *, path: str | Path) -> Iterator[tarfile.TarInfo]:
    most = MOST_EXPANSION * storage.size_of(path) + _FREE_BYTES
    while True:
        try:
            member = archive.next()
        except storage.StorageError:
            raise
        except _TAR_FAULTS as error:
            if str(path) in str(error):
                raise
            raise ValueError(
                f"{path}: the archive is truncated or corrupt at byte {archive.offset} of its content: {error}; "
                f"remove it and fetch it again"
            ) from error
        if member is None:
            return
        if member.size > most:  # tarfile would skip it piece by piece, long after the end of the file
            raise ValueError(
                f"{path}: the member at byte {member.offset} of its content states {member.size} bytes, more than "
                f"{MOST_EXPANSION} times as much as the archive; remove it and fetch it again"
            )
        yield member
        archive.members.clear()  # type: ignore[attr-defined]  # tarfile would keep a million members in memory


class _PieceFile(io.RawIOBase):
    """A file whose content is the bytes that the iterator `pieces` gives. It can only be read forwards."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self._pieces, self._rest = pieces, b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return the next `size` bytes, or fewer at the end of the file. A negative `size` returns no bytes."""
        parts, missing = [], size
        while missing > 0:
            if not self._rest:
                self._rest = next(self._pieces, b"")
                if not self._rest:
                    break
            parts.append(self._rest[:missing])
            self._rest = self._rest[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)


# ---- both ----


def _is_zip(path: str | Path) -> bool:
    return Path(path).suffix.lower() == ".zip"


def _cut(
    path: str | Path, *, source: int, sizes: list[tuple[int, int]], places: list[int], split_bytes: int | None
) -> list[Split]:
    """Return splits of neighbouring members, each with about `split_bytes` of text. `sizes` has a pair for each member:
    (bytes in the archive, bytes of text). `places` says where each member starts, and its last entry is the end of the
    last member. In a zip, a place is a member's number. In a tar, it is a byte of the file."""
    if not sizes:
        raise ValueError(f"{path}: the archive has no members; give one with books, or remove it")
    splits = []
    first = packed = text = 0
    for index, (stored, expanded) in enumerate(sizes):
        packed += stored
        text += expanded
        if text >= (split_bytes or SPLIT_TEXT_BYTES) or index == len(sizes) - 1:
            splits.append(Split(source, str(path), places[first], places[index + 1], packed, text))
            first, packed, text = index + 1, 0, 0
    return splits


def _is_hidden(name: str) -> bool:
    parts = [part for part in Path(name).parts if part not in (".", "..")]
    return any(part.startswith(".") or part == "__MACOSX" for part in parts)


def _is_unsafe(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return ".." in parts or parts[0] == "" or _CONTROL.search(name) is not None or _DRIVE.match(name) is not None


def _shown(name: str) -> str:
    """Return `name` as messages show it: unprintable characters are escaped, and "..." replaces what follows the first
    _SHOWN_NAME characters."""
    text = name if name.isprintable() else ascii(name)[1:-1]
    return text if len(text) <= _SHOWN_NAME else f"{text[:_SHOWN_NAME]}..."
