"""The plan: the order in which a run reads its rows. It depends only on data set, seed and plan settings.

The row groups of an epoch are permuted, and so are the rows inside each group. This sequence is cut into G lanes of
equal length, which are read side by side. On average over the steps, every lane gives an equal share of the stated
pairs per step, even if an epoch ends inside a step. The plan is independent of the world size: rank r of W takes the
lanes l with l mod W = r. No I/O.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset import Manifest, SplitName, canonical_json
from trainer.data.micro_batch import MicroBatchShape

PLAN_VERSION = 2
"""Raise this number with every change to the order that a plan gives."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class PlanError(ValueError):
    """The error for plan settings that do not fit the data set, or for a state that does not fit the plan."""


@dataclass(frozen=True, slots=True)
class PlanState:
    """The position of a run in its data. It does not depend on the world size, and is the same on every rank."""

    plan_hash: str
    """Hash of the plan to which the cursors refer."""
    step: int
    """Number of steps that the run has done."""
    epoch: int
    """Epoch, counted from 0, of the lane that is furthest behind."""
    cursors: tuple[int, ...]
    """Number of rows that each lane has taken since `epoch` began. If a lane is already in the next epoch, its
    number is larger than the number of rows that it takes in `epoch`."""
    phase: int = 0
    """Phase of the last step done, counted from 0."""
    phase_step: int = 0
    """Number of steps done in `phase`."""
    rounds: int = 0
    """Number of micro-batches requested from each lane in `phase`: one for each step, and one for each attempt whose
    rows were all lost."""

    def to_tree(self) -> dict[str, Any]:
        """Return the state as a dict that JSON can hold, with the fields' names as keys."""
        return {**asdict(self), "cursors": list(self.cursors)}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> PlanState:
        """Return the state from `tree`, a dict that `to_tree` returned.

        A dict from an earlier version, which had no phases (parts of a run), is accepted too. Unknown entries are
        ignored. `Plan.check` refuses the states of versions that order rows differently. Raises PlanError if an entry
        is missing or has another type.
        """
        known = {field.name: tree[field.name] for field in fields(cls) if field.name in tree}
        try:
            state = cls(**{"phase_step": tree["step"], **known, "cursors": tuple(tree["cursors"])})
        except (KeyError, TypeError) as error:
            raise PlanError(f"plan_state of the checkpoint: {error} is missing or not a list") from error
        numbers = (*state.cursors, *(getattr(state, field.name) for field in fields(cls) if field.type == "int"))
        if type(state.plan_hash) is not str or not all(type(each) is int and 0 <= each < 1 << 63 for each in numbers):
            raise PlanError(f"plan_state of the checkpoint: {str(tree)[:80]!r} is not a place in a data set")
        return state


@dataclass(frozen=True, slots=True)
class BatchWarmup:
    """The batch grows in a line from `first` (a share of it) in step 1 to the whole in step `steps` + 1."""

    steps: int
    first: Fraction

    def full_batches(self, steps: int) -> Fraction:
        """Return how many full batches the first `steps` steps are together."""
        grown = min(steps, self.steps)
        growth = (1 - self.first) * Fraction(grown * (grown - 1), 2 * self.steps)
        return self.first * grown + growth + (steps - grown)


@dataclass(frozen=True, slots=True)
class RowGroupSlices:
    """Holds slices of row groups. A slice is rows [start, stop) of a row group in the epoch's permuted order.

    The fields are columns of equal length, and entry i of every column belongs to slice i.
    """

    lane: NDArray[np.int64]
    """Lane that takes the rows."""
    group: NDArray[np.int64]
    """Row group, as an index into the arrays Plan.group_*."""
    start: NDArray[np.int64]
    """First row in the row group's permuted order."""
    stop: NDArray[np.int64]
    """Last row in that order, plus 1."""


class Plan:
    """The order in which the train or the validation rows of a data set are read, divided into lanes.

    Lanes are equal parts of the rows that are read side by side. Raises PlanError if the settings do not fit the data
    set.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        lanes: int,
        shape: MicroBatchShape,
        seed: int,
        pairs: Fraction | int | None,
        split: SplitName = "train",
        max_rows: int | None = None,
        warmup: BatchWarmup | None = None,
    ) -> None:
        """Make the plan of the train or validation rows (`split`). `pairs` is the mean number of pairs per step, over
        all lanes.

        If `pairs` is None, micro-batches hold as many pairs as fit, and there is only one epoch. With `max_rows`, an
        epoch has only the first `max_rows` rows of its order.
        """
        shards = manifest.shards_of(split)
        counts = np.array([len(shard.row_group_rows) for shard in shards], dtype=np.int64)
        self.group_shard = np.repeat(np.arange(len(shards)), counts)
        self.group_index = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        self.group_rows = _flatten(shard.row_group_rows for shard in shards)
        self.group_tokens = _flatten(shard.row_group_tokens for shard in shards)
        self.shard_paths, self.mask_sets = tuple(shard.path for shard in shards), manifest.mask_sets
        self.shard_footers = tuple(shard.footer_sha256 for shard in shards)
        self.vocabulary_size, self.max_seq_length = manifest.vocabulary_size, manifest.max_seq_length
        self.lanes, self.shape, self.seed = lanes, shape, seed
        self.pairs = None if pairs is None else Fraction(pairs)
        self.num_rows = min(manifest.num_rows(split), max_rows or sys.maxsize)
        self._orders: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self.warmup = warmup
        self._check(manifest)
        self.hash = hashlib.sha256(
            canonical_json(
                {
                    "version": PLAN_VERSION,
                    "data": f"{manifest.hash}/{split}",
                    "lanes": lanes,
                    "shape": asdict(shape),
                    "seed": seed,
                    "pairs": str(self.pairs),
                    "rows": self.num_rows,
                    **({} if warmup is None else {"warmup": [warmup.steps, str(warmup.first)]}),
                }
            )
        ).hexdigest()

    def start(self, *, phase: int = 0, step: int = 0) -> PlanState:
        """Return the state at the start of the phase (part of a run) with index `phase`.

        Before this phase, the run has done `step` steps.
        """
        return PlanState(plan_hash=self.hash, step=step, epoch=0, cursors=(0,) * self.lanes, phase=phase)

    def check(self, state: PlanState) -> None:
        """Raise PlanError if `state` belongs to another plan."""
        if state.plan_hash != self.hash:
            raise PlanError(
                f"the checkpoint at step {state.step} belongs to plan {state.plan_hash[:12]}, but this run has plan "
                f"{self.hash[:12]}: data set, seed or batch settings differ, or another release began the run; restore "
                f"them, or begin in a new output, where resume_from=RUN keeps weights and moments"
            )

    def mask_set(self, epoch: int) -> int:
        """Return the index of the mask set that all rows use in `epoch`. Each row has K mask sets (choices of masked
        tokens)."""
        return epoch % self.mask_sets

    def rows_before(self, epoch: int) -> NDArray[np.int64]:
        """Return [G]: how many rows each of the G lanes takes in total, in all epochs before `epoch`."""
        return self._divide_among_lanes(epoch * self.num_rows)

    def lane_rows(self, epoch: int) -> NDArray[np.int64]:
        """Return [G]: how many rows each of the G lanes takes in `epoch`. These numbers differ by at most one."""
        return self.rows_before(epoch + 1) - self.rows_before(epoch)

    def pairs_due(self, rounds: int) -> NDArray[np.int64]:
        """Return [G]: how many pairs each of the G lanes should put into its first `rounds` micro-batches in total.

        The G numbers add up to the plan's pairs per step times `rounds`, rounded down. While the batch warms up, some
        of the lanes in turn, from the first on, give a full micro-batch, and all others give none.
        """
        assert self.pairs is not None
        if self.warmup is None:
            return self._divide_among_lanes(math.floor(rounds * self.pairs))
        micro_batches = self._divide_among_lanes(math.floor(self.warmup.full_batches(rounds) * self.lanes))[::-1]
        pairs = self.pairs
        return np.array([math.floor(count * pairs / self.lanes) for count in micro_batches.tolist()], dtype=np.int64)

    def slices(self, epoch: int, *, lanes: Sequence[int], cursors: Sequence[int]) -> RowGroupSlices:
        """Return the slices of row groups that `lanes` still have to read in an epoch.

        Lane `lanes[i]` has already taken `cursors[i]` rows of the epoch. Because one reader reads the slices of all
        lanes one after another, they are sorted by the time of use: a slice comes earlier if its lane has fewer rows to
        take before it.
        """
        order, starts = self._order(epoch)
        cuts = np.concatenate(([0], np.cumsum(self.lane_rows(epoch))))
        parts = [np.empty((5, 0), np.int64)]
        for lane, cursor in zip(lanes, cursors, strict=True):
            begin, end = int(cuts[lane]) + cursor, int(cuts[lane + 1])
            if begin >= end:
                continue
            low = int(np.searchsorted(starts, begin, side="right")) - 1
            high = int(np.searchsorted(starts, end, side="left"))
            base = starts[low:high]
            start, stop = np.maximum(begin, base), np.minimum(end, starts[low + 1 : high + 1])
            parts.append(
                np.stack([np.full(base.size, lane), order[low:high], start - base, stop - base, start - begin])
            )
        lane, group, start, stop, need = np.concatenate(parts, axis=1)
        first = np.argsort(need, kind="stable")
        return RowGroupSlices(lane[first], group[first], start[first], stop[first])

    def _order(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the order in which an epoch takes the R row groups, and the row at which each row group begins.

        The first array, [R], holds the indices of the row groups in this order. The second, [R + 1], says how
        many rows come before each of these row groups, and ends with the number of all rows. Caches the result for one
        epoch.
        """
        if epoch not in self._orders:
            order = permutation(self.group_rows.size, key=(self.seed, "row groups", epoch))
            self._orders = {epoch: (order, np.concatenate(([0], np.cumsum(self.group_rows[order]))))}
        return self._orders[epoch]

    def _divide_among_lanes(self, count: int) -> NDArray[np.int64]:
        """Divide `count` rows or pairs among the G lanes. Return the shares, [G], which differ by at most one.

        A larger `count` makes no lane's share smaller.
        """
        return (count + np.arange(self.lanes, dtype=np.int64)) // self.lanes

    def _check(self, manifest: Manifest) -> None:
        if self.shape.max_seq_length < manifest.max_seq_length:
            raise PlanError(
                f"micro-batches are for rows of {self.shape.max_seq_length} tokens, but the data set has "
                f"max_seq_length={manifest.max_seq_length}; derive the shape from this data set"
            )
        if self.shape.masked < manifest.max_predictions:
            raise PlanError(
                f"micro-batches of {self.shape.masked} masked positions cannot hold a row with max_predictions="
                f"{manifest.max_predictions}; derive the shape from this data set"
            )
        if self.lanes < 1:
            raise PlanError(f"batch.lanes={self.lanes} must be at least 1")
        if self.num_rows < self.lanes:
            raise PlanError(
                f"batch.lanes={self.lanes} exceeds the {self.num_rows} rows of the data set; set it to at most "
                f"{self.num_rows}"
            )
        if self.warmup is not None and self.warmup.first * self.lanes < 1:
            raise PlanError(
                f"batch.warmup_from={float(self.warmup.first):g} is less than one of the {self.lanes} micro-batches "
                f"of a step; raise it to at least {1 / self.lanes:.3g}, or raise batch.lanes"
            )
        if self.pairs is not None and not self.lanes <= self.pairs <= self.num_rows:
            raise PlanError(
                f"a batch of {float(self.pairs):,g} pairs needs at least one for each of the {self.lanes} lanes and no "
                f"more than the {self.num_rows} rows of the data set; set batch.pairs accordingly"
            )


def lanes_of(rank: int, *, world_size: int, lanes: int) -> list[int]:
    """Return the lanes that a rank takes in each step, one lane for each micro-batch.

    `lanes` is the number of lanes, which are equal parts of the rows. The list has ceil(lanes / world_size) entries on
    every rank, so that all ranks process equally many micro-batches. An entry of -1 means an empty micro-batch, because
    no lane is left for it.
    """
    steps = -(-lanes // world_size)
    mine = range(rank, steps * world_size, world_size)
    return [lane if lane < lanes else -1 for lane in mine]


def row_permutation(count: int, *, seed: int, epoch: int, shard: int, row_group: int) -> NDArray[np.int64]:
    """Return the order in which an epoch takes the rows of a row group: [count], the indices of the stored rows."""
    return permutation(count, key=(seed, "rows", epoch, shard, row_group))


def permutation(count: int, *, key: tuple[int | str, ...]) -> NDArray[np.int64]:
    """Return a permutation of range(count) that depends only on `key`, not on numpy's version."""
    digest = hashlib.blake2b(canonical_json(list(key)), digest_size=8).digest()
    bits = np.uint64(int.from_bytes(digest, "little")) + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX[0]
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX[1]
    return np.argsort(bits ^ (bits >> np.uint64(31)), kind="stable")


def _flatten(tuples: Any) -> NDArray[np.int64]:
    return np.fromiter(chain.from_iterable(tuples), dtype=np.int64)
