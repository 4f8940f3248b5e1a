"""A split as a map-style dataset: a length, and rows by index.

It decodes whole row groups and keeps the last ones used. A sampler that draws rows at random decodes a row group for
almost every row once the split is larger than `cache_bytes`; use PairStream then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from pipeline.dataset import SplitName
from pipeline.torch_data.items import Item, OpenSet, Rows, shared_number


class PairDataset(Dataset[Item]):
    """Rows of a split in stored order. Each worker process of a loader has a cache of its own."""

    def __init__(
        self,
        root: str | Path,
        *,
        split: SplitName = "train",
        mask_set: int | None = None,
        cache_bytes: int = 1 << 30,
    ) -> None:
        """Open the data set in the folder or at the URL `root`.

        `mask_set` is the number of the mask set of all rows; None: the epoch's, see set_epoch. Raises ValueError if
        there is no data set, or no such mask set.
        """
        self._set = OpenSet(root, split=split, mask_set=mask_set)
        self.manifest = self._set.manifest
        self._first_rows = np.array([group.first_row for group in self._set.groups])
        self._cache_bytes = cache_bytes
        self._epoch = shared_number()
        self._cache: OrderedDict[tuple[int, int], Rows] = OrderedDict()

    def __len__(self) -> int:
        return self._set.num_rows

    def set_epoch(self, epoch: int) -> None:
        """Take mask set epoch mod K from now on, also in workers that are running. Without effect if a mask set was
        given."""
        self._epoch.fill_(epoch)

    def __getitem__(self, index: int) -> Item:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index}: the split has {len(self)} rows")
        index %= len(self)
        number = int(np.searchsorted(self._first_rows, index, side="right")) - 1
        return self._read(number).item(index - int(self._first_rows[number]))

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        """Return several rows, as loaders ask for a batch. Rows of one row group are taken together."""
        order = sorted(range(len(indices)), key=lambda place: indices[place])
        found = {place: self[indices[place]] for place in order}
        return [found[place] for place in range(len(indices))]

    def _read(self, number: int) -> Rows:
        epoch = int(self._epoch)
        key = (number, epoch % self.manifest.mask_sets)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        rows = self._set.read(self._set.groups[number], epoch=epoch)
        self._cache[key] = rows
        while len(self._cache) > 1 and sum(each.num_bytes for each in self._cache.values()) > self._cache_bytes:
            self._cache.popitem(last=False)
        return rows
