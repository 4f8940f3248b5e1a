"""Names the places of documents in spill files: byte ranges, and the files with their tables. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.shuffle.tables import Table


@dataclass(frozen=True, slots=True)
class Extent:
    """A byte range of a spill file, with documents of one bucket (group): `num_bytes` bytes from `offset` in `path`.

    The first `index_bytes` of these are the index, which has everything about the documents except their tokens.
    """

    path: str
    offset: int
    index_bytes: int
    num_bytes: int
    checksum: int
    """The CRC-32 of the extent."""


@dataclass(frozen=True, slots=True)
class BucketRange:
    """Maps buckets to the rows of a spill file's table: each row has `width` buckets, the first row those from `first`
    on."""

    first: int
    rows: int
    width: int = 1

    def row_of(self, bucket: int) -> int:
        """Return the row of a bucket; it is outside range(rows) if the file has no such bucket."""
        return (bucket - self.first) // self.width


@dataclass(frozen=True, slots=True)
class SpillFile:
    """A finished spill file: its name in the folder of spill files, and where its table is.

    A row of the table has offset, index_bytes, num_bytes and checksum of each extent; extents may be empty. `key`, a
    hash of what the file was written from, orders files independently of their names.
    """

    name: str
    key: int
    table: Table
    buckets: BucketRange
