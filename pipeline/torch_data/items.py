"""Rows of a data set as tensors: the tokens with their masks, and the labels.

A decoded row group takes about 3 bytes per token, and a row of 128 tokens takes 15 us to become tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from pipeline.dataset import Manifest, Shard, SplitName, open_data_set, read_row_group, schema
from pipeline.settings import ConfigError

NO_LABEL = -100
"""The label of positions that have none, as torch's cross_entropy ignores it."""
Item: TypeAlias = dict[str, Tensor]
"""A row. int64: input_ids [n], masked; token_type_ids [n]; labels [n], NO_LABEL where nothing is masked; and, if the
set has next-sentence labels, next_sentence_label [], NO_LABEL for a row without a second segment."""

_COLUMNS = [
    schema.INPUT_IDS,
    schema.FIRST_LENGTH,
    schema.NEXT_SENTENCE_LABEL,
    schema.MASKED_POSITIONS,
    schema.MASKED_INPUTS,
]


def shared_number() -> Tensor:
    """Return an int64 of value 0 in memory that worker processes share: workers that keep running see it change."""
    number = torch.zeros((), dtype=torch.int64)
    number.share_memory_()  # type: ignore[no-untyped-call]
    return number


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Where a row group is."""

    shard: Shard
    index: int
    """Its number in the shard."""
    first_row: int
    """The number of its first row in the split, in stored order."""
    num_rows: int


class OpenSet:
    """A split of a data set, opened for reading. It holds no open file, so it can be pickled to worker processes."""

    def __init__(self, root: str | Path, *, split: SplitName, mask_set: int | None) -> None:
        self.root = str(root)
        self.manifest: Manifest = open_data_set(root)
        self.mask_set = mask_set
        if mask_set is not None and not 0 <= mask_set < self.manifest.mask_sets:
            raise ConfigError(
                f"mask_set={mask_set}: {root} has {self.manifest.mask_sets} mask sets, 0 to "
                f"{self.manifest.mask_sets - 1}; give one of them, or None"
            )
        self.groups: list[RowGroup] = []
        first = 0
        for shard in self.manifest.shards_of(split):
            for index, num_rows in enumerate(shard.row_group_rows):
                self.groups.append(RowGroup(shard, index, first, num_rows))
                first += num_rows
        self.num_rows = first
        if not first:
            raise ConfigError(f"{root}: its {split} split has no rows; give another split")

    def read(self, group: RowGroup, *, epoch: int) -> Rows:
        """Return the rows of a group with the mask set of the epoch. Raises DataSetError if the file is damaged."""
        table = read_row_group(
            self.root,
            path=group.shard.path,
            footer_sha256=group.shard.footer_sha256,
            row_group=group.index,
            columns=_COLUMNS,
        )
        chosen = self.mask_set if self.mask_set is not None else epoch % self.manifest.mask_sets
        labelled = self.manifest.next_sentence != "none"
        return Rows(table, mask_set=chosen, mask_sets=self.manifest.mask_sets, labelled=labelled)


class Rows:
    """The decoded rows of one row group, with one mask set."""

    def __init__(self, table: pa.Table, *, mask_set: int, mask_sets: int, labelled: bool) -> None:
        ids = _single(table, schema.INPUT_IDS)
        self._bounds, self._ids = _lists(ids)
        self._first = _single(table, schema.FIRST_LENGTH).to_numpy().astype(np.int64)
        self._next: npt.NDArray[np.int64] | None = None
        if labelled:
            labels = _single(table, schema.NEXT_SENTENCE_LABEL).cast(pa.int64()).fill_null(NO_LABEL)
            self._next = labels.to_numpy().astype(np.int64)
        chosen = pa.array(np.arange(table.num_rows) * mask_sets + mask_set)
        places, self._positions = _lists(_single(table, schema.MASKED_POSITIONS).flatten().take(chosen))
        self._places = places
        _, self._inputs = _lists(_single(table, schema.MASKED_INPUTS).flatten().take(chosen))
        self.num_bytes = int(self._ids.nbytes + self._positions.nbytes + self._inputs.nbytes + 3 * self._bounds.nbytes)

    def item(self, row: int) -> Item:
        """Return a row as tensors."""
        start, stop = self._bounds[row], self._bounds[row + 1]
        ids = self._ids[start:stop].astype(np.int64)
        labels = np.full(ids.shape, NO_LABEL, np.int64)
        places = slice(self._places[row], self._places[row + 1])
        positions = self._positions[places]
        labels[positions] = ids[positions]
        ids[positions] = self._inputs[places]
        segments = (np.arange(ids.size) >= self._first[row]).astype(np.int64)
        names = {"input_ids": ids, "token_type_ids": segments, "labels": labels}
        item = {name: torch.from_numpy(values) for name, values in names.items()}
        if self._next is not None:
            item["next_sentence_label"] = torch.tensor(int(self._next[row]))
        return item

    def items(self, rows: npt.NDArray[np.int64]) -> Iterator[Item]:
        """Yield the given rows in this order."""
        yield from (self.item(int(row)) for row in rows)


def _single(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name).combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def _lists(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.integer[Any]]]:
    """Return the bounds [rows + 1] and the values of a column of lists."""
    bounds = np.concatenate([[0], np.cumsum(column.value_lengths().to_numpy())]).astype(np.int64)
    return bounds, column.flatten().to_numpy()
