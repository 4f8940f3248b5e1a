"""Spill files: tokenized documents, sorted by bucket, on their way from the first half of a build to the second.

An extent is a byte range of a spill file with documents of one bucket (group). It has two Arrow messages: an index (id,
number of tokens and origin of each document), which can be read without the tokens, and the tokens. Only names and
offsets cross Beam's shuffle, because FnApiRunner holds a shuffle in memory: 600 MB of values cost 3.9 GB there. A
writer holds at most FLUSH_TOKENS tokens and one more document in memory.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline import storage
from pipeline.documents import ID_BYTES
from pipeline.errors import PassingError
from pipeline.tokenizer import TokenizedDocument

FLUSH_TOKENS = 4_000_000
FLUSH_DOCUMENTS = 50_000
FLUSH_CHARACTERS = 32_000_000
_STORE_THREADS = 16

_INDEX = pa.schema(
    [
        pa.field("id", pa.binary(ID_BYTES)),
        pa.field("tokens", pa.int64()),
        pa.field("number", pa.uint16()),  # index into config.source_names; `source` indexes config.sources
        pa.field("source", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("text", pa.large_string()),
    ]
)


class SpillError(PassingError):
    """A spill file has changed since it was written."""


class Origin(NamedTuple):
    """Says for people where a document comes from. `source` is an index into config.sources, `name` is the document's
    name, and `text` is its text or the beginning of its text."""

    source: int = 0
    name: str = ""
    text: str = ""


_NOWHERE = Origin()


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
class Index:
    """The documents of some extents (byte ranges of spill files), in file order.

    `ids` (uint8[n, 16]) has the id of each document, and `tokens` (int64[n]) its number of tokens. `sources`
    (uint16[n]) has the index of each document's source in config.source_names.
    """

    ids: npt.NDArray[np.uint8]
    tokens: npt.NDArray[np.int64]
    sources: npt.NDArray[np.uint16]

    def distinct(self) -> npt.NDArray[np.int64]:
        """Return the positions of the distinct documents, int64[distinct], ordered by id. Of several documents with the
        same id, the document with the lowest source is taken."""
        words = self.ids.view(">u8").astype(np.uint64).reshape(-1, 2)
        order = np.lexsort((self.sources, words[:, 1], words[:, 0]))
        ordered = words[order]
        new = np.ones(order.size, np.bool_)
        new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        return order[new]


class SpillWriter:
    """Writes documents into a new spill file under `folder`, a path or URL. If the body of the `with` raises an error,
    the file is removed.

    The file's name begins with `name`. A random suffix keeps several attempts at the same split of the input apart.
    `bucket_of` returns the bucket of a document id, and `id_type` is the Arrow type of token ids.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        name: str,
        bucket_of: Callable[[bytes], int],
        id_type: pa.DataType,
        flush_tokens: int = FLUSH_TOKENS,
    ) -> None:
        self.path = storage.join(folder, f"{name}-{uuid.uuid4().hex[:16]}.arrow")
        self._bucket_of, self._schema, self._flush_tokens = bucket_of, _documents_schema(id_type), flush_tokens
        self._pending: list[_Pending] = []
        self._pending_tokens = self._pending_characters = 0
        self.extents: list[tuple[int, Extent]] = []
        """Pairs (bucket, extent) that say where all documents are. The list is complete once the writer is closed."""
        self._output = storage.open_output(self.path, in_place=True)
        self._stream = self._output.__enter__()

    def __enter__(self) -> SpillWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
        except BaseException as fault:
            self._output.__exit__(type(fault), fault, fault.__traceback__)
            raise
        self._output.__exit__(kind, error, trace)

    def add(self, document: TokenizedDocument, *, origin: Origin = _NOWHERE) -> None:
        """Add a document, which must have at least one token."""
        self._pending.append(_Pending(self._bucket_of(document.id), document, origin))
        self._pending_tokens += document.ids.size
        self._pending_characters += len(origin.text)
        if (
            self._pending_tokens >= self._flush_tokens
            or self._pending_characters >= FLUSH_CHARACTERS
            or len(self._pending) >= FLUSH_DOCUMENTS
        ):
            self._flush()

    def _flush(self) -> None:
        self._pending.sort(key=attrgetter("bucket"))
        start = 0
        for stop in range(1, len(self._pending) + 1):
            if stop == len(self._pending) or self._pending[stop].bucket != self._pending[start].bucket:
                self._write(self._pending[start].bucket, self._pending[start:stop])
                start = stop
        self._pending.clear()
        self._pending_tokens = self._pending_characters = 0

    def _write(self, bucket: int, pending: Sequence[_Pending]) -> None:
        documents = [entry.document for entry in pending]
        ids = pa.array([document.id for document in documents], pa.binary(ID_BYTES))
        tokens = np.array([document.ids.size for document in documents], np.int64)
        numbers = pa.array([document.source for document in documents], pa.uint16())
        rest = zip(*(entry.origin for entry in pending), strict=True)
        others = [pa.array(values, field.type) for values, field in zip(rest, list(_INDEX)[3:], strict=True)]
        index = pa.record_batch([ids, pa.array(tokens), numbers, *others], schema=_INDEX).serialize()
        columns = [
            _list_array([getattr(document, field.name) for document in documents], field.type) for field in self._schema
        ]
        data = pa.record_batch(columns, schema=self._schema).serialize()
        checksum = zlib.crc32(data, zlib.crc32(index))
        extent = Extent(self.path, self._stream.tell(), index.size, index.size + data.size, checksum)
        self._stream.write(index)
        self._stream.write(data)
        self.extents.append((bucket, extent))


def read_index(extents: Iterable[Extent]) -> Index:
    """Return the index (ids, token counts and sources) of the documents in `extents` (byte ranges of spill files). The
    tokens are not read."""
    return _join_indexes(
        pa.ipc.read_record_batch(buffer, _INDEX) for _, buffer in _read_each(extents, index_alone=True)
    )


def read_origins(extents: Iterable[Extent]) -> Iterator[tuple[bytes, int, Origin]]:
    """Yield a tuple (id, index into config.source_names, origin) for each document in `extents` (byte ranges of spill
    files), duplicates included."""
    for _, buffer in _read_each(extents, index_alone=True):
        batch = pa.ipc.read_record_batch(buffer, _INDEX)
        names = ("id", "number", *Origin._fields)
        for name, number, *origin in zip(*(batch.column(each).to_pylist() for each in names), strict=True):
            yield name, number, Origin(*origin)


def read_documents(extents: Iterable[Extent], *, id_type: pa.DataType) -> tuple[list[TokenizedDocument], int]:
    """Return the distinct documents in `extents` (byte ranges of spill files), ordered by id, and the number of
    duplicates left out.

    The result does not depend on how documents are spread over extents. `id_type` is the Arrow type of token ids.
    Memory: about 3.2 bytes a token and 4 a sentence. Of the arrays, only `word_starts` is copied; the others share the
    memory of the bytes read. Raises SpillError if a file has changed since it was written.
    """
    schema = _documents_schema(id_type)
    found: list[TokenizedDocument] = []
    indexes: list[pa.RecordBatch] = []
    for extent, buffer in _read_each(extents, index_alone=False):
        if zlib.crc32(buffer) != extent.checksum:
            raise SpillError(
                f"{extent.path} at byte {extent.offset}: changed since it was written; run the build again"
            )
        index = pa.ipc.read_record_batch(buffer.slice(0, extent.index_bytes), _INDEX)
        batch = pa.ipc.read_record_batch(buffer.slice(extent.index_bytes), schema)
        indexes.append(index)
        columns = [_split_list(batch.column(position)) for position in range(len(schema))]
        found += map(TokenizedDocument, index.column(0).to_pylist(), *columns, index.column(2).to_pylist())
    kept = _join_indexes(indexes).distinct()
    return [found[position] for position in kept], len(found) - kept.size


class _Pending(NamedTuple):
    """A document that waits to be written, the number of its bucket (group of documents), and its origin."""

    bucket: int
    document: TokenizedDocument
    origin: Origin


def _join_indexes(batches: Iterable[pa.RecordBatch]) -> Index:
    ids, tokens = [np.zeros((0, ID_BYTES), np.uint8)], [np.zeros(0, np.int64)]
    sources = [np.zeros(0, np.uint16)]
    for batch in batches:
        raw = batch.column(0).buffers()[1]
        ids.append(np.frombuffer(raw, np.uint8, batch.num_rows * ID_BYTES).reshape(-1, ID_BYTES))
        tokens.append(batch.column(1).to_numpy())
        sources.append(batch.column(2).to_numpy())
    return Index(np.concatenate(ids), np.concatenate(tokens), np.concatenate(sources))


def _documents_schema(id_type: pa.DataType) -> pa.Schema:
    """Return the Arrow schema of the tokens: a row for each document, and a list column for each array of
    TokenizedDocument."""
    kinds = {"ids": id_type, "word_starts": pa.bool_(), "sentence_lengths": pa.int32()}
    return pa.schema([pa.field(name, pa.list_(kind)) for name, kind in kinds.items()])


def _list_array(parts: Sequence[npt.NDArray[Any]], kind: pa.DataType) -> pa.Array:
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([part.size for part in parts], out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(parts), kind.value_type))


def _split_list(column: pa.ListArray) -> list[npt.NDArray[Any]]:
    values = column.values.to_numpy(zero_copy_only=False)
    return np.split(values, column.offsets.to_numpy()[1:-1])


def _read_each(extents: Iterable[Extent], *, index_alone: bool) -> Iterator[tuple[Extent, pa.Buffer]]:
    """Yield each extent with its bytes (if `index_alone`, with the bytes of its index only). From an object store,
    several extents are fetched at the same time."""

    def read(extent: Extent) -> pa.Buffer:
        num_bytes = extent.index_bytes if index_alone else extent.num_bytes
        data = storage.read_range(extent.path, offset=extent.offset, length=num_bytes)
        if len(data) != num_bytes:
            raise SpillError(f"{extent.path}: ends before byte {extent.offset + num_bytes}; run the build again")
        return pa.py_buffer(data)

    listed = list(extents)
    if not any(storage.is_url(extent.path) for extent in listed):
        for extent in listed:
            yield extent, read(extent)
        return
    with ThreadPoolExecutor(max_workers=_STORE_THREADS, thread_name_prefix="read-spill") as pool:
        yield from zip(listed, pool.map(read, listed), strict=True)
