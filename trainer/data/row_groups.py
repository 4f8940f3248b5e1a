"""Reads row groups: decodes them, permutes their rows, takes a slice, and picks one mask set for each row.

A mask set is one choice of masked tokens. Rows stay Arrow arrays from disk to micro-batch. Because there are no Python
objects per row, a core reads 30 M tokens/s. Page checksums, the shard's footer hash and the manifest's counts are
always checked. So a damaged, changed, swapped or missing row group raises an error that names the row group, and never
gives wrong numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import dataset, storage
from pipeline.dataset import DataSetError, schema
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
    footer_sha256: str
    """Hash of the shard's footer, from the manifest."""
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
    vocabulary_size: int
    """Number of token ids of the data set."""
    max_seq_length: int
    """The largest number of tokens that a row of the data set may have."""


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
            footer_sha256=plan.shard_footers[shard],
            shard=shard,
            row_group=int(plan.group_index[group]),
            num_rows=int(plan.group_rows[group]),
            num_tokens=int(plan.group_tokens[group]),
            start=start,
            stop=stop,
            mask_set=plan.mask_set(epoch),
            mask_sets=plan.mask_sets,
            seed=plan.seed,
            vocabulary_size=plan.vocabulary_size,
            max_seq_length=plan.max_seq_length,
        )


def read_slice(row_slice: RowGroupSlice, *, root: str | Path) -> pa.Table:
    """Return the rows of the slice `row_slice` as a table, in the epoch's order. `root` is the data set's folder.

    The columns are `input_ids`, `first_length`, `next_sentence_label`, `masked_positions`, `masked_inputs`, `source`,
    `shard`, `row_group` and `row`. A data set holds K mask sets (choices of masked tokens) for each row. The columns
    `masked_positions` and `masked_inputs` have only the mask set with the index `row_slice.mask_set`. Raises
    RowGroupError, with shard, row group and remedy, if the row group cannot be read, differs from the manifest, or has
    ids outside the vocabulary or positions outside its rows.
    """
    table = read_row_group(
        root,
        path=row_slice.path,
        footer_sha256=row_slice.footer_sha256,
        row_group=row_slice.row_group,
        columns=_COLUMNS,
    )
    fault = _find_wrong_column(table, vocabulary_size=row_slice.vocabulary_size)
    if fault:
        raise _error(root, row_slice.path, row_slice.row_group, fault)
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
    fault = _find_wrong_value(table, row_slice)
    if fault:
        raise _error(root, row_slice.path, row_slice.row_group, fault)
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


def read_row_group(root: str | Path, *, path: str, footer_sha256: str, row_group: int, columns: list[str]) -> pa.Table:
    """Return the given columns of a row group, with its rows in stored order.

    `path` is the shard's path inside `root`, the data set's folder. Raises RowGroupError, with shard, row group and
    remedy, if the row group cannot be read or would take far more memory than it should, or if the shard's footer no
    longer has the hash `footer_sha256` of the manifest.
    """
    try:
        return dataset.read_row_group(
            root, path=path, footer_sha256=footer_sha256, row_group=row_group, columns=columns
        )
    except DataSetError as error:
        fault = str(error).removeprefix(f"{storage.join(root, path)}: ").removesuffix("; restore it")
        raise _error(root, path, row_group, fault) from error
    except (OSError, pa.ArrowException, IndexError) as error:
        storage.raise_outage(error, url=storage.join(root, path))
        raise _error(root, path, row_group, f"cannot be read ({error})") from error


def _find_wrong_column(table: pa.Table, *, vocabulary_size: int) -> str:
    """Return what is wrong with the columns' types and nulls, or "" if nothing is."""
    expected = schema.sentence_pair_schema(vocabulary_size, vocabulary_hash="")
    for name in _COLUMNS:
        wanted, column = expected.field(name), table.column(name)
        if column.type != wanted.type:
            return f"its column {name} is {column.type} instead of {wanted.type}"
        if not wanted.nullable and column.null_count:
            return f"its column {name} has {column.null_count} rows without a value"
    return ""


def _find_wrong_value(table: pa.Table, row_slice: RowGroupSlice) -> str:
    """Return what is wrong with the values in a row group, or "" if nothing is. The numbers of rows, tokens and mask
    sets were checked before. Cost: a pass over the ids, at 1 ns each."""
    ids, first = _single(table, schema.INPUT_IDS), _single(table, schema.FIRST_LENGTH)
    sets = [_single(table, name) for name in (schema.MASKED_POSITIONS, schema.MASKED_INPUTS)]
    inner = [column.flatten() for column in sets]
    positions, inputs = (each.flatten() for each in inner)
    labels = _single(table, schema.NEXT_SENTENCE_LABEL)
    if any(each.null_count for each in (ids.flatten(), *inner, positions, inputs)):
        return "has lists with missing values"
    for name, values in ((schema.INPUT_IDS, ids.flatten()), (schema.MASKED_INPUTS, inputs)):
        low, high = pc.min_max(values).as_py().values() if len(values) else (0, 0)
        if low < 0 or high >= row_slice.vocabulary_size:
            return f"{name} has the id {high if low >= 0 else low}, but the vocabulary has {row_slice.vocabulary_size}"
    lengths = ids.value_lengths().to_numpy()
    if len(lengths) and not 0 < lengths.min() <= lengths.max() <= row_slice.max_seq_length:
        limit = row_slice.max_seq_length
        return f"has rows of {lengths.min()} to {lengths.max()} tokens, but the manifest allows 1 to {limit}"
    first_lengths = first.to_numpy()
    if (first_lengths > lengths).any() or (first_lengths == 0).any():
        return f"{schema.FIRST_LENGTH} is 0, or exceeds the tokens of its row"
    if labels.null_count < len(labels) and pc.max(labels).as_py() > 1:
        return f"{schema.NEXT_SENTENCE_LABEL} is {pc.max(labels).as_py()}, but 0 and 1 are the labels"
    counts = [each.value_lengths().to_numpy() for each in inner]
    if (
        any((column.value_lengths().to_numpy() != row_slice.mask_sets).any() for column in sets)
        or (counts[0] != counts[1]).any()
    ):
        return f"has rows without {row_slice.mask_sets} mask sets, or sets whose positions and ids differ in number"
    ends = np.repeat(np.repeat(lengths, row_slice.mask_sets), counts[0])
    if (positions.to_numpy() >= ends).any():
        return f"{schema.MASKED_POSITIONS} has a position after the end of its row"
    return ""


def _single(table: pa.Table, name: str) -> Any:
    """Return a column of a table as one Arrow array."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _error(root: str | Path, path: str, row_group: int, fault: str) -> RowGroupError:
    return RowGroupError(
        f"{storage.join(root, path)}, row group {row_group}: {fault}; the file is damaged, changed or missing: restore "
        f"it, or build the data set again"
    )
