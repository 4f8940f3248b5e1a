"""A loader that knows its place: Lightning saves and loads its state as it is.

The state is that of the batches that the loop has used; workers may have read further.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader

from pipeline.torch_data.items import Item
from pipeline.torch_data.stream import PairStream


class PairLoader(DataLoader[Item]):
    """The batches of a PairStream. Each `iter` after a finished one gives the next epoch."""

    def __init__(self, stream: PairStream, **options: Any) -> None:
        """Make a loader with the batch size of `stream`. `options` are those of DataLoader, such as num_workers and
        collate_fn."""
        super().__init__(stream, batch_size=stream.batch_size, **options)
        self._stream = stream
        self._used = 0
        """Batches that the newest iterator has given."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Give the rest of the epoch: all of it, or what a loaded state leaves."""
        self._end_epoch()
        for batch in super().__iter__():
            self._used += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the place behind the last batch given, as JSON values, for any number of ranks and workers."""
        self._end_epoch(only_finished=True)
        return self._stream.state_after(self._used)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state` in the next iterator. Raises ConfigError if the data set, split or seed differs."""
        self._stream.load_state_dict(state)
        self._used = 0

    def _end_epoch(self, *, only_finished: bool = False) -> None:
        if self._stream.is_finished_after(self._used):
            self._stream.set_epoch(self._stream.epoch + 1)
        elif only_finished:
            return
        self._used = 0
