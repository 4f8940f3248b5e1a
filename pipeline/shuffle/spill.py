"""Spill files: tokenized documents, sorted by bucket, on their way from the workers that read to the workers that write
shards.

An extent is a byte range of a spill file with documents of one bucket, or of neighbouring buckets. It consists of two
Arrow messages. The first is an index (the id, the number of tokens and the origin of each document), and the second has
the tokens. The index can be read without the tokens. A table at the end of the file says where the extents of each
bucket lie. So only the names of spill files cross Beam's shuffle, however many extents there are. A writer holds at
most FLUSH_TOKENS tokens and one more document in memory.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from operator import attrgetter, itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline import storage
from pipeline.documents import ID_BYTES
from pipeline.errors import PassingError
from pipeline.shuffle.buckets import halves_of
from pipeline.shuffle.extents import BucketRange, Extent, SpillFile
from pipeline.shuffle.tables import Table, read_each, read_table_row, write_table
from pipeline.tokenizer import TokenizedDocument

FLUSH_TOKENS = 4_000_000
FLUSH_DOCUMENTS = 50_000
FLUSH_CHARACTERS = 32_000_000

_INDEX = pa.schema(
    [
        pa.field("id", pa.binary(ID_BYTES)),
        pa.field("tokens", pa.int64()),
        pa.field("number", pa.uint16()),  # index into config.source_names; `source` indexes config.sources
        pa.field("group", pa.binary(ID_BYTES)),  # or the id
        pa.field("source", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("text", pa.large_string()),
    ]
)

_EXTENT_NUMBERS = 4
"""How many numbers a table has for an extent: one for each field except the path."""


class SpillError(PassingError):
    """A spill file has changed since it was written."""


class Origin(NamedTuple):
    """Tells people where a document comes from. `source` is an index into config.sources, `name` is the document's
    name, and `text` is the document's text or the beginning of the text."""

    source: int = 0
    name: str = ""
    text: str = ""


_NOWHERE = Origin()


@dataclass(frozen=True, slots=True)
class Index:
    """The documents of some extents (byte ranges of spill files), in file order. Each array has an entry for each
    document.

    `ids` (uint8[n, 16]) has the document's id, and `tokens` (int64[n]) says how many tokens the document has. An entry
    without tokens is a mark: it says that the document with this id is held out, so that copies of the document are
    left out. `sources` (uint16[n]) has the index of the document's source in config.source_names, the distinct names of
    the sources. `groups` (uint8[n, 16]) has the id that the parts of one book share, or the document's id if it is no
    part of a book.
    """

    ids: npt.NDArray[np.uint8]
    tokens: npt.NDArray[np.int64]
    sources: npt.NDArray[np.uint16]
    groups: npt.NDArray[np.uint8]

    def distinct(self) -> npt.NDArray[np.int64]:
        """Return the positions of the distinct documents (int64[distinct]), ordered by id. Documents whose ids are
        marked as held out are left out. Of several documents with the same id, the document whose source has the lowest
        index is taken."""
        words = halves_of(self.ids)
        order = np.lexsort((self.sources, self.tokens > 0, words[:, 1], words[:, 0]))
        ordered = words[order]
        new = np.ones(order.size, np.bool_)
        new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        found = order[new]
        return found[self.tokens[found] > 0]


class SpillWriter:
    """Writes documents into a new spill file under `folder`, a path or URL. If the body of the `with` raises an error,
    the file is removed.

    The file's name begins with `name`. A random suffix keeps several attempts at the same split of the input apart.
    `bucket_of` returns the bucket of a document, from the document's id and its group (an id that the parts of one book
    share). `id_type` is the Arrow type of token ids. An extent (byte range of the file) has documents of one bucket. If
    `buckets` is given, the file also gets a table for find_extents. Several buckets may then share a row of the table,
    and an extent has documents of the buckets of one row.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        name: str,
        bucket_of: Callable[[bytes, bytes], int],
        id_type: pa.DataType,
        flush_tokens: int = FLUSH_TOKENS,
        buckets: BucketRange | None = None,
        key: int = 0,
    ) -> None:
        self.path = storage.join(folder, f"{name}-{uuid.uuid4().hex[:16]}.arrow")
        self._bucket_of, self._schema, self._flush_tokens = bucket_of, _documents_schema(id_type), flush_tokens
        self._pending: list[_Pending] = []
        self._pending_tokens = self._pending_characters = 0
        self._buckets, self._key, self._flushes = buckets, key, 0
        self.extents: list[tuple[int, Extent]] = []
        """Pairs (bucket, extent) that say where all documents are; with `buckets`, pairs (row, extent). The list is
        complete once the writer is closed."""
        self._flush_of: list[int] = []
        self._table = Table(0, 0)
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
                self._write_table()
        except BaseException as fault:
            self._output.__exit__(type(fault), fault, fault.__traceback__)
            raise
        self._output.__exit__(kind, error, trace)

    def add(self, document: TokenizedDocument, *, origin: Origin = _NOWHERE, group: bytes = b"") -> None:
        """Add a document, which must have at least one token. `group` is the id that the parts of one book share, or
        b"" if the document is no part of a book."""
        self._add(document, bucket=self._bucket_of(document.id, group), origin=origin, group=group or document.id)

    def mark_held_out(self, document: TokenizedDocument, *, bucket: int) -> None:
        """Write a mark for a held-out document into training bucket number `bucket`. Because of the mark, readers leave
        out copies of the document in this bucket."""
        nothing = {name: getattr(document, name)[:0] for name in ("ids", "word_starts", "sentence_lengths")}
        self._add(replace(document, **nothing), bucket=bucket, origin=_NOWHERE, group=document.id)

    def _add(self, document: TokenizedDocument, *, bucket: int, origin: Origin, group: bytes) -> None:
        row = bucket if self._buckets is None else self._buckets.row_of(bucket)
        self._pending.append(_Pending(row, document, origin, group))
        self._pending_tokens += document.ids.size
        self._pending_characters += len(origin.text)
        if (
            self._pending_tokens >= self._flush_tokens
            or self._pending_characters >= FLUSH_CHARACTERS
            or len(self._pending) >= FLUSH_DOCUMENTS
        ):
            self._flush()

    @property
    def file(self) -> SpillFile:
        """The written file with its table, in which find_extents finds documents. It exists only if the writer has
        `buckets`, and only after the writer is closed."""
        assert self._buckets is not None
        return SpillFile(storage.base_name(self.path), self._key, self._table, self._buckets)

    def _write_table(self) -> None:
        if self._buckets is None:
            return
        rows = np.zeros((self._buckets.rows, self._flushes, _EXTENT_NUMBERS), np.int64)
        for (row, extent), flush in zip(self.extents, self._flush_of, strict=True):
            rows[row, flush] = astuple(extent)[1:]
        self._table = write_table(self._stream, rows.reshape(self._buckets.rows, -1))

    def _flush(self) -> None:
        self._pending.sort(key=attrgetter("bucket"))
        start = 0
        for stop in range(1, len(self._pending) + 1):
            if stop == len(self._pending) or self._pending[stop].bucket != self._pending[start].bucket:
                self._write(self._pending[start].bucket, self._pending[start:stop])
                start = stop
        self._flushes += bool(self._pending)
        self._pending.clear()
        self._pending_tokens = self._pending_characters = 0

    def _write(self, bucket: int, pending: Sequence[_Pending]) -> None:
        documents = [entry.document for entry in pending]
        ids = pa.array([document.id for document in documents], pa.binary(ID_BYTES))
        tokens = np.array([document.ids.size for document in documents], np.int64)
        numbers = pa.array([document.source for document in documents], pa.uint16())
        rest = zip(*(entry.origin for entry in pending), strict=True)
        groups = pa.array([entry.group for entry in pending], pa.binary(ID_BYTES))
        others = [pa.array(values, field.type) for values, field in zip(rest, list(_INDEX)[4:], strict=True)]
        index = pa.record_batch([ids, pa.array(tokens), numbers, groups, *others], schema=_INDEX).serialize()
        columns = [
            _list_array([getattr(document, field.name) for document in documents], field.type) for field in self._schema
        ]
        data = pa.record_batch(columns, schema=self._schema).serialize()
        checksum = zlib.crc32(data, zlib.crc32(index))
        extent = Extent(self.path, self._stream.tell(), index.size, index.size + data.size, checksum)
        self._stream.write(index)
        self._stream.write(data)
        self.extents.append((bucket, extent))
        self._flush_of.append(self._flushes)


def find_extents(files: Iterable[SpillFile], *, folder: str, bucket: int) -> list[Extent]:
    """Return the extents (byte ranges) with the documents of a bucket in spill files of `folder`. Raises TableError if
    a file has changed.

    From each file, one row of the file's table is read. If several buckets share the row, the extents have documents of
    all buckets that share it.
    """
    chosen = [file for file in files if 0 <= file.buckets.row_of(bucket) < file.buckets.rows and file.table.columns]
    rows = read_each(
        lambda file: read_table_row(_path(file, folder=folder), file.table, row=file.buckets.row_of(bucket)),
        chosen,
        path_of=lambda file: folder,
    )
    return [
        Extent(_path(file, folder=folder), *numbers)
        for file, row in zip(chosen, rows, strict=True)
        for numbers in row.reshape(-1, _EXTENT_NUMBERS).tolist()
        if any(numbers)
    ]


def _path(file: SpillFile, *, folder: str) -> str:
    return storage.join(folder, file.name)


def read_index(extents: Iterable[Extent]) -> Index:
    """Return the index (document ids, token counts, sources and ids of books) of the documents in `extents` (byte
    ranges of spill files). The tokens are not read."""
    return _join_indexes(
        pa.ipc.read_record_batch(buffer, _INDEX) for _, buffer in _read_each(extents, index_alone=True)
    )


def read_origins(extents: Iterable[Extent]) -> Iterator[tuple[bytes, int, Origin]]:
    """Yield a tuple (document id, source, origin) for each document in `extents` (byte ranges of spill files). A source
    is an index into config.source_names, the distinct names of the sources. Duplicates are included, and marks of
    held-out documents are not."""
    for _, buffer in _read_each(extents, index_alone=True):
        batch = pa.ipc.read_record_batch(buffer, _INDEX)
        names = ("id", "tokens", "number", *Origin._fields)
        for name, tokens, number, *origin in zip(*(batch.column(each).to_pylist() for each in names), strict=True):
            if tokens:
                yield name, number, Origin(*origin)


def read_documents(extents: Iterable[Extent], *, id_type: pa.DataType) -> tuple[list[TokenizedDocument], int]:
    """Return (documents, number left out) for `extents` (byte ranges of spill files). The documents are distinct and
    ordered by document id. Duplicates, copies of held-out documents, and the marks of held-out documents are left out.

    The result does not depend on how documents are spread over extents: of documents with equal ids, the document whose
    source has the lowest index is taken. `id_type` is the Arrow type of token ids. However many duplicates there are,
    memory holds one extent and the distinct documents, with about 3.2 bytes a token and 4 bytes a sentence. If an
    extent has no duplicates, its documents' arrays share the memory of the bytes read; only `word_starts` is copied.
    Raises SpillError if a file has changed since it was written.
    """
    sources: dict[bytes, int] = {}
    marked: set[bytes] = set()
    found: list[tuple[bytes, list[npt.NDArray[Any]]]] = []
    total = 0
    for index, batch in _read_batches(extents, id_type=id_type):
        total += batch.num_rows
        new = []
        columns = (index[name].to_pylist() for name in ("id", "number", "tokens"))
        for row, (name, source, tokens) in enumerate(zip(*columns, strict=True)):
            if not tokens:
                marked.add(name)
                continue
            held = sources.get(name)
            if held is None:
                new.append((row, name))
            if held is None or source < held:
                sources[name] = source
        # A copy, unless all are new, so that the duplicates' bytes are let go.
        taken = batch.take(pa.array([row for row, _ in new], pa.int64())) if len(new) < batch.num_rows else batch
        found += zip((name for _, name in new), _documents_of(taken), strict=True)
    found = sorted((entry for entry in found if entry[0] not in marked), key=itemgetter(0))
    return [_make_document(name, columns, sources[name]) for name, columns in found], total - len(found)


def read_with_origins(
    extents: Iterable[Extent], *, id_type: pa.DataType
) -> Iterator[tuple[TokenizedDocument, Origin, bytes]]:
    """Yield (document, origin, group) for every document in `extents` (byte ranges of spill files), in order. The group
    is an id that the parts of one book share. If a document is no part of a book, its own id takes the place of the
    group.

    Duplicates are included. Marks of held-out documents are included too, as documents without tokens. Memory holds one
    extent. Raises SpillError if a file has changed since it was written.
    """
    for index, batch in _read_batches(extents, id_type=id_type):
        names, _, numbers, groups, *origins = (column.to_pylist() for column in index.columns)
        for name, number, group, columns, *origin in zip(
            names, numbers, groups, _documents_of(batch), *origins, strict=True
        ):
            yield _make_document(name, columns, number), Origin(*origin), group


def _read_batches(
    extents: Iterable[Extent], *, id_type: pa.DataType
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Yield the index and the tokens of each extent (byte range of a spill file). Raises SpillError if a file has
    changed."""
    schema = _documents_schema(id_type)
    for extent, buffer in _read_each(extents, index_alone=False):
        if zlib.crc32(buffer) != extent.checksum:
            raise SpillError(
                f"{extent.path} at byte {extent.offset}: changed since it was written; run the build again"
            )
        index = pa.ipc.read_record_batch(buffer.slice(0, extent.index_bytes), _INDEX)
        yield index, pa.ipc.read_record_batch(buffer.slice(extent.index_bytes), schema)


def _documents_of(batch: pa.RecordBatch) -> Iterator[list[npt.NDArray[Any]]]:
    """Yield a list of three arrays for each document (a row of `batch`): token ids, word starts and sentence
    lengths."""
    columns = [_split_list(column) for column in batch.columns]
    return map(list, zip(*columns, strict=True)) if batch.num_rows else iter(())


def _make_document(name: bytes, columns: Sequence[npt.NDArray[Any]], source: int) -> TokenizedDocument:
    ids, word_starts, sentence_lengths = columns
    return TokenizedDocument(name, ids, word_starts, sentence_lengths, source)


class _Pending(NamedTuple):
    """A document that waits to be written. In a file without a table, `bucket` is the number of the document's bucket.
    In a file with a table, `bucket` is the number of the table row for the document's bucket. `group` is the id that
    the parts of one book share, or the document's id if it is no part of a book."""

    bucket: int
    document: TokenizedDocument
    origin: Origin
    group: bytes


def _join_indexes(batches: Iterable[pa.RecordBatch]) -> Index:
    ids, tokens = [np.zeros((0, ID_BYTES), np.uint8)], [np.zeros(0, np.int64)]
    sources, groups = [np.zeros(0, np.uint16)], [np.zeros((0, ID_BYTES), np.uint8)]
    for batch in batches:
        for found, column in ((ids, 0), (groups, 3)):  # copies, so that the texts beside the ids are let go
            raw = batch.column(column).buffers()[1]
            found.append(np.frombuffer(raw, np.uint8, batch.num_rows * ID_BYTES).reshape(-1, ID_BYTES).copy())
        tokens.append(batch.column(1).to_numpy().copy())
        sources.append(batch.column(2).to_numpy().copy())
    return Index(np.concatenate(ids), np.concatenate(tokens), np.concatenate(sources), np.concatenate(groups))


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
    """Yield each extent (byte range of a spill file) with its bytes, or with `index_alone` with the bytes of its index
    only. The index has everything about the documents except their tokens. From an object store, several extents are
    fetched at the same time."""

    def read(extent: Extent) -> pa.Buffer:
        num_bytes = extent.index_bytes if index_alone else extent.num_bytes
        data = storage.read_range(extent.path, offset=extent.offset, length=num_bytes)
        if len(data) != num_bytes:
            raise SpillError(f"{extent.path}: ends before byte {extent.offset + num_bytes}; run the build again")
        return pa.py_buffer(data)

    listed = list(extents)
    yield from zip(listed, read_each(read, listed, path_of=lambda extent: extent.path), strict=True)
