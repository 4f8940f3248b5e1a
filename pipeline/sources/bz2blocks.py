"""Reads the blocks of bzip2 files. Each block can be decoded alone, so many workers can share one large stream.

A block starts with a 48-bit mark at any bit, and contains its own checksum, which is verified. A block holds at most
900 kB, not counting long runs of one byte, which bzip2 shortens first. The mark's bits may occur in other data by
chance (once in 2**48 bits). A block that seems to end at such a false mark cannot be decoded. It is therefore decoded
again up to the next mark, until an attempt succeeds.
"""

from __future__ import annotations

import bz2
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from pipeline import storage
from pipeline.parquet_bounds import refuse_expansion

_BLOCK = 0x314159265359
_END = 0x177245385090
_MARK_BITS, _CHECKSUM_BITS = 48, 32
_READ_BYTES = 1 << 20
MOST_BLOCK_BYTES = 2 << 20
"""Upper limit for the compressed size of a block; 900,000 incompressible bytes take about 905,000."""
_MARK_BYTES = 7
_EMPTY_STREAM_BYTES = 14


class Mark(NamedTuple):
    """The place of a 48-bit pattern that begins a block or, if `is_end` is True, ends a stream. The same bits may also
    occur by chance. `bit` counts from the start of the searched bytes. In the marks of a _Window, it counts from the
    start of the file."""

    bit: int
    is_end: bool


class Block(NamedTuple):
    """A decoded block. `start` is the byte of the file in which the block starts, and `content` is decompressed."""

    start: int
    content: bytes


def find_marks(data: bytes) -> list[Mark]:
    """Return all complete marks in `data`, in order. A mark is the 48-bit pattern that begins a block or ends a
    stream."""
    marks: list[Mark] = []
    size = len(data)
    for mark in (_BLOCK, _END):
        for shift in range(8):
            wanted = (mark << (8 - shift)).to_bytes(7, "big")
            first, last = 0xFF >> shift, (0xFF << (8 - shift)) & 0xFF
            place = data.find(wanted[1:6], 1)
            while place >= 0:
                fits = data[place - 1] & first == wanted[0]
                if fits and (shift == 0 or (place + 5 < size and data[place + 5] & last == wanted[6])):
                    marks.append(Mark(8 * (place - 1) + shift, mark == _END))
                place = data.find(wanted[1:6], place + 1)
    return sorted(marks)


def decode_block(data: bytes, start: int, end: int) -> bytes | None:
    """Return the decompressed content of the block at bits [start, end) of `data`, or None if these bits are not a
    whole block."""
    window = int.from_bytes(data[start // 8 : (end + 7) // 8], "big") >> (-end % 8)
    length = end - start
    bits = window & ((1 << length) - 1)
    checksum = (bits >> (length - _MARK_BITS - _CHECKSUM_BITS)) & 0xFFFFFFFF
    # Build a stream of this block alone. The block's checksum is then the stream's checksum too.
    tail = (_END << _CHECKSUM_BITS) | checksum
    total = length + _MARK_BITS + _CHECKSUM_BITS
    stream = ((bits << (_MARK_BITS + _CHECKSUM_BITS)) | tail) << (-total % 8)
    packed = b"BZh9" + stream.to_bytes((total + 7) // 8, "big")
    decompressor = bz2.BZ2Decompressor()
    try:
        content = decompressor.decompress(packed)  # a block expands to 46 MB at most
    except OSError:
        return None
    return content if decompressor.eof else None


def read_blocks(path: str | Path, *, start: int = 0) -> Iterator[Block]:
    """Yield every block that starts at or after byte `start` of a file. The blocks may belong to different streams of
    the file.

    Raises ValueError naming the file and the byte if the data are truncated, corrupt, or expand too much.
    """
    with storage.open_input(path, read_ahead=_READ_BYTES) as file:
        size = file.seek(0, os.SEEK_END)
        window = _Window(file, start=start)
        block = window.next_mark(8 * start, is_end=False)
        given, is_first = 0, True
        while block is not None:
            end, content = _decode_at(window, block)
            if end is None or content is None:
                following = window.next_mark(block.bit + 1, is_end=False) if is_first and start > 0 else None
                if following is None:
                    raise ValueError(_describe_damage(path, size=size, window=window, block=block))
                block = following  # the first mark after `start` was no block, only equal bits
                continue
            is_first = False
            given += len(content)
            refuse_expansion(given, taken=end.bit // 8 - start, name=str(path), offset=end.bit // 8)
            yield Block(block.bit // 8, content)
            after = end.bit
            if end.is_end:
                after = 8 * _check_stream_end(path, size=size, window=window, end=end)
            window.forget(after)
            block = window.next_mark(after, is_end=False) if end.is_end else end
        if start == 0 and is_first and size > _EMPTY_STREAM_BYTES:
            raise ValueError(f"{path}: not bzip2 data, it has no block; remove the file and fetch it again")


class _Window:
    """The part of a file that is now in memory. It also has the marks in this part: the positions where a block begins
    or a stream ends.

    The methods read more of the file if they need a later mark or byte.
    """

    def __init__(self, file: IO[bytes], *, start: int) -> None:
        self._file = file
        self._file.seek(start)
        self.base = start
        self.data = b""
        self._marks: list[Mark] = []

    def next_mark(self, bit: int, *, is_end: bool | None = None, before: int | None = None) -> Mark | None:
        """Return the first mark (the start of a block or the end of a stream) at or after bit `bit` of the file, or
        None if there is no mark. If `before` is given, only marks before bit `before` count. `is_end` asks for the end
        of a stream (True), the start of a block (False) or either (None)."""
        while True:
            for mark in self._marks:
                if mark.bit >= bit and is_end in (None, mark.is_end):
                    return mark if before is None or mark.bit < before else None
            if before is not None and 8 * (self.base + len(self.data)) >= before + 8 * _MARK_BYTES:
                return None
            if before is None:
                self.forget(min(bit, 8 * (self.base + len(self.data) - _MARK_BYTES)))
            if not self._grow():
                return None

    def bytes_at(self, first: int, count: int) -> bytes:
        """Return `count` bytes of the file from byte `first`, or fewer if the file ends earlier."""
        while len(self.data) < first - self.base + count:
            if not self._grow():
                break
        return self.data[first - self.base : first - self.base + count]

    def forget(self, bit: int) -> None:
        """Free the memory of all bytes before bit `bit` of the file, and of the marks (starts of blocks and ends of
        streams) before it."""
        gone = max(0, min(bit // 8 - self.base, len(self.data)))
        self.data = self.data[gone:]
        self.base += gone
        self._marks = [mark for mark in self._marks if mark.bit >= bit]

    def _grow(self) -> bool:
        more = self._file.read(_READ_BYTES)
        if not more:
            return False
        overlap = max(0, len(self.data) - _MARK_BYTES)
        self.data += more
        offset = 8 * (self.base + overlap)
        known = set(self._marks)
        found = (Mark(offset + mark.bit, mark.is_end) for mark in find_marks(self.data[overlap:]))
        self._marks = sorted(known.union(found))
        return True


def _decode_at(window: _Window, block: Mark) -> tuple[Mark | None, bytes | None]:
    """Return (end, content) of the block that starts at the mark `block`. `end` is the mark (a 48-bit pattern) that
    follows the block, and `content` is decompressed. Return (None, None) if the block cannot be decoded."""
    limit = block.bit + 8 * MOST_BLOCK_BYTES
    end = window.next_mark(block.bit + _MARK_BITS + _CHECKSUM_BITS, before=limit)
    while end is not None:
        content = decode_block(window.data, block.bit - 8 * window.base, end.bit - 8 * window.base)
        if content is not None:
            return end, content
        end = window.next_mark(end.bit + 1, before=limit)
    return None, None


def _check_stream_end(path: str | Path, *, size: int, window: _Window, end: Mark) -> int:
    """Return the offset of the first byte after a stream. `end` is the mark (a 48-bit pattern) with which the stream
    ends, and `size` is the file's size. Raises ValueError if the stream is truncated, or if it is followed by anything
    but another stream."""
    after = (end.bit + _MARK_BITS + _CHECKSUM_BITS + 7) // 8
    if after > size:
        raise ValueError(
            f"{path}: the file ends at byte {size}, inside the checksum of a bz2 stream: it is truncated; "
            f"remove it and fetch it again"
        )
    following = window.bytes_at(after, 3)
    if following and not b"BZh".startswith(following):
        raise ValueError(
            f"{path}: corrupt data after the bz2 stream that ends at byte {after}; remove the file and fetch it again"
        )
    return after


def _describe_damage(path: str | Path, *, size: int, window: _Window, block: Mark) -> str:
    first = block.bit // 8
    if window.next_mark(block.bit + 1, before=block.bit + 8 * MOST_BLOCK_BYTES) is None and (
        size - first < MOST_BLOCK_BYTES
    ):
        return (
            f"{path}: the file ends at byte {size}, inside the bz2 block that starts at byte {first}: it is "
            f"truncated; remove it and fetch it again"
        )
    return f"{path}: corrupt data in the bz2 block that starts at byte {first}; remove the file and fetch it again"
