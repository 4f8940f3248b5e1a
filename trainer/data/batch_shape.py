"""From the batch as papers state it (pairs or tokens a step) to lanes and micro-batches, by the data set's row lengths.

Never from the number of workers: the same data in the same order wherever it runs. The plan keeps the stated pace;
micro-batches are as small as still allows that, a step's worth of pairs behind on average. Cost: 0.1 s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset import Manifest, SplitName
from pipeline.units import count_of
from trainer.config import BatchConfig
from trainer.data.micro_batch import MicroBatchShape
from trainer.data.plan import PlanError

LARGEST_DERIVED_MICRO_BATCH = 32_768
"""Tokens: larger micro-batches gain no speed on one GPU and cost memory. batch.greatest_slot takes its place."""
_EASY_LANES = 8
_FULL_ROWS = 10
_DEVIATIONS = 6.0
_MULTIPLE = 8
_UNITS = 512
"""Lengths are told apart in so many units, rounded up: single tokens where rows are at most so long."""
_MANY_ROWS = 32
"""Micro-batches of so many longest rows leave free what micro-batches of any greater size do."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Lanes, micro-batches and what a step holds. Means are over many steps."""

    lanes: int
    """G: micro-batches of a step, one a lane."""
    micro_batch: MicroBatchShape
    """T, P, M."""
    pairs: Fraction
    """The plan's pace, pairs a step."""
    exact: bool
    """Every step holds exactly so many."""
    pairs_mean: float
    """Pairs a step: the pace, or less where batch.tokens_per_slot holds a little less."""
    pairs_least: int
    """No step holds fewer."""
    pairs_most: int
    """No step holds more."""
    tokens_mean: float
    """Real tokens a step."""
    steps_per_epoch: int
    """Steps in which every row is read once; the last one runs on into the next epoch."""

    @property
    def fill(self) -> float:
        """Share of the lanes x T tokens that is real."""
        return self.tokens_mean / (self.lanes * self.micro_batch.tokens)

    def describe(self) -> str:
        """Two lines for people."""
        digits = 0 if self.pairs_mean.is_integer() else 1
        return (
            f"batch: {'exactly ' if self.exact else ''}{self.pairs_mean:,.{digits}f} pairs a step (least "
            f"{self.pairs_least:,}, most {self.pairs_most:,}), {self.tokens_mean:,.0f} tokens, "
            f"{count_of(self.steps_per_epoch, 'step')} an epoch\n"
            f"plan: {count_of(self.lanes, 'lane')} (greatest number of workers), micro-batches of "
            f"{self.micro_batch.tokens:,} tokens, {count_of(self.micro_batch.pairs, 'pair')}, "
            f"{count_of(self.micro_batch.masked, 'masked position')}, {self.fill:.1%} full"
        )


class Lengths:
    """How rows of given lengths (counts by number of tokens, from 0) fill micro-batches, in random order."""

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self.longest = int(counts.nonzero()[0][-1])
        self.mean = float(counts @ np.arange(counts.size) / counts.sum())
        self._unit = -(-self.longest // _UNITS)
        lengths = -(-np.arange(self.longest + 1) // self._unit)
        self._shares: NDArray[np.float64] = np.bincount(lengths, counts[: self.longest + 1]) / counts.sum()
        length = np.arange(self._shares.size)
        self._mean, square = float(self._shares @ length), float(self._shares @ length**2)
        self.variation = square / self._mean**2 - 1
        """Square of the lengths' deviation as a share of their mean."""

    def pairs_in(self, tokens: int) -> float:
        """Mean pairs of a micro-batch that ends only where the next pair exceeds its tokens. At least one fits.

        The row that did not fit is the first of the next micro-batch, so that long ones come first: the fixed point of
        that.
        """
        size, longest = tokens // self._unit, self._shares.size - 1
        near = size if size < _MANY_ROWS * longest else size % longest + (_MANY_ROWS - 1) * longest
        fitting = self._fitting
        first = self._shares
        for _ in range(100):
            # inside[x]: rows of a micro-batch, of those that begin in its first near - longest + x units
            inside = np.convolve(first, fitting[near : near + 2 * longest + 1], mode="valid")
            before, first = first, self._shares * (inside[-1] - inside[::-1])
            if np.abs(first - before).max() < 1e-9:
                break
        return float(inside[-1] + (size - near) / self._mean)

    @cached_property
    def _fitting(self) -> NDArray[np.float64]:
        """Entry 2 x longest + n: rows that begin in n units behind a row's end, the one at 0 included; 0 before it."""
        longest = self._shares.size - 1
        begins = np.zeros((_MANY_ROWS + 3) * longest + 1)
        begins[2 * longest] = 1.0
        backwards = self._shares[:0:-1].copy()
        for place in range(2 * longest + 1, begins.size):
            begins[place] = begins[place - longest : place] @ backwards
        return np.cumsum(begins)

    def tokens_for(self, pairs: float) -> int:
        """Fewest tokens of micro-batches that keep the pace of `pairs` a micro-batch, behind by that number on average.

        By queueing theory (Kingman) that takes half the variation in pairs more than the pace.
        """
        wanted = pairs + self.variation / 2 - 1e-6
        low, high = self.longest - 1, max(1, math.ceil(pairs)) * self.longest  # which holds so many whatever comes
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.pairs_in(middle) >= wanted else (middle, high)
        return high


def derive_shape(manifest: Manifest, *, batch: BatchConfig, split: SplitName = "train") -> BatchShape:
    """Lanes and micro-batch shape for one split. PlanError names the setting that cannot be, and the remedy."""
    rows, tokens = manifest.num_rows(split), manifest.num_tokens(split)
    if rows == 0:
        raise PlanError(f"the data set holds no {split} rows; build it from more documents")
    lengths = Lengths(np.array(manifest.row_lengths(split), dtype=np.int64))
    stated = Fraction(batch.pairs) if batch.pairs is not None else Fraction((batch.tokens or 0) * rows, tokens)
    pairs = stated if batch.exact_pairs else min(stated, Fraction(rows))
    lanes = batch.lanes or _derive_lanes(lengths, pairs=pairs, batch=batch, longest=manifest.max_seq_length)
    lane_pairs = pairs / lanes
    name = f"batch.pairs={batch.pairs}" if batch.pairs is not None else f"batch.tokens={batch.tokens}"
    if lane_pairs < 1:
        raise PlanError(
            f"{name} is {float(pairs):,.1f} pairs a step, fewer than batch.lanes={lanes}, of which each holds one at "
            f"least; raise the batch or set batch.lanes to at most {max(1, int(pairs))}"
        )
    longest, most = manifest.max_seq_length, math.ceil(lane_pairs)
    needed = max(longest, _tokens_needed(lengths, pairs=lane_pairs, exact=batch.exact_pairs, longest=longest))
    held = float(lane_pairs) if batch.exact_pairs else lengths.pairs_in(batch.tokens_per_slot or needed)
    size = batch.tokens_per_slot or needed
    if size >= longest and (size < needed if batch.exact_pairs else held < 0.9 * lane_pairs):
        holds = f"holds about {max(1.0, held):,.1f} (mean length {lengths.mean:,.0f})"
        raise PlanError(
            f"{name} in batch.lanes={lanes} lanes is {float(lane_pairs):,.1f} pairs a micro-batch, but "
            f"batch.tokens_per_slot="
            f"{size} {'must hold them at any length' if batch.exact_pairs else holds}; set it to {needed} or leave it "
            f"out, or raise batch.lanes"
        )
    if not batch.exact_pairs:
        fitting = size / lengths.mean
        most = max(most, _round_up(fitting + _DEVIATIONS * math.sqrt(fitting * lengths.variation) + 1))
    masked = most * manifest.max_predictions
    if not batch.exact_pairs:
        expected = size * sum(shard.masked for shard in manifest.shards_of(split)) / (tokens * manifest.mask_sets)
        masked = max(manifest.max_predictions, min(masked, _round_up(expected + _DEVIATIONS * math.sqrt(expected))))
    mean = min(float(pairs), lanes * held)
    least = min(int(lane_pairs), size // longest, masked // manifest.max_predictions)
    return BatchShape(
        lanes=lanes,
        micro_batch=MicroBatchShape(tokens=size, pairs=most, masked=masked, max_seq_length=longest),
        pairs=pairs,
        exact=batch.exact_pairs,
        pairs_mean=mean,
        pairs_least=int(pairs) if batch.exact_pairs else lanes * least,
        pairs_most=int(pairs) if batch.exact_pairs else min(lanes * most, rows),
        tokens_mean=mean * tokens / rows,
        steps_per_epoch=math.ceil(rows / mean),
    )


def _derive_lanes(lengths: Lengths, *, pairs: Fraction, batch: BatchConfig, longest: int) -> int:
    """Lanes that fill micro-batches of the given size.

    Without one, a power of two: micro-batches of at most batch.greatest_slot tokens (null:
    LARGEST_DERIVED_MICRO_BATCH), and up to 8 lanes while they stay long enough to be full.
    """
    mean = lengths.longest if batch.exact_pairs else lengths.mean
    if batch.tokens_per_slot is not None:
        held = lengths.pairs_in(batch.tokens_per_slot) if not batch.exact_pairs else batch.tokens_per_slot // mean
        return max(1, min(math.ceil(0.99 * float(pairs) / max(1.0, held)), int(pairs)))
    lanes, step = 1, float(pairs) * mean
    greatest = max(batch.greatest_slot or LARGEST_DERIVED_MICRO_BATCH, _round_up(longest))
    while step / lanes > greatest:  # more than that is needed, so that the search below begins near its end
        lanes *= 2
    exact = batch.exact_pairs
    while lanes < pairs and _tokens_needed(lengths, pairs=pairs / lanes, exact=exact, longest=longest) > greatest:
        lanes *= 2
    while lanes < _EASY_LANES and step / (2 * lanes) >= _FULL_ROWS * lengths.longest:
        lanes *= 2
    return max(1, min(lanes, int(pairs)))


def _tokens_needed(lengths: Lengths, *, pairs: Fraction, exact: bool, longest: int) -> int:
    """Tokens of micro-batches that keep a pace of `pairs` each; `longest`: of the rows that the data set may have."""
    return math.ceil(pairs) * longest if exact else _round_up(lengths.tokens_for(float(pairs)))


def _round_up(value: float) -> int:
    """To a multiple of 8, which matrix products like."""
    return -(-math.ceil(value) // _MULTIPLE) * _MULTIPLE
