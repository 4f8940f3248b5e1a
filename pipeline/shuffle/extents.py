"""Types that say where documents lie in spill files (intermediate files of a build): byte ranges, and files with
tables. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.shuffle.tables import Table


@dataclass(frozen=True, slots=True)
class Extent:
    """A byte range of a spill file, with documents of one bucket (group): `num_bytes` bytes from `offset` in `path`.

    The first `index_bytes` bytes are the index, which has everything about the documents except their tokens.
    """

    path: str
    offset: int
    index_bytes: int
    num_bytes: int
    checksum: int
    """The CRC-32 of the extent."""


@dataclass(frozen=True, slots=True)
class BucketRange:
    """A range of neighbouring buckets, divided into `rows` rows of a spill file's table. Each row is for `width`
    buckets, and the first row begins with bucket `first`."""

    first: int
    rows: int
    width: int = 1

    def row_of(self, bucket: int) -> int:
        """Return the number of the table row for a bucket. The number is outside range(rows) if the file does not have
        the bucket."""
        return (bucket - self.first) // self.width


@dataclass(frozen=True, slots=True)
class SpillFile:
    """A finished spill file: its name in the folder of spill files, and where its table is.

    A row of the table has four numbers for each extent (byte range): offset, index_bytes, num_bytes and checksum.
    Extents may be empty. `key` is a hash of what the file was written from. It orders files independently of their
    names.
    """

    name: str
    key: int
    table: Table
    buckets: BucketRange
