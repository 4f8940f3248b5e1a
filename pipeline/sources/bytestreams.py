"""Reads plain, .bz2 (any number of streams), .gz, .xz and .zst files in pieces. Every error names file and offset.

Memory is flat: a piece has at most PIECE_BYTES, however much the input expands. If a file ends inside a compressed
stream, an error is raised. If a file was cut between two streams, no error is raised here. Only a reader of the content
can then notice that something is missing.
"""

from __future__ import annotations

import bz2
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

from pipeline import storage
from pipeline.parquet_bounds import refuse_expansion

PIECE_BYTES = 1 << 18
_READ_AHEAD_BYTES = 4 << 20  # requested from a store at a time, because a request takes 30 ms
_BLOCK_BYTES = 1 << 12  # given to a decompressor at a time, so that what expands too much is noticed after 4 MB of text
_XZ_MEMORY = 512 << 20  # bytes; xz -9 needs 65 MB, but a file's header can demand 4 GB

COMPRESSED = {".bz2": "bz2", ".gz": "gzip", ".xz": "xz", ".zst": "zstd"}
_COMPRESSED_TAR = {".tgz": "gzip", ".txz": "xz", ".tbz2": "bz2", ".tbz": "bz2"}
REFUSED = {
    ".7z": "7-Zip archives are not supported; unpack it first (7z x)",
    ".rar": "RAR archives are not supported; unpack it first",
    ".lz4": "lz4 files are not supported; unpack it first (lz4 -d)",
    ".br": "Brotli files are not supported; unpack it first (brotli -d)",
    ".z": "compress(1) files are not supported; unpack it first (gunzip)",
}


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    """Wraps zlib's gzip decompressor, so that it has the methods and attributes of BZ2Decompressor and
    LZMADecompressor."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self._pending = b""

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._pending

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        piece = self._inner.decompress(self._pending + data, max(0, max_length))
        self._pending = self._inner.unconsumed_tail
        return piece


_DECOMPRESSORS: dict[str, Callable[[], _Decompressor]] = {
    "bz2": bz2.BZ2Decompressor,
    "gzip": _Gzip,
    "xz": lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY),
}


def compression_of(path: str | Path) -> str:
    """Return the compression that the file's suffix names: bz2, gzip, xz, zstd, or "" for none. Raises ValueError for a
    format that is not supported."""
    suffix = Path(path).suffix.lower()
    if suffix in REFUSED:
        raise ValueError(f"{path}: {REFUSED[suffix]}")
    return COMPRESSED.get(suffix) or _COMPRESSED_TAR.get(suffix, "")


def read_pieces(path: str | Path, *, start: int = 0, end: int = -1) -> Iterator[bytes]:
    """Yield the decompressed content of a file in pieces, from byte `start` to byte `end` (-1: the end of the file).

    In a compressed file, a compressed stream must begin at `start`, and a compressed stream must end at `end`. A zstd
    file is always read whole. Raises ValueError naming the file and the byte offset if the data are truncated, corrupt
    or expand too much.
    """
    compression = compression_of(path)
    with storage.open_input(path, read_ahead=_READ_AHEAD_BYTES) as file:
        if compression == "zstd":
            yield from _read_zstd(path, file)
            return
        size = file.seek(0, os.SEEK_END)
        file.seek(start)
        raw = _read_raw(file, (size if end < 0 else end) - start)
        if compression:
            yield from decompress_pieces(raw, compression=compression, name=str(path), offset=start)
        else:
            yield from raw


def _read_raw(file: IO[bytes], length: int) -> Iterator[bytes]:
    while length > 0:
        data = file.read(min(PIECE_BYTES, length))
        if not data:
            return
        length -= len(data)
        yield data


def decompress_pieces(raw: Iterator[bytes], *, compression: str, name: str, offset: int = 0) -> Iterator[bytes]:
    """Yield the decompressed content of `raw`, the bytes of one or more compressed streams, in pieces. For messages,
    `name` is the file and `offset` is the byte of the file where `raw` begins. Raises ValueError for data that are
    corrupt, truncated or expand too much."""
    make = _DECOMPRESSORS[compression]
    decompressor: _Decompressor | None = None
    stream_start = offset
    taken = given = 0
    data = b""
    for block in (long[at : at + _BLOCK_BYTES] for long in raw for at in range(0, len(long), _BLOCK_BYTES)):
        data += block
        taken += len(block)
        while data or (decompressor is not None and not decompressor.needs_input):
            if decompressor is None:
                data = data.lstrip(b"\0") if compression in ("gzip", "xz") else data
                if not data:
                    break
                stream_start = offset + taken - len(data)
                decompressor = make()
            try:
                piece = decompressor.decompress(data, PIECE_BYTES)
            except (OSError, lzma.LZMAError, zlib.error, EOFError) as error:
                place = f"in the {compression} stream that starts at byte {stream_start}"
                raise ValueError(
                    f"{name}: corrupt data {place}: {error}; remove the file and fetch it again"
                ) from error
            data = b""
            given += len(piece)
            refuse_expansion(given, taken=taken, name=name, offset=offset + taken)
            if piece:
                yield piece
            if decompressor.eof:
                data = decompressor.unused_data
                decompressor = None
            elif decompressor.needs_input:
                break
    if decompressor is not None:
        raise ValueError(
            f"{name}: the file ends at byte {offset + taken}, inside the {compression} stream that starts at byte "
            f"{stream_start}: it is truncated; remove it and fetch it again"
        )


def _read_zstd(path: str | Path, file: IO[bytes]) -> Iterator[bytes]:
    import pyarrow as pa

    given = place = 0
    try:
        with pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd") as stream:
            while piece := stream.read(PIECE_BYTES):
                given, place = given + len(piece), file.tell()
                refuse_expansion(given, taken=place, name=str(path), offset=place)
                yield piece
    except storage.StorageError:
        raise
    except OSError as error:
        raise ValueError(
            f"{path}: corrupt or truncated zstd data after byte {place} or {given} bytes of content: {error}; "
            f"remove the file and fetch it again"
        ) from error


def read_whole(path: str | Path, *, most_bytes: int) -> bytes | None:
    """Return the whole decompressed content of a file, or None if the content exceeds `most_bytes`."""
    pieces: list[bytes] = []
    total = 0
    for piece in read_pieces(path):
        total += len(piece)
        if total > most_bytes:
            return None
        pieces.append(piece)
    return b"".join(pieces)
