"""Decompresses the pages of Parquet files in pieces of about a megabyte.

pyarrow decompresses raw Snappy only as a whole. But Snappy compresses each block of 64 KiB of text separately, so a
page can be cut between blocks. The format: https://github.com/google/snappy/blob/main/format_description.txt
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import IO

import pyarrow as pa

from pipeline.parquet_bounds import PageError, read_varint

PIECE_BYTES = 1 << 20
_SNAPPY_BLOCK, _MOST_SNAPPY_BYTES = 1 << 16, 8 << 20
_STREAMED = {"GZIP": "gzip", "ZSTD": "zstd", "BROTLI": "brotli"}
CODECS = {"UNCOMPRESSED", "SNAPPY", *_STREAMED}


class UnreadableFormatError(Exception):
    """A page of a Parquet file has a form that pyarrow can read, but the code here cannot. The values before this page
    were yielded."""


def expand(raw: IO[bytes] | io.RawIOBase, *, codec: str, size: int) -> Iterator[bytes]:
    """Yield the decompressed content of a page in pieces. `raw` has the compressed bytes, and `size` is the size of the
    content."""
    if codec == "SNAPPY":
        yield from _expand_snappy(raw, size=size)
    elif codec == "UNCOMPRESSED":
        while piece := raw.read(PIECE_BYTES):
            yield piece
    elif size:
        with pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), _STREAMED[codec]) as stream:
            while piece := stream.read(PIECE_BYTES):
                yield piece


def _list_snappy_steps() -> tuple[list[int], list[int]]:
    """Return two tables about the elements of Snappy data, both indexed by an element's first byte. The first table has
    the size of the element, or 0 for a long literal, whose size follows the first byte. The second table says how many
    bytes of text the element stands for."""
    steps, lengths = [], []
    for tag in range(256):
        size = (tag >> 2) + 1
        if tag & 3 == 0:
            steps.append(size + 1 if size <= 60 else 0)
            lengths.append(size)
        else:
            steps.append((2, 3, 5)[(tag & 3) - 1])
            lengths.append((tag >> 2 & 7) + 4 if tag & 3 == 1 else size)
    return steps, lengths


_STEPS, _LENGTHS = _list_snappy_steps()


def _expand_snappy(raw: IO[bytes] | io.RawIOBase, *, size: int) -> Iterator[bytes]:
    """Yield the content of a page in raw Snappy. `size` is the size of the content. Raises UnreadableFormatError if the
    page cannot be cut into blocks that decompress on their own."""
    codec = pa.Codec("snappy")
    prefix = read_varint(raw)
    if prefix != size:
        raise PageError(f"a page expands to {prefix} bytes instead of {size}")
    held, place, text = b"", 0, 0  # `held` begins with a block; its elements before `place` stand for `text` bytes
    done = 0
    while done < size:
        piece = raw.read(PIECE_BYTES)
        held += piece
        # An element's own bytes and the length of a long literal must be there, not the literal itself.
        stop = len(held) - 5 if piece else len(held)
        cuts: list[tuple[int, int]] = []
        while place < stop:
            tag = held[place]
            step = _STEPS[tag]
            if step:
                place += step
                text += _LENGTHS[tag]
            else:
                width = (tag >> 2) - 59
                length = int.from_bytes(held[place + 1 : place + 1 + width], "little") + 1
                place += 1 + width + length
                text += length
            if not text & (_SNAPPY_BLOCK - 1) and place <= len(held):
                cuts.append((place, text))
        if not piece and (done + text != size or place != len(held)):
            raise PageError("a page's Snappy data end early")
        if not cuts and not piece:
            cuts = [(place, text)]
        if cuts:
            end, length = cuts[-1] if piece else (place, text)
            yield from _expand_blocks(codec, held[:end], length=length)
            held, place, text, done = held[end:], place - end, text - length, done + length
        elif len(held) > _MOST_SNAPPY_BYTES:
            raise UnreadableFormatError


def _expand_blocks(codec: pa.Codec, data: bytes, *, length: int) -> Iterator[bytes]:
    prefix, rest = b"", length
    while rest > 0x7F:
        prefix, rest = prefix + bytes([rest & 0x7F | 0x80]), rest >> 7
    try:
        yield codec.decompress(prefix + bytes([rest]) + data, length, asbytes=True)
    except pa.ArrowException as error:
        raise UnreadableFormatError from error  # the block needs an earlier block, or is damaged: pyarrow decides
