"""Changes the rows of a data set as nobody should: with the manifest, or behind its back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.dataset.manifest import Manifest, Shard, SplitName, file_sha256, footer_sha256, write_manifest

Change = Callable[[pa.Table], pa.Table]


def rewrite(root: Path, shard: Shard, *, change: Change) -> None:
    """Replace a shard by one with changed row groups, at once, as a tool that synchronises folders does."""
    file, path = pq.ParquetFile(root / shard.path), root / shard.path
    groups = [change(file.read_row_group(number)) for number in range(file.num_row_groups)]
    file.close()
    other = path.with_suffix(".new")
    with pq.ParquetWriter(other, groups[0].schema, write_page_checksum=True) as writer:
        for table in groups:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
    other.rename(path)


def swap(root: Path, manifest: Manifest, *, split: SplitName = "train") -> None:
    """Swap the ids of all shards of a split for others; rows, tokens and masks stay as many."""
    for shard in manifest.shards_of(split):
        rewrite(root, shard, change=_lower_ids)


def _lower_ids(table: pa.Table) -> pa.Table:
    ids = table["input_ids"].combine_chunks()
    lower = pa.array(np.minimum(ids.flatten().to_numpy(), 150), ids.type.value_type)
    index = table.column_names.index("input_ids")
    return table.set_column(index, table.schema.field(index), pa.ListArray.from_arrays(ids.offsets, lower))


def change_values(name: str, change: Callable[[list[Any]], object]) -> Change:
    """What changes the values of a column, given as a list, in place."""

    def apply(table: pa.Table) -> pa.Table:
        values = table[name].to_pylist()
        change(values)
        index = table.column_names.index(name)
        field = pa.field(name, table.schema.field(index).type)  # in which values may be missing
        return table.set_column(index, field, pa.array(values, field.type))

    return apply


def restate(root: Path, manifest: Manifest) -> Manifest:
    """Let the manifest agree with the shards as they are now; returns it."""
    shards = []
    for shard in manifest.shards:
        path = root / shard.path
        found = {
            "bytes": path.stat().st_size,
            "sha256": file_sha256(path),
            "footer_sha256": footer_sha256(path),
        }
        shards.append(shard.model_copy(update=found))
    changed = manifest.model_copy(update={"shards": tuple(shards)})
    write_manifest(root, changed, run={})
    return changed
