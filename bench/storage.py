"""Measures the bytes of a data set on disk, and computes the bytes of the same rows as published TFRecords.

The published format (google-research/bert, create_pretraining_data.py) stores each row once for every mask set (choice
of masked tokens). Such a record has seven features. They are lists of int64, padded to the full length and not
compressed. The size is computed to the byte.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.dataset import Manifest, schema

Int64s: TypeAlias = npt.NDArray[np.int64]

GOAL = 8.0
"""The goal is a `Storage.ratio` of at least this, for ten mask sets and rows of up to 512 tokens."""
_MASKS = (schema.MASKED_POSITIONS, schema.MASKED_INPUTS)
_RECORD_FRAME = 16
"""Bytes that TFRecord adds to a record: its length, and checksums of the length and of the record."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The size of a data set. `total`, `masks` and `published` are in bytes."""

    rows: int
    mask_sets: int
    max_seq_length: int
    total: int
    masks: int
    """The bytes of `total` that are in the columns of the mask sets."""
    published: int
    """The bytes of the same rows as TFRecords, one record for each row and mask set."""

    @property
    def ratio(self) -> float:
        """The size of the TFRecords divided by the size of the data set."""
        return self.published / self.total

    @property
    def row(self) -> float:
        """The mean bytes of a row with all its mask sets."""
        return self.total / self.rows

    @property
    def mask_set(self) -> float:
        """The mean bytes of one mask set of a row."""
        return self.masks / self.rows / self.mask_sets


def measure_storage(root: Path, *, manifest: Manifest) -> Storage:
    """Measure the finished data set in the folder `root`."""
    masks = published = 0
    for shard in manifest.shards:
        with pq.ParquetFile(root / shard.path) as file:
            for group in range(file.num_row_groups):
                metadata = file.metadata.row_group(group)
                columns = map(metadata.column, range(metadata.num_columns))
                masks += sum(each.total_compressed_size for each in columns if each.path_in_schema.startswith(_MASKS))
                published += published_bytes(
                    file.read_row_group(group),
                    max_seq_length=manifest.max_seq_length,
                    max_predictions=manifest.max_predictions,
                )
    return Storage(
        rows=sum(shard.rows for shard in manifest.shards),
        mask_sets=manifest.mask_sets,
        max_seq_length=manifest.max_seq_length,
        total=sum(shard.bytes for shard in manifest.shards),
        masks=masks,
        published=published,
    )


def published_bytes(rows: pa.Table, *, max_seq_length: int, max_predictions: int) -> int:
    """Return the bytes of these rows as TFRecords, one record for each row and mask set."""
    ids = rows[schema.INPUT_IDS].combine_chunks()
    labels = _list_bytes(ids.offsets.to_numpy(), ids.values.to_numpy())
    lengths = np.diff(ids.offsets.to_numpy())
    positions = rows[schema.MASKED_POSITIONS].combine_chunks()
    inner = positions.values
    sets = len(inner) // max(1, len(rows))
    owner = np.repeat(np.arange(len(rows)), sets)
    counts = np.diff(inner.offsets.to_numpy())
    places = inner.values.to_numpy().astype(np.int64)
    targets = ids.values.to_numpy()[np.repeat(ids.offsets.to_numpy()[owner], counts) + places]
    inputs = rows[schema.MASKED_INPUTS].combine_chunks().values.values.to_numpy()
    shown = labels[owner] - _list_bytes(inner.offsets.to_numpy(), targets)
    shown += _list_bytes(inner.offsets.to_numpy(), inputs)

    padding, blanks = max_seq_length - lengths[owner], max_predictions - counts
    zeros = np.zeros(owner.size, np.int64)
    record = _feature("input_ids", shown + padding)
    record += _feature("input_mask", zeros + max_seq_length) + _feature("segment_ids", zeros + max_seq_length)
    record += _feature("masked_lm_positions", _list_bytes(inner.offsets.to_numpy(), places) + blanks)
    record += _feature("masked_lm_ids", _list_bytes(inner.offsets.to_numpy(), targets) + blanks)
    record += _feature("masked_lm_weights", zeros + 4 * max_predictions)
    record += _feature("next_sentence_labels", zeros + 1)
    return int((_field(record) + _RECORD_FRAME).sum())


def _varint(values: npt.NDArray[Any]) -> Int64s:
    """Return the bytes that each number (below 2**28) takes in protobuf's encoding, the varint."""
    return 1 + (values >= 1 << 7).astype(np.int64) + (values >= 1 << 14) + (values >= 1 << 21)


def _list_bytes(offsets: npt.NDArray[Any], values: npt.NDArray[Any]) -> Int64s:
    """Return the bytes that each list of numbers takes in protobuf's packed encoding. The lists begin at `offsets` in
    `values`."""
    until = np.concatenate([np.zeros(1, np.int64), np.cumsum(_varint(values))])
    sizes: Int64s = np.diff(until[offsets])
    return sizes


def _field(size: Int64s) -> Int64s:
    """Return the bytes of a protobuf field with `size` bytes of content, including the tag and the length before the
    content."""
    return 1 + _varint(size) + size


def _feature(name: str, payload: Int64s) -> Int64s:
    """Return the bytes of the feature `name` in a record. Its list of numbers takes `payload` bytes."""
    key = _field(np.full(1, len(name), np.int64))
    return _field(key + _field(_field(_field(payload))))


def to_json(storage: Storage) -> dict[str, Any]:
    """Return the sizes and the values derived from them for the JSON file."""
    return {**asdict(storage), "row": storage.row, "mask_set": storage.mask_set, "ratio": storage.ratio}
