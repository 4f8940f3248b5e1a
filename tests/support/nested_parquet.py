"""A Parquet file, written byte by byte, whose only column is nested as deep as a test wants."""

from __future__ import annotations

from pathlib import Path


def write_nested(path: Path, *, levels: int) -> Path:
    """Write a file without rows; returns its path."""
    groups = b"\x35\x00\x18\x01a\x15\x02\x00" * levels  # required, named a, with one child
    column = b"\x15\x02\x25\x00\x18\x01x\x00"  # a required number, named x
    columns = b"\x19\xfc" + _varint(levels + 1) + groups + column
    footer = b"\x15\x02" + columns + b"\x16\x00\x19\x0c\x00"  # version 1, columns, no rows, no row groups
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return path


def _varint(number: int) -> bytes:
    return bytes([number & 127 | 128]) + _varint(number >> 7) if number > 127 else bytes([number])
