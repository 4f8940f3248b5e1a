"""Writes and reads the files of the search for near duplicates. For each split (part of the input) there are a file of
signatures and a file of band keys.

A band key is a hash of part of a signature, and its value modulo the number of partitions selects a partition. So
documents that share a key meet in one partition, which loads the signatures of these documents only. A table at the end
of a file of keys says where the keys of each partition lie, so only names of files cross Beam's shuffle.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline import storage
from pipeline.config import NearDuplicatesConfig
from pipeline.dedup.matches import distinct_matches
from pipeline.dedup.minhash import MATCH_TYPE, Signer, band_keys, choose_bands, compare_group
from pipeline.documents import ID_BYTES, Document
from pipeline.errors import PassingError
from pipeline.shuffle import Table, read_each, read_table_row, write_table

_FLUSH_DOCUMENTS = 4096
_ROWS_AT_ONCE = 100_000
"""Groups are loaded together until they hold this number of signatures (70 MB). A group is never divided."""
_ENTRY = np.dtype([("key", "<u8"), ("batch", "<i4"), ("row", "<i4")])


class _Row(NamedTuple):
    """A document (id, number of words, name) and its MinHash signature, which is the bytes of an array
    uint32[permutations]."""

    id: bytes
    words: int
    name: str
    signature: bytes


@dataclass(frozen=True, slots=True)
class BandExtent:
    """Says where some band keys (hashes of parts of signatures) are stored that belong to one partition (a share of all
    keys).

    The keys are in the file `keys`, from byte `offset` on, and `entries` says how many keys there are. The file
    `signatures` has the signatures of the documents with these keys.
    """

    keys: str
    signatures: str
    offset: int
    entries: int


@dataclass(frozen=True, slots=True)
class BandFile:
    """The two files of a split (part of the input). The file `signatures` has signatures of documents, and the file
    `keys` has band keys (hashes of parts of signatures). Both names are relative to the folder of spill files.

    The keys are divided into partitions. `table` is at the end of the file `keys`, and has a row for each partition.
    Keys are written in several batches. For each batch, a row has two numbers: where the partition's keys begin in the
    file, and how many they are (perhaps 0).
    """

    keys: str
    signatures: str
    table: Table


class SignatureWriter:
    """Writes MinHash signatures of documents, and their band keys (hashes of parts of a signature), into two files in
    `folder`. Does nothing if `config` is None.

    The files' names begin with `name`. `partitions` is the number of partitions into which the keys are divided. Memory
    holds 4096 signatures and their keys. If the body of the `with` raises an error, the files are removed.
    """

    def __init__(self, folder: str | Path, *, name: str, config: NearDuplicatesConfig | None, partitions: int) -> None:
        self._config, self._partitions = config, partitions
        if config is None:
            return
        self._signer = Signer(config)
        self._bands, self._rows = choose_bands(config.threshold, config.permutations)
        stem = storage.join(folder, f"{name}-{uuid.uuid4().hex[:16]}")
        self._paths = (f"{stem}.signatures", f"{stem}.keys")
        self._schema = _signature_schema(config.permutations)
        self._pending: list[tuple[bytes, int, str, npt.NDArray[np.uint32]]] = []
        self._batches = self._offset = 0
        self._table = Table(0, 0)
        self._places: list[npt.NDArray[np.int64]] = []
        self._files = ExitStack()
        signatures = self._files.enter_context(storage.open_output(self._paths[0], in_place=True))
        self._keys = self._files.enter_context(storage.open_output(self._paths[1], in_place=True))
        self._writer = self._files.enter_context(pa.ipc.new_file(signatures, self._schema))

    def __enter__(self) -> SignatureWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._config is None:
            return
        try:
            if kind is None:
                self._flush()
                places = (
                    np.stack(self._places, axis=1) if self._places else np.zeros((self._partitions, 0, 2), np.int64)
                )
                self._table = write_table(self._keys, places.reshape(self._partitions, -1))
        except BaseException as fault:
            self._files.__exit__(type(fault), fault, fault.__traceback__)
            raise
        self._files.__exit__(kind, error, trace)

    @property
    def files(self) -> list[BandFile]:
        """A list with one BandFile, which names the written files. The list is empty if `config` is None. It must not
        be read before the writer is closed."""
        if self._config is None:
            return []
        keys, signatures = map(storage.base_name, reversed(self._paths))
        return [BandFile(keys, signatures, self._table)]

    def add(self, document: Document) -> None:
        """Add a document. A document without words is ignored, since it has no near duplicates."""
        if self._config is None:
            return
        signed = self._signer.sign(document.sentences)
        if signed is None:
            return
        self._pending.append((document.id, signed[1], document.name, signed[0]))
        if len(self._pending) >= _FLUSH_DOCUMENTS:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        ids, words, names, rows = zip(*self._pending, strict=True)
        signatures = np.stack(rows)
        values = (ids, words, names, [signature.tobytes() for signature in rows])
        columns = [pa.array(column, field.type) for column, field in zip(values, self._schema, strict=True)]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
        keys = band_keys(signatures, bands=self._bands, rows=self._rows)
        entries = np.empty(keys.size, _ENTRY)
        entries["key"] = keys.ravel()
        entries["batch"] = self._batches
        entries["row"] = np.repeat(np.arange(len(rows)), self._bands)
        partition = (entries["key"] % np.uint64(self._partitions)).astype(np.int64)
        entries = entries[np.argsort(partition, kind="stable")]
        counts = np.bincount(partition, minlength=self._partitions)
        ends = self._offset + np.cumsum(counts) * _ENTRY.itemsize
        self._places.append(np.stack([ends - counts * _ENTRY.itemsize, counts], axis=1))
        self._offset += entries.nbytes
        self._keys.write(entries.tobytes())
        self._batches += 1
        self._pending.clear()


def find_bands(files: Sequence[BandFile], *, folder: str, partition: int) -> list[BandExtent]:
    """Return where the band keys (hashes of parts of signatures) of one partition (a share of all keys) are stored in
    `files`, which are in `folder`. Raises TableError if a file has changed."""
    chosen = [file for file in files if file.table.columns]
    rows = read_each(
        lambda file: read_table_row(storage.join(folder, file.keys), file.table, row=partition),
        chosen,
        path_of=lambda file: folder,
    )
    return [
        BandExtent(storage.join(folder, file.keys), storage.join(folder, file.signatures), offset, entries)
        for file, row in zip(chosen, rows, strict=True)
        for offset, entries in row.reshape(-1, 2).tolist()
        if entries
    ]


def find_matches(extents: Iterable[BandExtent], *, threshold: float) -> npt.NDArray[Any]:
    """Return the pairs of near duplicates among documents with a band key (a hash of part of a signature) in common,
    each pair once (records of MATCH_TYPE).

    `extents` says where the band keys of one partition (a share of all keys) are stored; other keys are not looked at.
    Two documents are compared if they share a band key. They match if their estimated similarity is at least
    `threshold`. Raises PassingError if a file ends too early.
    """
    files: dict[str, int] = {}
    parts, owners = [np.zeros(0, _ENTRY)], [np.zeros(0, np.int64)]
    for extent in extents:
        length = extent.entries * _ENTRY.itemsize
        data = storage.read_range(extent.keys, offset=extent.offset, length=length)
        part = np.frombuffer(data[: len(data) // _ENTRY.itemsize * _ENTRY.itemsize], _ENTRY)
        if part.size != extent.entries:
            raise PassingError(f"{extent.keys}: ends before its entries do; run the build again")
        parts.append(part)
        owners.append(np.full(part.size, files.setdefault(extent.signatures, len(files))))
    entries, owner = np.concatenate(parts), np.concatenate(owners)
    order = np.argsort(entries["key"], kind="stable")
    keys = entries["key"][order]
    starts = np.flatnonzero(np.diff(keys, prepend=~keys[:1]) != 0)
    sizes = np.diff(starts, append=keys.size)
    found = [np.zeros(0, MATCH_TYPE)]
    for groups in _pack_groups(starts[sizes > 1].tolist(), sizes[sizes > 1].tolist()):
        members = np.concatenate([order[start : start + size] for start, size in groups])
        group_of = np.repeat(np.arange(len(groups)), [size for _, size in groups])
        for rows in _read_groups(list(files), owner=owner[members], entries=entries[members], group_of=group_of):
            if len(rows) == 1:
                continue
            ids, words, names, packed = zip(*rows, strict=True)
            signatures = np.frombuffer(b"".join(packed), np.uint32).reshape(len(rows), -1)
            found.append(compare_group(ids, words=words, names=names, signatures=signatures, threshold=threshold))
    return distinct_matches(np.concatenate(found))


def _pack_groups(starts: Sequence[int], sizes: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Divide groups of documents into lists, and yield each list. The signatures of a list are in memory together, so a
    list ends once its groups have at least _ROWS_AT_ONCE documents. A group is a pair (start, size), made from one
    entry of `starts` and one of `sizes`."""
    packed: list[tuple[int, int]] = []
    held = 0
    for start, size in zip(starts, sizes, strict=True):
        packed.append((start, size))
        held += size
        if held >= _ROWS_AT_ONCE:
            yield packed
            packed, held = [], 0
    if packed:
        yield packed


def _read_groups(
    files: Sequence[str],
    *,
    owner: npt.NDArray[np.int64],
    entries: npt.NDArray[Any],
    group_of: npt.NDArray[np.int64],
) -> list[list[_Row]]:
    """Return the distinct documents of each group, with their signatures. An entry of `entries` says where a document
    is in a file of signatures: `batch` is the index of a record batch, and `row` is the index of a row in this batch.

    For each entry, `owner` (int64[entries]) has the index of the file in `files`, and `group_of` (int64[entries],
    ascending from 0) has the number of the group. Because there may be many files (one for each split of the input),
    each file is opened once, and only one at a time. Of copies (equal ids), the one with the lowest name is kept, so
    memory holds one row for all copies.
    """
    found: list[dict[bytes, _Row]] = [{} for _ in range(int(group_of[-1]) + 1)]
    groups = group_of.tolist()
    owners, batches = owner.tolist(), entries["batch"].tolist()
    by_place: list[int] = np.lexsort((entries["batch"], owner)).tolist()
    for number, of_file in groupby(by_place, key=owners.__getitem__):
        with _SignatureReader(files[number]) as reader:
            for batch, of_batch in groupby(of_file, key=batches.__getitem__):
                members = list(of_batch)
                for member, row in zip(members, reader.rows(batch, entries["row"][members]), strict=True):
                    own = found[groups[member]]
                    if row.id not in own or row.name < own[row.id].name:
                        own[row.id] = row
    return [list(rows.values()) for rows in found]


def _signature_schema(permutations: int) -> pa.Schema:
    signature = pa.binary(4 * permutations)
    return pa.schema({"id": pa.binary(ID_BYTES), "words": pa.int64(), "name": pa.string(), "signature": signature})


class _SignatureReader:
    def __init__(self, path: str) -> None:
        self._path = path
        with storage.name_errors(path):
            self._source = storage.open_native(path) if storage.is_url(path) else pa.memory_map(path)
            self._file = pa.ipc.open_file(self._source)

    def __enter__(self) -> _SignatureReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def rows(self, batch: int, rows: npt.NDArray[Any]) -> Iterator[_Row]:
        """Yield the document and signature in each of the rows with the indices `rows`, from the record batch with the
        index `batch`."""
        with storage.name_errors(self._path):
            found = self._file.get_batch(batch).take(pa.array(rows))
        return map(_Row, *(column.to_pylist() for column in found.columns))
