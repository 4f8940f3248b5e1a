"""The plan: which rows, in which order, in which lane; a pure function of data set, seed and plan settings.

An epoch's row groups are permuted, the rows inside each too, and that one sequence is cut into G lanes of equal
token count. Never of the world size: rank r of W takes the lanes l with l mod W = r. No I/O but `read_lengths`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.manifest import Manifest, SplitName, canonical_json
from trainer.lanes import RowSequence, cut_evenly
from trainer.slots import SlotShape

PLAN_VERSION = 1
"""Raised by whoever changes the order that a plan gives."""

ReadLengths = Callable[[Sequence[int]], Sequence[NDArray[np.integer]]]
"""Row groups (indices into Plan.group_*) -> num_tokens of the rows of each, as stored."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class PlanError(ValueError):
    """The plan's settings do not go with the data set, or a state with the plan."""


@dataclass(frozen=True, slots=True)
class PlanState:
    """Where a run stands; independent of world size, complete on every rank."""

    plan_hash: str
    """Of the plan that the numbers below are about."""
    step: int
    """Steps of the run done."""
    epoch: int
    """Epoch of the next step, from 0."""
    epoch_step: int
    """Steps done in that epoch."""
    cursors: tuple[int, ...]
    """Rows of that epoch done, a lane."""
    phase: int = 0
    """Phase of the last step done, from 0: after its last step a run stands at the end of a phase."""
    phase_step: int = 0
    """Steps done in that phase."""

    def to_tree(self) -> dict[str, Any]:
        """JSON-able tree."""
        return {**asdict(self), "cursors": list(self.cursors)}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> PlanState:
        """The state that `to_tree` wrote; without phases, where the run was one phase."""
        return cls(**{"phase_step": tree["step"], **tree, "cursors": tuple(tree["cursors"])})


@dataclass(frozen=True, slots=True)
class LaneCuts:
    """One epoch's sequence and where it is cut."""

    order: NDArray[np.int64]
    """[R] row groups in the order of the epoch."""
    row_starts: NDArray[np.int64]
    """[R + 1] rows before each of them."""
    rows: NDArray[np.int64]
    """[G + 1] rows before each cut: lane l has the rows rows[l] .. rows[l + 1] of the sequence."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Slices of row groups, as columns of equal length: rows [start, stop) of the permuted row group."""

    lane: NDArray[np.int64]
    """Lane that takes the rows."""
    group: NDArray[np.int64]
    """Row group (index into Plan.group_*)."""
    start: NDArray[np.int64]
    """First row, in the row group's permuted order."""
    stop: NDArray[np.int64]
    """Behind the last row."""


class Plan:
    """Lanes over one split of a data set. PlanError where settings and data set do not go together."""

    def __init__(
        self,
        *,
        group_shard: NDArray[np.int64],
        group_index: NDArray[np.int64],
        group_rows: NDArray[np.int64],
        group_tokens: NDArray[np.int64],
        shard_paths: Sequence[str],
        mask_sets: int,
        lanes: int,
        shape: SlotShape,
        seed: int,
        exact_pairs: int | None,
        data_hash: str,
    ) -> None:
        self.group_shard, self.group_index = group_shard, group_index
        self.group_rows, self.group_tokens = group_rows, group_tokens
        self.shard_paths, self.mask_sets = tuple(shard_paths), mask_sets
        self.lanes, self.shape, self.seed, self.exact_pairs = lanes, shape, seed, exact_pairs
        self.num_rows, self.num_tokens = int(group_rows.sum()), int(group_tokens.sum())
        self._check()
        self.hash = hashlib.sha256(
            canonical_json(
                {
                    "version": PLAN_VERSION,
                    "data": data_hash,
                    "lanes": lanes,
                    "shape": asdict(shape),
                    "seed": seed,
                    "exact_pairs": exact_pairs,
                }
            )
        ).hexdigest()
        self._cuts: dict[int, LaneCuts] = {}

    @classmethod
    def from_manifest(
        cls,
        manifest: Manifest,
        *,
        lanes: int,
        shape: SlotShape,
        seed: int,
        split: SplitName = "train",
        exact_pairs: int | None = None,
    ) -> Plan:
        """Plan over one split of the data set that `manifest` lists."""
        shards = manifest.shards_of(split)
        counts = np.array([len(shard.row_group_rows) for shard in shards], dtype=np.int64)
        if shape.max_seq_length < manifest.max_seq_length:
            raise PlanError(
                f"slots are made for rows of {shape.max_seq_length} tokens, but the data set has max_seq_length="
                f"{manifest.max_seq_length}; derive the shape from this data set"
            )
        most = 1 if exact_pairs is None else -(-exact_pairs // lanes)
        if shape.masked < most * manifest.max_predictions:
            raise PlanError(
                f"slots of {shape.masked} masked positions cannot hold {most} rows with max_predictions="
                f"{manifest.max_predictions}; derive the shape from this data set"
            )
        return cls(
            group_shard=np.repeat(np.arange(len(shards)), counts),
            group_index=np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts),
            group_rows=_flatten(shard.row_group_rows for shard in shards),
            group_tokens=_flatten(shard.row_group_tokens for shard in shards),
            shard_paths=[shard.path for shard in shards],
            mask_sets=manifest.mask_sets,
            lanes=lanes,
            shape=shape,
            seed=seed,
            exact_pairs=exact_pairs,
            data_hash=f"{manifest.hash}/{split}",
        )

    def start(self, *, phase: int = 0, step: int = 0) -> PlanState:
        """The state before the first step of `phase`, which begins after `step` steps of the run."""
        return PlanState(plan_hash=self.hash, step=step, epoch=0, epoch_step=0, cursors=(0,) * self.lanes, phase=phase)

    def check(self, state: PlanState) -> None:
        """PlanError where `state` belongs to another plan."""
        if state.plan_hash != self.hash:
            raise PlanError(
                f"the checkpoint at step {state.step} belongs to plan {state.plan_hash[:12]}, this run has plan "
                f"{self.hash[:12]}: data set, seed or batch settings differ; restore them, or begin in a new output"
            )

    def mask_set(self, epoch: int) -> int:
        """Which of the K mask sets the rows of an epoch take."""
        return epoch % self.mask_sets

    def quota(self, lane: int) -> int | None:
        """Pairs that every slot of the lane holds in exact mode, otherwise None."""
        if self.exact_pairs is None:
            return None
        return self.exact_pairs // self.lanes + (lane < self.exact_pairs % self.lanes)

    def cuts(self, epoch: int, *, read_lengths: ReadLengths) -> LaneCuts:
        """The epoch's order and cuts; remembered for the two epochs asked for last."""
        known = self._cuts.get(epoch)
        if known is None:
            known = self._cut(epoch, read_lengths=read_lengths)
            if len(self._cuts) == 2:
                del self._cuts[min(self._cuts)]
            self._cuts[epoch] = known
        return known

    def blocks(self, epoch: int, *, lanes: Sequence[int], cursors: Sequence[int], read_lengths: ReadLengths) -> Blocks:
        """What `lanes` still read of an epoch when they have read `cursors` rows of it (all, where a cursor is beyond).

        In the order in which lanes that advance at equal pace need them, so that one reader can serve them all.
        """
        cuts = self.cuts(epoch, read_lengths=read_lengths)
        parts = [self._lane_blocks(cuts, lane=lane, cursor=cursor) for lane, cursor in zip(lanes, cursors, strict=True)]
        if not parts:
            parts = [np.empty((5, 0))]
        lane, group, start, stop, need = np.concatenate(parts, axis=1)
        first = np.argsort(need, kind="stable")
        return Blocks(*(column[first].astype(np.int64) for column in (lane, group, start, stop)))

    def _lane_blocks(self, cuts: LaneCuts, *, lane: int, cursor: int) -> NDArray[np.float64]:
        begin, end = int(cuts.rows[lane]) + cursor, int(cuts.rows[lane + 1])
        if begin >= end:
            return np.empty((5, 0))
        low = int(np.searchsorted(cuts.row_starts, begin, side="right")) - 1
        high = int(np.searchsorted(cuts.row_starts, end, side="left"))
        group, base = cuts.order[low:high], cuts.row_starts[low:high]
        start, stop = np.maximum(begin - base, 0), np.minimum(end - base, self.group_rows[group])
        quota = self.quota(lane)
        if quota is None:
            work = (stop - start) * (self.group_tokens[group] / self.group_rows[group])
        else:
            work = (stop - start) / quota
        need = np.cumsum(work) - work
        return np.stack([np.full(group.size, lane), group, start, stop, need])

    def _cut(self, epoch: int, *, read_lengths: ReadLengths) -> LaneCuts:
        order = permutation(self.group_rows.size, key=(self.seed, "row groups", epoch))
        rows = self.group_rows[order]
        row_starts = np.concatenate(([0], np.cumsum(rows)))
        if self.exact_pairs is not None:
            return LaneCuts(order, row_starts, self._exact_cuts(epoch))

        def read_blocks(blocks: Sequence[int]) -> list[NDArray[np.integer]]:
            groups = [int(order[block]) for block in blocks]
            lengths = read_lengths(groups)
            return [each[self._row_order(group, epoch=epoch)] for group, each in zip(groups, lengths, strict=True)]

        sequence = RowSequence(rows, tokens=self.group_tokens[order], read_blocks=read_blocks)
        return LaneCuts(order, row_starts, cut_evenly(sequence, lanes=self.lanes)[0])

    def _exact_cuts(self, epoch: int) -> NDArray[np.int64]:
        """Shares of the rows as the lanes' pairs, rounded so that all lanes enter an epoch in the same step."""
        assert self.exact_pairs is not None
        before = np.cumsum([0] + [self.quota(lane) or 0 for lane in range(self.lanes)])
        done, next_done = (np.diff(count * self.num_rows * before // self.exact_pairs) for count in (epoch, epoch + 1))
        return np.concatenate(([0], np.cumsum(next_done - done)))

    def _row_order(self, group: int, *, epoch: int) -> NDArray[np.int64]:
        return row_permutation(
            int(self.group_rows[group]),
            seed=self.seed,
            epoch=epoch,
            shard=int(self.group_shard[group]),
            row_group=int(self.group_index[group]),
        )

    def _check(self) -> None:
        if self.lanes < 1:
            raise PlanError(f"batch.lanes={self.lanes} must be at least 1")
        if self.num_rows < self.lanes:
            raise PlanError(
                f"batch.lanes={self.lanes} exceeds the {self.num_rows} rows of the data set; set it to at most "
                f"{self.num_rows}"
            )
        if self.exact_pairs is None:
            return
        most = -(-self.exact_pairs // self.lanes)
        if not self.lanes <= self.exact_pairs <= self.num_rows:
            raise PlanError(
                f"batch.exact_pairs with batch.pairs={self.exact_pairs} needs at least one pair for each of the "
                f"{self.lanes} lanes and no more than the {self.num_rows} rows of the data set"
            )
        if self.shape.pairs < most or self.shape.tokens < most * self.shape.max_seq_length:
            raise PlanError(
                f"batch.exact_pairs puts {most} pairs of up to {self.shape.max_seq_length} tokens into a slot; "
                f"batch.tokens_per_slot={self.shape.tokens} must be at least {most * self.shape.max_seq_length}: raise "
                f"it, or batch.lanes"
            )


def lanes_of(rank: int, *, world_size: int, lanes: int) -> list[int]:
    """The lanes of a rank, one a micro-step; -1 where it has none left to take (an empty slot).

    Every rank gets ceil(lanes / world_size) entries, so that all make the same number of micro-steps.
    """
    steps = -(-lanes // world_size)
    mine = range(rank, steps * world_size, world_size)
    return [lane if lane < lanes else -1 for lane in mine]


def row_permutation(count: int, *, seed: int, epoch: int, shard: int, row_group: int) -> NDArray[np.int64]:
    """Order in which an epoch takes the `count` rows of a row group: place -> row as stored."""
    return permutation(count, key=(seed, "rows", epoch, shard, row_group))


def permutation(count: int, *, key: tuple[int | str, ...]) -> NDArray[np.int64]:
    """A permutation of range(count) that depends on the key alone (not on numpy's version)."""
    digest = hashlib.blake2b(canonical_json(list(key)), digest_size=8).digest()
    bits = np.uint64(int.from_bytes(digest, "little")) + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX[0]
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX[1]
    return np.argsort(bits ^ (bits >> np.uint64(31)), kind="stable")


def _flatten(tuples: Any) -> NDArray[np.int64]:
    return np.fromiter(chain.from_iterable(tuples), dtype=np.int64)
