"""Reads row groups of shards that somebody else may have made, or changed since the data set was checked.

Before pyarrow decodes a row group, the shard's footer hash, the types of its columns and the sizes that its pages state
are checked. So a shard of 10 kB cannot take gigabytes of memory. Cost: 0.1 ms a page; on a store no further request.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import storage
from pipeline.dataset import schema
from pipeline.dataset.manifest import PARQUET_MAGIC, DataSetError, read_footer, resolve_inside
from pipeline.parquet_bounds import refuse_bomb, refuse_deep_columns, start_of

_DOCUMENT_IDS = (schema.DOCUMENT_ID, schema.SECOND_DOCUMENT_ID)
_DOCUMENT_ID_BYTES = 16


def read_row_group(root: str | Path, *, path: str, footer_sha256: str, row_group: int, columns: list[str]) -> pa.Table:
    """Return the given columns of a row group, with its rows in stored order. Page checksums are verified.

    `path` is the shard's path in `root`, the data set's folder. Raises DataSetError if the footer does not have the
    hash `footer_sha256` (from the manifest), if a column is missing or has another type than in a shard, or if the row
    group would take far more memory than numbers need. Hash and rows are read from the same open file, so a shard that
    was swapped since the last opening is noticed.
    """
    place = resolve_inside(root, path)
    with storage.name_errors(place, of_content=True), storage.open_native(place) as file:
        footer = read_footer(file, path=place)
        found = hashlib.sha256(footer).hexdigest()
        if found != footer_sha256:
            raise DataSetError(f"{place}: footer hash {found} differs from the manifest's {footer_sha256}; restore it")
        refuse_deep_columns(footer)
        metadata = pq.read_metadata(pa.BufferReader(PARQUET_MAGIC + footer))
        _check_types(metadata.schema.to_arrow_schema(), columns=columns, path=place)
        if not 0 <= row_group < metadata.num_row_groups:
            raise DataSetError(f"{place}: has only {metadata.num_row_groups} row groups; restore it")
        chunks = [metadata.row_group(row_group).column(index) for index in range(metadata.num_columns)]
        chunks = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in columns]
        source = _Window(file, chunks=chunks) if storage.is_url(place) else file
        for chunk in chunks:
            try:
                refuse_bomb(chunk, name=place, file=source, plain_values=True)
            except pa.ArrowException:
                raise
            except ValueError as error:
                raise DataSetError(str(error)) from error
        with pq.ParquetFile(
            pa.PythonFile(source, mode="r") if isinstance(source, _Window) else source,
            metadata=metadata,
            page_checksum_verification=True,
            read_dictionary=[name for name in _DOCUMENT_IDS if name in columns],
        ) as parquet:
            table = parquet.read_row_group(row_group, columns=columns, use_threads=False)
    for name in _DOCUMENT_IDS:
        if name in columns:
            index = table.column_names.index(name)
            table = table.set_column(index, name, _decode_ids(table.column(name), name=name, path=place))
    return table


def _check_types(found: pa.Schema, *, columns: list[str], path: str) -> None:
    """Raise DataSetError if a column does not have a type that it has in shards. Texts instead of numbers could take
    any amount of memory."""
    small, large = (schema.sentence_pair_schema(size, vocabulary_hash="") for size in (1, 1 << 20))
    for name in columns:
        wanted = [each.field(name).type for each in (small, large)]
        if found.get_field_index(name) < 0:
            raise DataSetError(f"{path}: has no column {name}, or several; restore it")
        if found.field(name).type not in wanted:
            raise DataSetError(f"{path}: its column {name} is {found.field(name).type} instead of {wanted[0]}")


def _decode_ids(column: pa.ChunkedArray, *, name: str, path: str) -> pa.ChunkedArray:
    """Return a column of document ids, which was read with a dictionary, as a column of bytes. A dictionary holds a
    long value once for any number of rows."""
    for chunk in column.chunks:
        longest = pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0
        if longest > _DOCUMENT_ID_BYTES:
            raise DataSetError(f"{path}: {name} has a value of {longest} bytes instead of {_DOCUMENT_ID_BYTES}")
    return column.cast(pa.binary())


class _Window(io.RawIOBase):
    """The part of a file on a store that holds some column chunks, read with one request. Has the file's offsets."""

    def __init__(self, file: Any, *, chunks: list[Any]) -> None:
        super().__init__()
        self._size = file.size()
        self._start = max(0, min(map(start_of, chunks), default=0))
        end = min(max((start_of(chunk) + chunk.total_compressed_size for chunk in chunks), default=0), self._size)
        self._data: bytes = file.read_at(max(0, end - self._start), self._start)
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        return self._place

    def read(self, size: int = -1, /) -> bytes:
        at = self._place - self._start
        data = b"" if at < 0 else self._data[at : None if size < 0 else at + size]
        self._place += len(data)
        return data
