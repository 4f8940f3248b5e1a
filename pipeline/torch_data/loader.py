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
    """The batches of a PairStream. Each `iter` continues behind the last batch given, and after a finished epoch gives
    the next. So no batch repeats if a loop ends its epochs early, as Lightning does with limit_train_batches, or with
    max_steps after a start from a checkpoint of an epoch's end."""

    def __init__(self, stream: PairStream, **options: Any) -> None:
        """Make a loader with the batch size of `stream`. `options` are those of DataLoader, such as num_workers and
        collate_fn."""
        super().__init__(stream, batch_size=stream.batch_size, **options)
        self._stream = stream
        self._used = 0
        """Batches that the newest iterator has given."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Give the rest of the epoch: all of it, or what an earlier iterator or a loaded state leaves."""
        self._stream.load_state_dict(self.state_dict())
        self._used = 0
        for batch in super().__iter__():
            self._used += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the place behind the last batch given, as JSON values, for any number of ranks and workers."""
        if self._stream.is_finished_after(self._used):
            self._stream.set_epoch(self._stream.epoch + 1)
            self._used = 0
        return self._stream.state_after(self._used)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state` in the next iterator. Raises ConfigError if the data set, split or seed differs."""
        self._stream.load_state_dict(state)
        self._used = 0
