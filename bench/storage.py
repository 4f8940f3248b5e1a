"""Bytes of a data set on disk, a row and a mask set, beside the published TFRecord layout of the same rows.

That layout (google-research/bert, create_pretraining_data.py) holds every masked copy of a row as a record of its own:
seven features, int64 lists padded to the full length, no compression. Its size is computed to the byte.
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
"""The published layout is to be at least so many times as large, for ten mask sets at length 512."""
_MASKS = (schema.MASKED_POSITIONS, schema.MASKED_INPUTS)
_RECORD_FRAME = 16
"""Length, and the checksums of the length and of the record."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Sizes of a set in bytes."""

    rows: int
    mask_sets: int
    max_seq_length: int
    total: int
    masks: int
    """Of `total`, in the columns of mask sets."""
    published: int
    """The same rows as TFRecords, one for each mask set."""

    @property
    def ratio(self) -> float:
        """How many times as large the published layout is."""
        return self.published / self.total

    @property
    def row(self) -> float:
        """Bytes of a row, its mask sets included."""
        return self.total / self.rows

    @property
    def mask_set(self) -> float:
        """Bytes of one mask set of a row."""
        return self.masks / self.rows / self.mask_sets


def measure_storage(root: Path, *, manifest: Manifest) -> Storage:
    """Sizes of a finished set in the folder `root`."""
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
    """Bytes of the TFRecords of these rows, one for each of their mask sets."""
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
    """Bytes of each number (below 2**28) in protobuf's encoding."""
    return 1 + (values >= 1 << 7).astype(np.int64) + (values >= 1 << 14) + (values >= 1 << 21)


def _list_bytes(offsets: npt.NDArray[Any], values: npt.NDArray[Any]) -> Int64s:
    """Bytes of each list of numbers, packed."""
    until = np.concatenate([np.zeros(1, np.int64), np.cumsum(_varint(values))])
    sizes: Int64s = np.diff(until[offsets])
    return sizes


def _field(size: Int64s) -> Int64s:
    """Bytes of a field of so many bytes: its tag and its length come before it."""
    return 1 + _varint(size) + size


def _feature(name: str, payload: Int64s) -> Int64s:
    """Bytes of one entry of the map of features, whose list holds `payload` bytes of packed numbers."""
    key = _field(np.full(1, len(name), np.int64))
    return _field(key + _field(_field(_field(payload))))


def to_json(storage: Storage) -> dict[str, Any]:
    """Sizes and ratios."""
    return {**asdict(storage), "row": storage.row, "mask_set": storage.mask_set, "ratio": storage.ratio}
