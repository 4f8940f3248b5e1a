"""Reads the text column of a large Parquet row group value by value, in memory that does not grow with the group.

pyarrow keeps up to three copies of a whole page and of a whole dictionary in memory. Its writer puts up to 1,024 rows
into one page, so a row group of 1,000 novels (616 MB) takes 3.5 GiB. Here a page is decompressed in pieces of about a
megabyte, and a large dictionary lies in a temporary file: 60 MB of memory in all.

The format: https://parquet.apache.org/docs/file-format
"""

from __future__ import annotations

import io
import tempfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from pipeline import storage
from pipeline.parquet_bounds import (
    DATA,
    DATA_2,
    DICTIONARY,
    PageError,
    PageSizes,
    read_struct,
    read_varint,
    start_of,
    take_byte,
)
from pipeline.sources.page_compression import CODECS, PIECE_BYTES, UnreadableFormatError, expand

_MOST_DICTIONARY_IN_MEMORY = 16 << 20
_PLAIN, _RLE, _DICTIONARY_INDEXES = 0, 3, (2, 8)
_ENCODINGS = {"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}


def can_read(chunk: Any, column: Any) -> bool:
    """Return whether read_values can read a column chunk. `chunk` is pyarrow's ColumnChunkMetaData and `column` its
    ColumnSchema."""
    return (
        chunk.physical_type == "BYTE_ARRAY"
        and column.max_repetition_level == 0
        and column.max_definition_level <= 1
        and chunk.compression in CODECS
        and set(chunk.encodings) <= _ENCODINGS
    )


def read_values(path: str, *, chunk: Any, nullable: bool) -> Iterator[bytes | None]:
    """Yield the value of every row of a column chunk, or None for null.

    Raises PageError if the chunk is damaged or a page does not match its checksum. Raises UnreadableFormatError at a
    page that only pyarrow can read.
    """
    with storage.open_input(path) as file, storage.name_full_disk(tempfile.gettempdir()):
        start = start_of(chunk)
        file.seek(start)
        stream = _Counted(file, chunk.total_compressed_size)
        sizes = PageSizes(path, start=start, stored=chunk.total_compressed_size)
        try:
            yield from _read_pages(stream, sizes=sizes, chunk=chunk, nullable=nullable)
        except (KeyError, TypeError, OverflowError) as error:
            raise PageError("a page header lacks a field or has an impossible number") from error


def _read_pages(stream: _Counted, *, sizes: PageSizes, chunk: Any, nullable: bool) -> Iterator[bytes | None]:
    left = chunk.num_values
    with _Dictionary() as dictionary:
        while left > 0:
            header = read_struct(stream)
            kind, size, stored = header[1], header[2], header[3]
            sizes.add(header)
            raw = _Counted(stream, stored, checksum=header.get(4))
            if kind == DICTIONARY:
                content = _Content(expand(raw, codec=chunk.compression, size=size), size)
                dictionary.fill(_plain_values(content, header[7][2]))
            elif kind in (DATA, DATA_2):
                page = header[5 if kind == DATA else 8]
                if page[1] > left:
                    raise PageError("a page has more values than its column chunk")
                open_page = _open_page if kind == DATA else _open_page_2
                present, encoding, content = open_page(raw, page, size=size, codec=chunk.compression, nullable=nullable)
                yield from _page_values(content, encoding, present=present, dictionary=dictionary)
                left -= page[1]
            raw.finish()


def _open_page(
    raw: _Counted, page: dict[int, Any], *, size: int, codec: str, nullable: bool
) -> tuple[npt.NDArray[np.bool_], int, _Content]:
    """Return (present, encoding, content) of a page. `present` tells for each row whether it has a value. `content` has
    the values, in the form that `encoding` names."""
    content = _Content(expand(raw, codec=codec, size=size), size)
    if not nullable:
        return np.ones(page[1], np.bool_), page[2], content
    if page[3] != _RLE:
        raise UnreadableFormatError
    levels = content.take(int.from_bytes(content.take(4), "little"))
    return _decode_runs(levels, width=1, count=page[1]) == 1, page[2], content


def _open_page_2(
    raw: _Counted, page: dict[int, Any], *, size: int, codec: str, nullable: bool
) -> tuple[npt.NDArray[np.bool_], int, _Content]:
    """Return (present, encoding, content) of a page of Parquet's second version. `present` tells for each row whether
    it has a value. `content` has the values, in the form that `encoding` names. In such a page, only the values are
    compressed."""
    levels = raw.take(page[5])
    raw.take(page[6])
    rest = size - page[5] - page[6]
    codec = codec if page.get(7, True) else "UNCOMPRESSED"
    content = _Content(expand(raw, codec=codec, size=rest), rest)
    present = _decode_runs(levels, width=1, count=page[1]) == 1 if nullable else np.ones(page[1], np.bool_)
    return present, page[4], content


def _page_values(
    content: _Content, encoding: int, *, present: npt.NDArray[np.bool_], dictionary: _Dictionary
) -> Iterator[bytes | None]:
    if encoding in _DICTIONARY_INDEXES:
        count = int(present.sum())
        indexes = _decode_runs(content.take_rest(), count=count) if count else np.zeros(0, np.int64)
        values: Iterator[bytes] = map(dictionary.__getitem__, indexes.tolist())
    else:
        values = _plain_values(content, encoding)
    for is_present in present.tolist():
        yield next(values) if is_present else None


def _plain_values(content: _Content, encoding: int) -> Iterator[bytes]:
    if encoding not in (_PLAIN, 2):  # 2 was PLAIN's name in dictionaries of old writers
        raise UnreadableFormatError
    while prefix := content.take(4, or_end=True):
        yield content.take(int.from_bytes(prefix, "little"))


class _Dictionary:
    """The distinct values of a column chunk, by index. A large dictionary lies in a temporary file."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_MOST_DICTIONARY_IN_MEMORY)  # noqa: SIM115
        self._ends = np.zeros(1, np.int64)

    def __enter__(self) -> _Dictionary:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def fill(self, values: Iterator[bytes]) -> None:
        """Store `values`. They replace all values that were stored before."""
        self._file.seek(0)
        self._file.truncate()
        sizes = np.fromiter((self._file.write(value) for value in values), np.int64)
        self._ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])

    def __getitem__(self, index: int) -> bytes:
        if index >= self._ends.size - 1:
            raise PageError(f"value {index} of a dictionary of {self._ends.size - 1}")
        start, end = self._ends[index : index + 2].tolist()
        self._file.seek(start)
        return self._file.read(end - start)


class _Content:
    """The decompressed content of a page, `size` bytes in all. The methods return its bytes from the beginning to the
    end."""

    def __init__(self, pieces: Iterator[bytes], size: int) -> None:
        self._pieces, self._left = pieces, size
        self._piece, self._place = b"", 0

    def take(self, size: int, *, or_end: bool = False) -> bytes:
        """Return the next `size` bytes. If nothing is left and `or_end` is True, return b"". Raises PageError if too
        few bytes are left."""
        if or_end and not self._left:
            return b""
        if not 0 <= size <= self._left:
            raise PageError("a value reaches beyond its page")
        self._left -= size
        end = self._place + size
        if end <= len(self._piece):
            taken, self._place = self._piece[self._place : end], end
            return taken
        parts = [self._piece[self._place :]]
        missing = size - len(parts[0])
        while missing > 0:
            self._piece = next(self._pieces, b"")
            if not self._piece:
                raise PageError("a page ends early")
            parts.append(self._piece[:missing])
            self._place = len(parts[-1])
            missing -= self._place
        return b"".join(parts)

    def take_rest(self) -> bytes:
        """Return all bytes that were not taken yet."""
        return self.take(self._left)


class _Counted(io.RawIOBase):
    """A stream that ends after the next `size` bytes of `stream`. `checksum` is the CRC-32 of these bytes, or None if
    it is not known."""

    def __init__(self, stream: IO[bytes] | _Counted, size: int, *, checksum: int | None = None) -> None:
        super().__init__()
        self._stream, self._left, self._checksum, self._crc = stream, size, checksum, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        if self._checksum is not None:
            self._crc = zlib.crc32(data, self._crc)
        return data

    def take(self, size: int) -> bytes:
        """Return exactly `size` bytes. Raises PageError if fewer are left."""
        if size > self._left:
            raise PageError("a page reaches beyond its column chunk")
        data = self.read(size)
        if len(data) != size:
            raise PageError("the file ends inside a page")
        return data

    def finish(self) -> None:
        """Skip the bytes that were not read. Raises PageError if all bytes together do not match the checksum."""
        while self._left:
            self.take(min(self._left, PIECE_BYTES))
        if self._checksum is not None and self._crc != self._checksum & 0xFFFFFFFF:
            raise PageError("a page does not have its checksum")


# ---- levels and indexes ----


def _decode_runs(data: bytes, *, count: int, width: int | None = None) -> npt.NDArray[np.int64]:
    """Return `count` numbers that `data` holds in Parquet's mix of repeated and bit-packed runs. A number has `width`
    bits. If `width` is None, the first byte of `data` gives it."""
    stream = io.BytesIO(data)
    width = take_byte(stream) if width is None else width
    if width > 32:
        raise PageError(f"numbers of {width} bits")
    parts: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    found = 0
    while found < count:
        run = read_varint(stream)
        if run & 1:
            groups = min(run >> 1, -(-(count - found) // 8))  # a run may claim, and hold, far more than the page has
            packed = np.frombuffer(stream.read(groups * width), np.uint8)
            bits = np.unpackbits(packed, bitorder="little")
            numbers = bits[: bits.size - bits.size % max(1, width)].reshape(-1, max(1, width)).astype(np.int64)
            part = (
                numbers @ (1 << np.arange(width)) if width else np.zeros(min((run >> 1) * 8, count - found), np.int64)
            )
        else:
            value = int.from_bytes(stream.read((width + 7) // 8), "little")
            part = np.full(min(run >> 1, count - found), value, np.int64)
        if not part.size:
            raise PageError("a run of numbers ends early")
        parts.append(part)
        found += part.size
    return np.concatenate(parts)[:count]
