"""Reads row groups: decodes them, permutes their rows, takes a slice, and picks one mask set for each row.

A mask set is one choice of masked tokens. Rows stay Arrow arrays from disk to micro-batch. Because there are no Python
objects per row, a core reads 30 M tokens/s. Page checksums and the manifest's counts are always checked. So a damaged,
changed or missing row group raises an error that names the row group, and never gives wrong numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline import storage
from pipeline.dataset import DataSetError, resolve_inside, schema
from trainer.data.plan import Plan, RowGroupSlices, row_permutation

SHARD, ROW_GROUP, ROW = "shard", "row_group", "row"
"""Names of the columns (int32) that locate a row in the data set."""

_COLUMNS = [
    schema.INPUT_IDS,
    schema.FIRST_LENGTH,
    schema.NEXT_SENTENCE_LABEL,
    schema.MASKED_POSITIONS,
    schema.MASKED_INPUTS,
    schema.SOURCE,
]


class RowGroupError(DataSetError):
    """The error for a row group that cannot be read, or is not the one that the manifest lists."""


@dataclass(frozen=True, slots=True)
class RowGroupSlice:
    """Rows [start, stop) of a row group, in an epoch's order. Holds all that a process needs to read these rows."""

    lane: int
    """Lane that takes the rows."""
    epoch: int
    """Epoch whose order and mask set apply."""
    path: str
    """Path of the shard, relative to the data set's folder."""
    shard: int
    """Index of the shard among the train or the validation shards."""
    row_group: int
    """Index of the row group in the shard."""
    num_rows: int
    """Rows of the whole row group."""
    num_tokens: int
    """Tokens of the whole row group."""
    start: int
    """First row of the slice, counted in the permuted order."""
    stop: int
    """Last row of the slice in that order, plus 1."""
    mask_set: int
    """Index of the mask set to pick."""
    mask_sets: int
    """K, the number of mask sets of every row."""
    seed: int
    """The plan's seed."""


def make_slices(plan: Plan, slices: RowGroupSlices, *, epoch: int) -> Iterator[RowGroupSlice]:
    """Yield a RowGroupSlice for each entry of `slices`, in order. `slices` is what `plan.slices` returned for
    `epoch`."""
    columns = (slices.lane, slices.group, slices.start, slices.stop)
    for lane, group, start, stop in zip(*(column.tolist() for column in columns), strict=True):
        shard = int(plan.group_shard[group])
        yield RowGroupSlice(
            lane=lane,
            epoch=epoch,
            path=plan.shard_paths[shard],
            shard=shard,
            row_group=int(plan.group_index[group]),
            num_rows=int(plan.group_rows[group]),
            num_tokens=int(plan.group_tokens[group]),
            start=start,
            stop=stop,
            mask_set=plan.mask_set(epoch),
            mask_sets=plan.mask_sets,
            seed=plan.seed,
        )


def read_slice(row_slice: RowGroupSlice, *, root: str | Path) -> pa.Table:
    """Return the rows of the slice `row_slice` as a table, in the epoch's order. `root` is the data set's folder.

    The columns are `input_ids`, `first_length`, `next_sentence_label`, `masked_positions`, `masked_inputs`, `source`,
    `shard`, `row_group` and `row`. A data set holds K mask sets (choices of masked tokens) for each row. The columns
    `masked_positions` and `masked_inputs` have only the mask set with the index `row_slice.mask_set`. Raises
    RowGroupError, with shard, row group and remedy, if the row group cannot be read or differs from the manifest.
    """
    table = read_row_group(root, path=row_slice.path, row_group=row_slice.row_group, columns=_COLUMNS)
    ids = _single(table, schema.INPUT_IDS)
    positions, inputs = _single(table, schema.MASKED_POSITIONS), _single(table, schema.MASKED_INPUTS)
    found = (table.num_rows, len(ids.flatten()), len(positions.flatten()), len(inputs.flatten()))
    listed = (
        row_slice.num_rows,
        row_slice.num_tokens,
        row_slice.num_rows * row_slice.mask_sets,
        row_slice.num_rows * row_slice.mask_sets,
    )
    if found != listed:
        raise _error(
            root,
            row_slice.path,
            row_slice.row_group,
            f"holds {found[0]} rows, {found[1]} tokens and {found[2]} mask sets, but the manifest lists "
            f"{listed[0]}, {listed[1]} and {listed[2]}",
        )
    rows = row_permutation(
        row_slice.num_rows,
        seed=row_slice.seed,
        epoch=row_slice.epoch,
        shard=row_slice.shard,
        row_group=row_slice.row_group,
    )[row_slice.start : row_slice.stop]
    taken, sets = pa.array(rows), pa.array(rows * row_slice.mask_sets + row_slice.mask_set)
    return pa.table(
        {
            schema.INPUT_IDS: ids.take(taken),
            schema.FIRST_LENGTH: _single(table, schema.FIRST_LENGTH).take(taken),
            schema.NEXT_SENTENCE_LABEL: _single(table, schema.NEXT_SENTENCE_LABEL).take(taken),
            schema.MASKED_POSITIONS: positions.flatten().take(sets),
            schema.MASKED_INPUTS: inputs.flatten().take(sets),
            schema.SOURCE: _single(table, schema.SOURCE).take(taken),
            SHARD: np.full(rows.size, row_slice.shard, np.int32),
            ROW_GROUP: np.full(rows.size, row_slice.row_group, np.int32),
            ROW: rows.astype(np.int32),
        }
    )


def read_row_group(root: str | Path, *, path: str, row_group: int, columns: list[str]) -> pa.Table:
    """Return the given columns of a row group, with its rows in stored order.

    `path` is the shard's path inside `root`, the data set's folder. If the row group cannot be read, raises
    RowGroupError with shard, row group and remedy.
    """
    try:
        with storage.open_parquet(resolve_inside(root, path)) as file:
            return file.read_row_group(row_group, columns=columns, use_threads=False)
    except (OSError, pa.ArrowException, IndexError) as error:
        storage.raise_outage(error, url=storage.join(root, path))
        raise _error(root, path, row_group, f"cannot be read ({error})") from error


def _single(table: pa.Table, name: str) -> Any:
    """Return a column of a table as one Arrow array."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _error(root: str | Path, path: str, row_group: int, fault: str) -> RowGroupError:
    return RowGroupError(
        f"{storage.join(root, path)}, row group {row_group}: {fault}; the file is damaged, changed or missing: restore "
        f"it, or build the data set again"
    )
