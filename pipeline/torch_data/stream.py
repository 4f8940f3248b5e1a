"""A split as an iterable dataset in a random order that does not depend on the numbers of ranks and workers.

The order of an epoch is a function of data set, seed and epoch: row groups are permuted, and rows in each. It is cut
into batches, batch j goes to rank j mod W, and there to worker (j div W) mod N. So with the loader's own batch_size,
the batches of a step are the same for any number of workers, and a run continues with another number of ranks.
Each consumer decodes every row group of which it takes a row (30 M tokens/s).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset, get_worker_info

from pipeline import draws
from pipeline.dataset import SplitName
from pipeline.settings import ConfigError
from pipeline.torch_data.items import Item, OpenSet, Rows, shared_number


class PairStream(IterableDataset[Item]):
    """Rows of a split in the order of an epoch. Each `iter` is one epoch, from where load_state_dict says."""

    def __init__(
        self,
        root: str | Path,
        *,
        batch_size: int,
        split: SplitName = "train",
        mask_set: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Open the data set in the folder or at the URL `root`.

        `batch_size` is that of the loader of one rank. `mask_set` is the number of the mask set of all rows; None: the
        epoch's. With world_size > 1, rows at the end of an epoch that do not fill a batch on every rank are left out
        (other rows in each epoch), so that all ranks take equally many steps. Raises ValueError if there is no data
        set, no such mask set or no such rank.
        """
        if batch_size < 1 or not 0 <= rank < world_size:
            raise ConfigError(
                f"batch_size={batch_size}, rank={rank}, world_size={world_size}: a batch has a row or more, and ranks "
                f"are 0 to world_size - 1"
            )
        self._set = OpenSet(root, split=split, mask_set=mask_set)
        self.manifest = self._set.manifest
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size
        self._seed, self._shuffle = seed, shuffle
        self._epoch = shared_number()
        self._given = shared_number()
        """Rows of the epoch, of all ranks, that are not to be given again."""
        self._own: tuple[int, int, int, int] | None = None
        """Worker, number of workers, batches done and epoch, of a state that a worker saved."""
        self._done = 0
        """Whole batches that the newest iterator has given here."""

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator gives, or the running one."""
        return int(self._epoch)

    @property
    def _start(self) -> int:
        return int(self._given)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch (0, 1, ...) that the next iterators give from its start, also in running workers.

        A call with the epoch of a loaded state keeps the state's place.
        """
        if epoch != self.epoch:
            self._given.fill_(0)
            self._own, self._done = None, 0
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        """Return how many rows of a whole epoch this rank gives."""
        return self._count_rows(self._set.num_rows, start=0)

    def __iter__(self) -> Iterator[Item]:
        """Give the rest of the epoch: all of it, or what a loaded state leaves. Raises DataSetError at damage."""
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 0)
        done = 0
        if self._own is not None and self._own[3] == self.epoch:  # otherwise the loader's process chose a new epoch
            if self._own[:2] != (worker, workers):
                raise ConfigError(
                    f"the state was saved by worker {self._own[0]} of {self._own[1]}; load it with as many workers, or "
                    f"use the state of state_after"
                )
            done = self._own[2]
        order = _Order(self._set, seed=self._seed, epoch=self.epoch, shuffle=self._shuffle)
        self._done = done
        for first, stop in self._deal(worker, max(1, workers), skip=done):
            for number, item in enumerate(order.read(first, stop), first + 1):
                if number == stop:  # a loader that has the batch's last row does not come back before a state is saved
                    done += 1
                    self._done = done
                yield item

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream is, as JSON values. In the middle of a batch, it is the start of the batch.

        In a loader without workers this is the place in the epoch for any number of ranks and workers. A stateful
        loader calls it in each worker; such a state goes back to the same worker.
        """
        info = get_worker_info()
        if info is None:
            return self.state_after(self._done)
        own = [info.id, info.num_workers, self._done]
        return {**self._identity(), "epoch": self.epoch, "rows": self._start, "worker": own}

    def state_after(self, num_batches: int) -> dict[str, Any]:
        """Return the state after so many batches of each rank since the loaded state, or since the start of the epoch.

        For a loader whose workers read ahead: the main process counts the batches that it has used.
        """
        rows = self._start + num_batches * self.batch_size * self.world_size
        return {**self._identity(), "epoch": self.epoch, "rows": min(rows, self._set.num_rows), "worker": None}

    def is_finished_after(self, num_batches: int) -> bool:
        """Return whether so many batches, since the loaded state or the start of the epoch, end this rank's epoch."""
        return num_batches * self.batch_size >= self._count_rows(self._set.num_rows, start=self._start)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state` in the next iterator. Raises ConfigError if the data set, split or seed differs."""
        for key, own in self._identity().items():
            if state.get(key) != own:
                raise ConfigError(f"the state has {key}={state.get(key)!r}, this stream {own!r}; open the same again")
        self._epoch.fill_(int(state["epoch"]))
        self._given.fill_(int(state["rows"]))
        self._done = 0
        worker = state["worker"]
        self._own = None if worker is None else (int(worker[0]), int(worker[1]), int(worker[2]), self.epoch)
        if self._own is not None:
            self._done = self._own[2]

    def _identity(self) -> dict[str, Any]:
        return {
            "data": self.manifest.hash,
            "num_rows": self._set.num_rows,
            "seed": self._seed,
            "shuffle": self._shuffle,
        }

    def _count_rows(self, total: int, *, start: int) -> int:
        left = total - start
        if self.world_size == 1:
            return left
        return left // (self.world_size * self.batch_size) * self.batch_size

    def _deal(self, worker: int, workers: int, *, skip: int) -> Iterator[tuple[int, int]]:
        """Yield the worker's batches as ranges of rows in the epoch's order."""
        own_rows = self._count_rows(self._set.num_rows, start=self._start)
        for number in range(worker + skip * workers, -(-own_rows // self.batch_size), workers):
            first = self._start + (number * self.world_size + self.rank) * self.batch_size
            yield first, min(first + self.batch_size, self._set.num_rows)


class _Order:
    """The rows of an epoch in their order. It keeps the row group that was read last."""

    def __init__(self, data: OpenSet, *, seed: int, epoch: int, shuffle: bool) -> None:
        self._set, self._seed, self._epoch, self._shuffle = data, seed, epoch, shuffle
        count = len(data.groups)
        drawn = draws.generator(seed, "torch_data", "groups", epoch).permutation(count) if shuffle else range(count)
        self._groups = [data.groups[number] for number in drawn]
        self._bounds = np.cumsum([0, *(group.num_rows for group in self._groups)])
        self._read: tuple[int, Rows, npt.NDArray[np.int64]] | None = None

    def read(self, first: int, stop: int) -> Iterator[Item]:
        """Yield rows [first, stop) of the order."""
        while first < stop:
            place = int(np.searchsorted(self._bounds, first, side="right")) - 1
            end = min(stop, int(self._bounds[place + 1]))
            rows, order = self._open(place)
            yield from rows.items(order[first - self._bounds[place] : end - self._bounds[place]])
            first = end

    def _open(self, place: int) -> tuple[Rows, npt.NDArray[np.int64]]:
        if self._read is None or self._read[0] != place:
            group = self._groups[place]
            order = np.arange(group.num_rows)
            if self._shuffle:
                order = draws.generator(self._seed, "torch_data", "rows", self._epoch, group.first_row).permutation(
                    order
                )
            self._read = (place, self._set.read(group, epoch=self._epoch), order)
        return self._read[1], self._read[2]
