"""Refuses Parquet files that would take far more memory or stack than their size, before pyarrow opens or decodes them.

pyarrow trusts what a file states: it takes 2 GB of memory for a page of a kilobyte, and its process crashes at columns
that are nested 16,000 levels deep. Cost: one small read, and 0.1 ms, for every page (about a megabyte) that is decoded.

The format: https://parquet.apache.org/docs/file-format
"""

from __future__ import annotations

import io
import os
import struct
from typing import IO, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

MOST_EXPANSION = 1_000
"""Data that expand by more than this factor cannot be text. Real dumps and books stay below 20 (prose in bz2, xz:
4-8)."""
MOST_LEVELS = 100
"""The greatest number of levels to which the columns of a Parquet file may be nested."""
_EXPANSION_FREE_BYTES = 4 << 20  # 45 bytes of bz2 may hold 46 MB of newlines, which take minutes to read line by line
_MOST_HEADER_BYTES = 16 << 20
_HEADER_READ_BYTES = 512  # most headers of pages are shorter
_TAIL_BYTES = 1 << 16  # most footers are shorter
_MAGIC = b"PAR1"
DATA, DICTIONARY, DATA_2 = 0, 2, 3
"""Types of pages."""
_DELTA_BYTE_ARRAY = 7  # an encoding in which a value may repeat the value before it at no cost

Stream: TypeAlias = IO[bytes] | io.RawIOBase


class PageError(pa.ArrowInvalid):  # type: ignore[misc]
    """A page or the footer of a Parquet file is damaged, or does not follow the format."""


def refuse_expansion(given: int, *, taken: int, name: str, offset: int) -> None:
    """Raise ValueError if compressed data expand more than text can (a decompression bomb). This is so if `given`, the
    decompressed size in bytes, is more than 4 MiB and more than MOST_EXPANSION times `taken`, the compressed size. For
    messages, `name` is the file, and `offset` is the byte of the file at which the compressed data end."""
    if given > _EXPANSION_FREE_BYTES and given > MOST_EXPANSION * taken:
        raise ValueError(
            f"{name}: {taken} bytes up to byte {offset} expand to {given}, more than {MOST_EXPANSION} "
            f"times as much; this cannot be text, remove the file"
        )


def read_metadata(file: Stream) -> Any:
    """Return the footer of a Parquet file as pyarrow's FileMetaData. Raises PageError (see refuse_deep_columns), or
    pa.ArrowInvalid if the file does not end as a Parquet file does."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL_BYTES))
    tail = file.read() or b""
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if size < length + len(_MAGIC) or tail[-4:] != _MAGIC:
        file.seek(0)
        return pq.read_metadata(file)  # raises an error
    if length > len(tail):
        file.seek(size - length)
        tail = file.read() or b""
    refuse_deep_columns(tail[-length:])
    return pq.read_metadata(pa.BufferReader(_MAGIC + tail[-length:]))


def refuse_deep_columns(footer: bytes) -> None:
    """Raise PageError if the columns in the footer of a Parquet file are nested in more than MOST_LEVELS levels, or if
    the footer does not begin as every writer lets it begin: with the version and the columns."""
    stream = io.BytesIO(footer)
    try:
        left = [1]  # for each level: the number of its columns that were not read yet
        for _ in range(_start_of_columns(stream)):
            while left and not left[-1]:
                left.pop()
            if not left:
                raise PageError("it has columns beside its root")
            left[-1] -= 1
            children = read_struct(stream).get(5, 0)
            if children:
                left.append(children)
            if len(left) > MOST_LEVELS:
                raise PageError(f"its columns are nested in more than {MOST_LEVELS} levels")
    except (PageError, TypeError) as error:
        raise PageError(f"the footer is damaged: {error}") from error


def _start_of_columns(stream: Stream) -> int:
    """Skip the start of a footer, up to its list of columns, and return the length of the list."""
    if take_byte(stream) != 0x15:  # field 1, a number: the version
        raise PageError("it does not begin with a version")
    read_varint(stream)
    if take_byte(stream) != 0x19:  # the next field, a list: the columns
        raise PageError("it has no columns")
    head = take_byte(stream)
    return head >> 4 if head >> 4 < 15 else read_varint(stream)


def refuse_bomb(chunk: Any, *, name: str, file: Stream, plain_values: bool = False) -> None:
    """Raise ValueError naming the file `name` if the pages of a column chunk state more bytes or values than the stored
    bytes can hold (see refuse_expansion). Raises PageError if the headers of the pages are damaged.

    `chunk` is pyarrow's ColumnChunkMetaData, and `file` is the open file. If `plain_values` is True, the encoding is
    refused in which a value may repeat the one before it at no cost.
    """
    start = start_of(chunk)
    stored = max(0, min(chunk.total_compressed_size, file.seek(0, os.SEEK_END) - start))
    stream = _Headers(file, start=start, end=start + stored)
    sizes, left = PageSizes(name, start=start, stored=stored), chunk.num_values
    try:
        while left > 0:
            header = read_struct(stream)
            left -= sizes.add(header)
            if plain_values and _DELTA_BYTE_ARRAY in (header.get(5, {}).get(2), header.get(8, {}).get(4)):
                raise PageError("it is encoded as DELTA_BYTE_ARRAY, as no shard is")
            stream.skip(header[3])
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise PageError("a page header lacks a field or has an impossible number") from error


class PageSizes:
    """Adds up what the pages of a column chunk expand to. `name` is the file, and the chunk takes `stored` bytes from
    byte `start` on."""

    def __init__(self, name: str, *, start: int, stored: int) -> None:
        self._name, self._start, self._stored, self._given = name, start, stored, 0

    def add(self, header: dict[int, Any]) -> int:
        """Add a page by its header, and return how many values (rows, null or not) the page has; 0 for a dictionary.
        Raises ValueError if the pages expand to more than text can (see refuse_expansion)."""
        page = header.get(5) or header.get(8) if header[1] in (DATA, DATA_2) else None
        values = int(page[1]) if page else 0
        if min(header[2], header[3], values) < 0:
            raise PageError("a page has a negative size")
        self._given += header[2] + values
        refuse_expansion(self._given, taken=self._stored, name=self._name, offset=self._start + self._stored)
        return values


def start_of(chunk: Any) -> int:
    """Return the byte of the file at which a column chunk begins. `chunk` is pyarrow's ColumnChunkMetaData."""
    offsets = (chunk.dictionary_page_offset, chunk.data_page_offset)
    return int(min((offset for offset in offsets if offset), default=0))


class _Headers(io.RawIOBase):
    """Reads the headers of pages between two bytes of a file, and skips what the pages contain."""

    def __init__(self, file: Stream, *, start: int, end: int) -> None:
        super().__init__()
        self._file, self._place, self._end = file, start, end
        self._held, self._held_from = b"", start

    def read(self, size: int = -1, /) -> bytes:
        size = max(0, min(size, self._end - self._place))
        at = self._place - self._held_from
        if not 0 <= at <= len(self._held) - size:
            self._file.seek(self._place)
            self._held = self._file.read(min(max(size, _HEADER_READ_BYTES), self._end - self._place)) or b""
            self._held_from, at = self._place, 0
        self._place += size
        return self._held[at : at + size]

    def skip(self, size: int) -> None:
        """Go `size` bytes on. Raises PageError if that is beyond the end."""
        if size > self._end - self._place:
            raise PageError("a page reaches beyond its column chunk")
        self._place += size


# ---- Thrift's compact protocol ----


def take_byte(stream: Stream) -> int:
    """Return the next byte of a stream. Raises PageError at its end."""
    return take_bytes(stream, 1)[0]


def take_bytes(stream: Stream, size: int) -> bytes:
    """Return the next `size` bytes of a stream. Raises PageError if it ends before."""
    data = stream.read(size)
    if data is None or len(data) != size:
        raise PageError("a page ends early")
    return data


def read_varint(stream: Stream) -> int:
    """Return the next number of a stream. It is stored as a varint, with 7 bits in each byte and the lowest bits
    first."""
    value = shift = 0
    while True:
        byte = take_byte(stream)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
        if shift > 63:
            raise PageError("a number of more than 64 bits")


def read_struct(stream: Stream, *, depth: int = 0) -> dict[int, Any]:
    """Return {field id: value} for the next struct of a stream in Thrift's compact protocol. Raises PageError if it is
    damaged, has a field twice, or is not as a header of a page or column is."""
    fields: dict[int, Any] = {}
    number = 0
    while byte := take_byte(stream):
        kind = byte & 0x0F
        number = number + (byte >> 4) if byte >> 4 else _signed(read_varint(stream))
        if number in fields:
            raise PageError("a header has a field twice")  # pyarrow may take the other one
        fields[number] = kind == 1 if kind in (1, 2) else _read_field(stream, kind, depth=depth)
    return fields


def _read_field(stream: Stream, kind: int, *, depth: int) -> Any:
    if depth > 8:
        raise PageError("a page header is nested too deeply")
    if kind in (1, 2, 3):
        return take_byte(stream)
    if kind in (4, 5, 6):
        return _signed(read_varint(stream))
    if kind == 7:
        return struct.unpack("<d", take_bytes(stream, 8))[0]
    if kind == 8:
        size = read_varint(stream)
        if size > _MOST_HEADER_BYTES:
            raise PageError("a page header has a text of more than 16 MiB")
        return take_bytes(stream, size)
    if kind in (9, 10):
        byte = take_byte(stream)
        size = byte >> 4 if byte >> 4 < 15 else read_varint(stream)
        return [_read_field(stream, byte & 0x0F, depth=depth + 1) for _ in range(min(size, _MOST_HEADER_BYTES))]
    if kind == 12:
        return read_struct(stream, depth=depth + 1)
    raise PageError(f"a page header has a field of unknown kind {kind}")


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)
