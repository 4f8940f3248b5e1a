"""Prefetch the data of the next step while the current step computes.

Three things are then ready when the next step begins: its packed micro-batches, the tensors of the first micro-batch,
and the sums over all ranks of the counts that losses are divided by. The other micro-batches become tensors while the
device computes. A Feed serves one phase of a run (steps on one data set), and a RunFeed serves all phases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.dataset import Special
from trainer.data import MicroBatch, MicroBatchShape, MicroBatchStream, PlanState, RowGroupError, Step
from trainer.model import Batch, to_batch


class Feed:
    """Yields the steps of one rank in order. All ranks must call next_step, look_ahead and first_batch together."""

    def __init__(
        self, stream: MicroBatchStream, *, shape: MicroBatchShape, special: Special, device: torch.device
    ) -> None:
        self._stream, self._shape, self._special, self._device = stream, shape, special, device
        self._ahead: tuple[Tensor, Any] | None = None
        self._first: tuple[MicroBatch | None, Batch] | None = None
        self.epoch = stream.state.epoch
        """Epoch, from 0, of the step that next_step returned last."""

    def next_step(self) -> Step:
        """Return the next step, leaving out steps without pairs. First wait until the step's counts (of pairs and
        masked positions, for example) are summed over all ranks.

        Raises RowGroupError if no row of an epoch can be read.
        """
        num_lost, begun = 0, self._stream.state.epoch
        while True:
            self.look_ahead()
            assert self._ahead is not None
            (counts, sent), self._ahead = self._ahead, None
            sent.wait()
            self.epoch = self._stream.state.epoch
            step = self._stream.commit(counts.numpy())
            num_lost += step.num_lost
            if step.num_pairs:
                return replace(step, num_lost=num_lost)
            if step.state.epoch > begun + 1:  # ingest.skip_corrupt skipped everything
                raise RowGroupError(f"cannot read any of the {num_lost} rows after epoch {begun}; restore the data set")

    def look_ahead(self) -> None:
        """Pack the next step's micro-batches, and begin to sum their counts of pairs and masked positions over all
        ranks. All ranks must call this together (collective).

        A second call before next_step does nothing.
        """
        if self._ahead is None:
            counts = torch.from_numpy(self._stream.pack())
            self._ahead = counts, dist.all_reduce(counts, async_op=True)
            first = self._stream.packed[0]
            self._first = first, self._lay_out(first)

    def first_batch(self) -> Batch:
        """Return the first micro-batch of the next step ahead of time. next_step still returns that step later. All
        ranks must call this together (collective)."""
        self.look_ahead()
        assert self._first is not None
        return self._first[1]

    def to_batch(self, micro_batch: MicroBatch | None) -> Batch:
        """Return a micro-batch as tensors on the device, with constant shapes on GPUs. None (an empty micro-batch)
        becomes a placeholder pair that adds nothing to losses and gradients."""
        first, self._first = self._first, None
        return first[1] if first is not None and first[0] is micro_batch else self._lay_out(micro_batch)

    def _lay_out(self, micro_batch: MicroBatch | None) -> Batch:
        shape, special, device = self._shape, self._special, self._device
        constant = device.type == "cuda"
        return to_batch(micro_batch, shape=shape, special=special, constant_shapes=constant, device=device)

    def close(self) -> None:
        """Stop reading ahead."""
        if self._ahead is not None:
            self._ahead[1].wait()
        self._stream.close()


class RunFeed:
    """Yields the steps of one rank through all phases (parts) of a run. It opens one Feed after another, one for each
    phase.

    `start` is the position in the data at which to begin. `open_feed` opens the Feed that continues from a position.
    `next_start` maps the position after a step to the position where the next step starts. The two positions differ
    only at the end of a phase, because the next step starts at the beginning of the next phase. The first step of a new
    phase is prefetched too.
    """

    def __init__(
        self, start: PlanState, *, open_feed: Callable[[PlanState], Feed], next_start: Callable[[PlanState], PlanState]
    ) -> None:
        self._open_feed, self._next_start = open_feed, next_start
        self._feed = open_feed(start)
        self._done = start
        self._next: Feed | None = None

    @property
    def epoch(self) -> int:
        """Epoch of the step that next_step returned last. It counts from 0 in each phase (part of the run)."""
        return self._feed.epoch

    def next_step(self) -> Step:
        """Return the next step. First wait until the step's counts (of pairs and masked positions, for example) are
        summed over all ranks."""
        self.look_ahead()
        if self._next is not None:
            self._feed.close()
            self._feed, self._next = self._next, None
        step = self._feed.next_step()
        self._done = step.state
        return step

    def look_ahead(self) -> None:
        """Pack the next step's micro-batches, and begin to sum their counts of pairs and masked positions over all
        ranks. All ranks must call this together (collective).

        A second call before next_step does nothing.
        """
        if self._next is None:
            start = self._next_start(self._done)
            if start.phase != self._done.phase:
                self._next = self._open_feed(start)
        (self._feed if self._next is None else self._next).look_ahead()

    def first_batch(self) -> Batch:
        """Return the first micro-batch of the next step ahead of time. next_step still returns that step later. All
        ranks must call this together (collective)."""
        self.look_ahead()
        return (self._feed if self._next is None else self._next).first_batch()

    def to_batch(self, micro_batch: MicroBatch | None) -> Batch:
        """Return a micro-batch of the step that next_step returned last, as tensors on the device."""
        return self._feed.to_batch(micro_batch)

    def close(self) -> None:
        """Stop reading ahead."""
        self._feed.close()
        if self._next is not None:
            self._next.close()
