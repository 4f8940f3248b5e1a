"""Gives a rank its micro-batches: reads rows ahead, packs them, and sums each step's counts over all ranks.

With G lanes and W ranks, every rank gets ceil(G / W) micro-batches per step, empty ones included. One all-reduce on the
host per step carries the counts by which the losses are divided, and every lane's cursor (rows taken). So each rank
knows the position of all lanes, and knows when an epoch ends.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset import Manifest
from trainer.config import Objective
from trainer.data.mask_draws import MaskDraws
from trainer.data.micro_batch import MicroBatch, MicroBatchShape
from trainer.data.objectives import apply_objective
from trainer.data.packing import Packer, Rows
from trainer.data.plan import Plan, PlanError, PlanState, lanes_of
from trainer.data.readers import ReadAhead, read_in_threads, read_with_ray
from trainer.data.row_groups import RowGroupError, RowGroupSlice, make_slices

AllReduce: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""A function that returns the sum of a host vector over all ranks."""

_MASKED, _LABELLED, _PAIRS, _TOKENS, _SQUARED, _LOST, _CURSORS = range(7)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Step:
    """The data of one optimizer step on this rank, and the step's counts over all ranks."""

    micro_batches: tuple[MicroBatch | None, ...]
    """This rank's micro-batches of the step, in order. None stands for an empty one."""
    lanes: tuple[int, ...]
    """Lane of each micro-batch, or -1 for an empty one without a lane."""
    used: tuple[bool, ...]
    """Whether each micro-batch must be computed. False while the batch warms up, if no rank has data for its own
    micro-batch at this place."""
    num_masked: int
    """Masked positions of the step, over all ranks."""
    num_labelled: int
    """Pairs with a next-sentence label, over all ranks."""
    num_pairs: int
    """Pairs, over all ranks."""
    num_tokens: int
    """Tokens, over all ranks."""
    num_squared: int
    """Sum of the squared lengths of the pairs, over all ranks. The cost of attention is proportional to this sum."""
    num_lost: int
    """Rows skipped in this step because their row group cannot be read, over all ranks."""
    state: PlanState
    """The run's position in the data after this step. It is the same on every rank."""
    wait_s: float
    """Seconds that this rank waited for rows."""
    shard_paths: tuple[str, ...]
    """Paths of the shards in the data set; MicroBatch.shards are indices into them."""


class MicroBatchStream:
    """Gives one rank the data of each step, beginning at the position `state` (None: at the start of the data).

    The steps end only if the plan has just one epoch. Every step calls `all_reduce` once on every rank (None: there is
    only one rank). `reader` is "local" for threads of this process or "ray" for Ray Data; both give the same
    micro-batches. With `masks`, masks are drawn instead of taken from the data set. The micro-batches have the targets
    of `objective`. Memory: one row group per lane, and
    `read_ahead_blocks` row groups read ahead.

    A row group that cannot be read raises RowGroupError. With `skip_corrupt`, a warning is logged instead, and the rows
    are lost. Lost rows count as rows that their lane has given. So this lane gives fewer rows, or none, until the other
    lanes have caught up. Then it continues after the lost rows.
    """

    def __init__(
        self,
        plan: Plan,
        root: str | Path,
        *,
        rank: int = 0,
        world_size: int = 1,
        state: PlanState | None = None,
        reader: Literal["local", "ray"] = "local",
        all_reduce: AllReduce | None = None,
        read_ahead_blocks: int = 4,
        object_store_mb: int = 256,
        skip_corrupt: bool = False,
        masks: MaskDraws | None = None,
        objective: Objective = "masked_next_sentence",
    ) -> None:
        self._plan, self._state = plan, plan.start() if state is None else state
        plan.check(self._state)
        self._world_size = world_size
        self._lanes = lanes_of(rank, world_size=world_size, lanes=plan.lanes)
        self._all_reduce = all_reduce
        self._cursors = {lane: self._state.cursors[lane] for lane in self._lanes if lane >= 0}
        self._skip_corrupt = skip_corrupt
        self._lost = dict.fromkeys(self._cursors, 0)
        self._queues: dict[int, deque[Rows | int]] = {lane: deque() for lane in self._cursors}
        self._masks, self._objective = masks, objective
        draw = None if masks is None else self._draw_masks
        self._packers = {
            lane: Packer(plan.shape, next_rows=partial(self._next_rows, lane), draw_masks=draw)
            for lane in self._cursors
        }
        self._packed: tuple[MicroBatch | None, ...] | None = None
        self._wait_s = 0.0
        epochs = count(self._state.epoch) if plan.pairs is not None else range(self._state.epoch, 1)
        slices = self._slices_to_read(epochs, dict(self._cursors)) if self._cursors else iter(())
        tables = (
            read_in_threads(slices, root=root)
            if reader == "local"
            else read_with_ray(slices, root=root, object_store_bytes=object_store_mb << 20)
        )
        self._read_ahead = ReadAhead(tables, depth=read_ahead_blocks)

    @property
    def state(self) -> PlanState:
        """The run's position in the data after the last committed step."""
        return self._state

    def next_step(self) -> Step:
        """Pack this rank's micro-batches of the next step, sum the step's counts over all ranks, and return the step.

        Collective: one all_reduce.
        """
        counts = self.pack()
        return self.commit(counts if self._all_reduce is None else self._all_reduce(counts))

    def pack(self) -> NDArray[np.int64]:
        """Pack this rank's micro-batches of the next step, without communication: the first half of `next_step`.

        Returns [6 + G] numbers for this rank, in this order: masked positions, pairs with a label, pairs, tokens, the
        sum of the pairs' squared lengths, lost rows, and the cursors (rows taken) of the G lanes. The cursors of other
        ranks' lanes are 0.
        """
        assert self._packed is None
        self._wait_s = 0.0
        counts = np.zeros(_CURSORS + self._plan.lanes, dtype=np.int64)
        micro_batches: list[MicroBatch | None] = []
        limits = self._cursor_limits()
        for lane in self._lanes:
            micro_batch = (
                None if lane < 0 else self._packers[lane].pack(max_rows=int(limits[lane]) - self._cursors[lane])
            )
            if micro_batch is not None:
                micro_batch = apply_objective(micro_batch, objective=self._objective)
                self._cursors[lane] += micro_batch.num_pairs
                squared = int(np.square(micro_batch.lengths, dtype=np.int64).sum())
                counts[:_LOST] += (
                    micro_batch.num_masked,
                    micro_batch.num_labelled,
                    micro_batch.num_pairs,
                    micro_batch.num_tokens,
                    squared,
                )
            if lane >= 0:
                self._cursors[lane] += self._lost[lane]
                counts[_LOST] += self._lost[lane]
                self._lost[lane] = 0
                counts[_CURSORS + lane] = self._cursors[lane]
            micro_batches.append(micro_batch)
        self._packed = tuple(micro_batches)
        return counts

    @property
    def packed(self) -> tuple[MicroBatch | None, ...]:
        """The micro-batches that `pack` has packed and that are not yet committed."""
        assert self._packed is not None
        return self._packed

    def commit(self, counts: NDArray[np.int64]) -> Step:
        """Advance the run's position and return the step: the second half of `next_step`.

        `counts` are the numbers that `pack` returned, summed over all ranks. The next epoch begins when every lane has
        taken all its rows of this epoch. If all rows of a step were lost, the step has no pairs and is not counted.
        """
        assert self._packed is not None
        micro_batches, self._packed = self._packed, None
        used = self._find_used(counts[_CURSORS:] - np.array(self._state.cursors))
        epoch, cursors = self._state.epoch, counts[_CURSORS:]
        while (cursors >= (rows := self._plan.lane_rows(epoch))).all():
            cursors, epoch = cursors - rows, epoch + 1
        self._cursors = {lane: int(cursors[lane]) for lane in self._cursors}
        self._state = PlanState(
            plan_hash=self._plan.hash,
            step=self._state.step + bool(counts[_PAIRS]),
            epoch=epoch,
            cursors=tuple(cursors.tolist()),
            phase=self._state.phase,
            phase_step=self._state.phase_step + bool(counts[_PAIRS]),
            rounds=self._state.rounds + 1,
        )
        return Step(
            micro_batches=micro_batches,
            lanes=tuple(self._lanes),
            used=used,
            num_masked=int(counts[_MASKED]),
            num_labelled=int(counts[_LABELLED]),
            num_pairs=int(counts[_PAIRS]),
            num_tokens=int(counts[_TOKENS]),
            num_squared=int(counts[_SQUARED]),
            num_lost=int(counts[_LOST]),
            state=self._state,
            wait_s=self._wait_s,
            shard_paths=self._plan.shard_paths,
        )

    def one_epoch(self) -> Iterator[Step]:
        """Yield the steps up to the end of the current epoch. Every rank gets the same number of steps."""
        epoch = self._state.epoch
        while self._state.epoch == epoch:
            yield self.next_step()

    def close(self) -> None:
        """Stop reading ahead. Idempotent."""
        self._read_ahead.close()

    def _cursor_limits(self) -> NDArray[np.int64]:
        """Return [G]: how many rows each of the G lanes may have taken, at most, after its next micro-batch.

        Rows are counted from the start of the current epoch. The limit keeps every lane from giving more than its share
        of pairs.
        """
        plan, state = self._plan, self._state
        if plan.pairs is None:
            return plan.lane_rows(state.epoch)
        return plan.pairs_due(state.rounds + 1) - plan.rows_before(state.epoch)

    def _find_used(self, taken: NDArray[np.int64]) -> tuple[bool, ...]:
        """Return Step.used. `taken` [G] says how many rows each lane takes in the step."""
        if self._plan.warmup is None:
            return (True,) * len(self._lanes)
        starts = range(0, taken.size, self._world_size)  # the ranks' micro-batches at one place are of as many lanes
        return tuple(bool(taken[start : start + self._world_size].any()) for start in starts)

    def _slices_to_read(self, epochs: Iterable[int], cursors: dict[int, int]) -> Iterator[RowGroupSlice]:
        """Yield the slices of row groups that this rank's lanes read, one epoch after another.

        `cursors` maps each of these lanes to the number of rows that it has already taken in the first of `epochs`.
        Runs in the read-ahead thread.
        """
        for epoch in epochs:
            slices = self._plan.slices(epoch, lanes=list(cursors), cursors=list(cursors.values()))
            yield from make_slices(self._plan, slices, epoch=epoch)
            rows = self._plan.lane_rows(epoch)
            cursors = {lane: max(0, cursor - int(rows[lane])) for lane, cursor in cursors.items()}

    def _draw_masks(self, rows: Rows, start: int, stop: int) -> Rows:
        """Return `rows` with masks drawn for rows [start, stop) as the next step takes them."""
        assert self._masks is not None
        return self._masks.draw(rows, start, stop, step=self._state.step + 1)

    def _next_rows(self, lane: int) -> Rows | int:
        """Return the lane's next rows. If these rows cannot be read and are lost, return how many they are.

        The rows of all lanes come from one reader. Rows of another lane are put into that lane's queue.
        """
        start = time.perf_counter()
        while not self._queues[lane]:
            row_slice, table = next(self._read_ahead)
            if isinstance(table, RowGroupError):
                if not self._skip_corrupt:
                    raise table
                logger.warning("%d rows are skipped (ingest.skip_corrupt): %s", row_slice.stop - row_slice.start, table)
                self._queues[row_slice.lane].append(row_slice.stop - row_slice.start)
            else:
                self._queues[row_slice.lane].append(Rows.from_table(table, epoch=row_slice.epoch))
        self._wait_s += time.perf_counter() - start
        taken = self._queues[lane].popleft()
        if isinstance(taken, int):
            self._lost[lane] += taken
        return taken


def validation_plan(manifest: Manifest, *, shape: MicroBatchShape, lanes: int, max_pairs: int | None = None) -> Plan:
    """Return a plan that reads each held-out row once, in an order that depends on the data set alone.

    With `max_pairs`, the plan reads only that many rows, the first ones of this order. Raises PlanError if no rows are
    held out.
    """
    rows = manifest.num_rows("validation")
    if rows == 0:
        raise PlanError(
            "the data set holds no validation rows; build it with validation_fraction above 0, or turn evaluation off"
        )
    rows = min(rows, max_pairs or rows)
    return Plan(
        manifest, split="validation", lanes=min(lanes, rows), shape=shape, seed=0, pairs=None, max_rows=max_pairs
    )
