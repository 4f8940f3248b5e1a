"""Tables that say where the content of a file lies, row by row. Because of these tables, an engine passes only names of
files between workers.

A row of a table has a few numbers about the content for one bucket, or for one partition of the search for near
duplicates, and a checksum. A reader that needs one row of each of 10,000 files makes 10,000 small reads. In return, no
process holds all rows.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline import storage
from pipeline.errors import PassingError

STORE_THREADS = 16
"""Ranges that one process reads at the same time from an object store."""
_WORD = np.dtype("<i8")

Item = TypeVar("Item")
Found = TypeVar("Found")


class Table(NamedTuple):
    """Says where a table lies in a file. The table begins at byte `offset`, and each row has `columns` numbers and a
    checksum."""

    offset: int
    columns: int

    @property
    def row_bytes(self) -> int:
        """The bytes of one row with its checksum."""
        return (self.columns + 1) * _WORD.itemsize


class TableError(PassingError):
    """A table has changed since it was written."""


def write_table(stream: Any, rows: npt.NDArray[np.int64]) -> Table:
    """Append a table to a file open for writing, and return where the table lies. `rows` is int64[rows, columns]."""
    table = Table(stream.tell(), rows.shape[1])
    filled = np.empty((rows.shape[0], rows.shape[1] + 1), _WORD)
    filled[:, :-1] = rows
    filled[:, -1] = [zlib.crc32(row.tobytes(), number) for number, row in enumerate(filled[:, :-1])]
    stream.write(filled.tobytes())
    return table


def read_table_row(path: str, table: Table, *, row: int) -> npt.NDArray[np.int64]:
    """Return one row of a table, int64[columns]. Raises TableError if the file ends before the row does, or if the row
    has changed."""
    data = storage.read_range(path, offset=table.offset + row * table.row_bytes, length=table.row_bytes)
    if len(data) == table.row_bytes:
        numbers = np.frombuffer(data, _WORD)
        if zlib.crc32(data[: -_WORD.itemsize], row) == numbers[-1]:
            return numbers[:-1]
    raise TableError(f"{path}: row {row} of its table changed since it was written; run the build again")


def read_each(
    read: Callable[[Item], Found], items: Sequence[Item], *, path_of: Callable[[Item], str]
) -> Iterator[Found]:
    """Yield the result of `read` for each item, in order. `path_of` returns the path or URL of an item. If the items
    are on an object store, STORE_THREADS items are read ahead."""
    if not any(storage.is_url(path_of(item)) for item in items):
        yield from map(read, items)
        return
    ahead: deque[Future[Found]] = deque()
    with ThreadPoolExecutor(max_workers=STORE_THREADS, thread_name_prefix="read-range") as pool:
        for item in items:
            if len(ahead) == STORE_THREADS:
                yield ahead.popleft().result()
            ahead.append(pool.submit(read, item))
        while ahead:
            yield ahead.popleft().result()
