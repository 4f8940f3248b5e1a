"""Types that describe spill files (intermediate files of a build) and the byte ranges where their documents lie."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.shuffle.tables import Table


@dataclass(frozen=True, slots=True)
class Extent:
    """A byte range of a spill file, with documents of one bucket or of several neighbouring buckets. The range begins
    at byte `offset` of the file `path`, and `num_bytes` is the length of the range.

    The range begins with an index, which has everything about the documents except their tokens. `index_bytes` is the
    length of the index.
    """

    path: str
    offset: int
    index_bytes: int
    num_bytes: int
    checksum: int
    """The CRC-32 of the extent."""


@dataclass(frozen=True, slots=True)
class BucketRange:
    """A range of neighbouring buckets for which a spill file has a table. The table says where the documents of each
    bucket are. `first` is the number of the first bucket. `rows` says how many rows the table has, and `width` how many
    buckets share a row."""

    first: int
    rows: int
    width: int = 1

    def row_of(self, bucket: int) -> int:
        """Return the number of the table row for a bucket. If the file does not have the bucket, the result is negative
        or at least `rows`."""
        return (bucket - self.first) // self.width


@dataclass(frozen=True, slots=True)
class SpillFile:
    """A finished spill file. `name` is its name in the folder of spill files, and `table` says where its table is.

    A row of the table has four numbers for each extent (byte range): offset, index_bytes, num_bytes and checksum.
    Extents may be empty. `key` is a hash of the input from which the file was written. Because the names of files are
    random, files are sorted by `key`, so that their order is always the same.
    """

    name: str
    key: int
    table: Table
    buckets: BucketRange
