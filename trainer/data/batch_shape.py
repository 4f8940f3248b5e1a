"""Derives the number of lanes and the limits of micro-batches from the stated batch and the data set's row lengths.

The batch is stated in pairs or tokens per step. Lanes are equal parts of the rows, and a step takes one micro-batch
from each lane. The number of workers plays no part, so the data and their order are the same on any machines.
Micro-batches are as small as the stated batch allows. Because row lengths vary, some micro-batches take fewer pairs
than the stated batch asks for, and later micro-batches take more. So a lane lags behind its share, on average by as
many pairs as it gives in one step. Cost: 0.1 s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset import Manifest
from pipeline.units import count_of
from trainer.config import BatchConfig, MaskingConfig
from trainer.data.micro_batch import MicroBatchShape
from trainer.data.plan import PlanError

LARGEST_DERIVED_MICRO_BATCH = 32_768
"""Maximum tokens of a derived micro-batch, unless batch.greatest_slot is set. Larger micro-batches gain no speed on one
GPU and cost memory."""
_PREFERRED_LANES = 8
_WELL_FILLED_ROWS = 10
_DEVIATIONS = 6.0
_MULTIPLE = 8
_MAX_BINS = 512
"""Maximum number of length bins. If no row has more than this many tokens, a bin is one token."""
_MANY_ROWS = 32
"""If a micro-batch has room for this many of the longest rows, the mean number of unused tokens no longer depends on
the size of the micro-batch."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The number of lanes, the limits of a micro-batch, and what a step contains.

    `pairs_mean` and `tokens_mean` are averages over many steps.
    """

    lanes: int
    """G, the number of lanes (equal parts of the rows). A step takes one micro-batch from each lane."""
    micro_batch: MicroBatchShape
    """The limits of a micro-batch: T tokens, P pairs and M masked positions."""
    pairs: Fraction
    """The number of pairs per step that the plan aims at."""
    exact: bool
    """Whether every step holds exactly `pairs` pairs."""
    pairs_mean: float
    """Mean pairs per step: `pairs`, or slightly less if batch.tokens_per_slot is too small for `pairs`."""
    pairs_least: int
    """Lower bound of a step's pairs."""
    pairs_most: int
    """Upper bound of a step's pairs."""
    tokens_mean: float
    """Mean tokens per step, without padding."""
    steps_per_epoch: int
    """How many steps it takes to read every row once. The last step continues into the next epoch."""

    @property
    def fill(self) -> float:
        """The share of the T token places of a micro-batch that are used, on average."""
        return self.tokens_mean / (self.lanes * self.micro_batch.tokens)

    def describe(self) -> str:
        """Return two lines of text that tell the user the batch and the plan."""
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
    """The distribution of row lengths. It predicts how rows in random order fill micro-batches.

    `counts[n]` is the number of rows with n tokens.
    """

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self.longest = int(counts.nonzero()[0][-1])
        self.mean = float(counts @ np.arange(counts.size) / counts.sum())
        self._bin_width = -(-self.longest // _MAX_BINS)
        lengths = -(-np.arange(self.longest + 1) // self._bin_width)
        self._shares: NDArray[np.float64] = np.bincount(lengths, counts[: self.longest + 1]) / counts.sum()
        length = np.arange(self._shares.size)
        self._mean, square = float(self._shares @ length), float(self._shares @ length**2)
        self.variation = square / self._mean**2 - 1
        """Squared coefficient of variation of the lengths."""

    def pairs_in(self, tokens: int) -> float:
        """Return the mean number of pairs in a micro-batch of at most `tokens` tokens.

        `tokens` must not be less than the length of the longest pair. A pair that does not fit begins the next
        micro-batch, so the first pair of a micro-batch tends to be long. The distribution of the first pair's length is
        found by iteration to a fixed point.
        """
        size, longest = tokens // self._bin_width, self._shares.size - 1
        near = size if size < _MANY_ROWS * longest else size % longest + (_MANY_ROWS - 1) * longest
        rows_begun = self._rows_begun
        first = self._shares
        for _ in range(100):
            # inside[x]: mean number of rows that end within the first (near - longest + x) bins of a micro-batch
            inside = np.convolve(first, rows_begun[near : near + 2 * longest + 1], mode="valid")
            before, first = first, self._shares * (inside[-1] - inside[::-1])
            if np.abs(first - before).max() < 1e-9:
                break
        return float(inside[-1] + (size - near) / self._mean)

    @cached_property
    def _rows_begun(self) -> NDArray[np.float64]:
        """Return the mean number of rows that begin at most n bins after the end of a row, for every n from -2 x
        longest on.

        Lengths are counted in bins, and `longest` is the length of the longest row. The number for n is at index 2 x
        longest + n. It is 0 if n is negative. It is 1 for n = 0, because the next row begins exactly where a row ends.
        """
        longest = self._shares.size - 1
        begins = np.zeros((_MANY_ROWS + 3) * longest + 1)
        begins[2 * longest] = 1.0
        backwards = self._shares[:0:-1].copy()
        for place in range(2 * longest + 1, begins.size):
            begins[place] = begins[place - longest : place] @ backwards
        return np.cumsum(begins)

    def tokens_for(self, pairs: float) -> int:
        """Return the smallest token limit with which a lane's micro-batches take `pairs` pairs each, on average over
        many steps.

        The limit leaves some room. A micro-batch of long rows takes fewer pairs, so later micro-batches must take more.
        """
        # After a micro-batch of long rows a lane lags: it has given fewer pairs than are due. Later micro-batches must
        # take more. By queueing theory (Kingman), if micro-batches have room for variation / 2 pairs more than `pairs`
        # on average, the mean lag is `pairs` pairs, which is accepted.
        wanted = pairs + self.variation / 2 - 1e-6
        low, high = self.longest - 1, max(1, math.ceil(pairs)) * self.longest  # `high` has room for any `pairs` pairs
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.pairs_in(middle) >= wanted else (middle, high)
        return high


def derive_shape(
    manifest: Manifest, *, batch: BatchConfig, masking: MaskingConfig | None = None, every_token: bool = False
) -> BatchShape:
    """Return the BatchShape (lanes, micro-batch limits, contents of a step) for the batch settings `batch`.

    With `masking.source=drawn` micro-batches have room for the masks that are drawn, and for the stored ones, which
    evaluation uses. With `every_token`, they have room for a prediction at each token.

    Lanes and limits are derived from the lengths of the training rows. If the settings do not fit the data set, raises
    PlanError, which names the setting and a remedy.
    """
    rows, tokens = manifest.num_rows("train"), manifest.num_tokens("train")
    if rows == 0:
        raise PlanError("the data set holds no train rows; build it from more documents")
    lengths = Lengths(np.array(manifest.row_lengths("train"), dtype=np.int64))
    stated = Fraction(batch.pairs) if batch.pairs is not None else Fraction((batch.tokens or 0) * rows, tokens)
    pairs = stated if batch.exact_pairs else min(stated, Fraction(rows))
    lanes = batch.lanes or _derive_lanes(lengths, pairs=pairs, batch=batch, longest=manifest.max_seq_length)
    lane_pairs = pairs / lanes
    name = f"batch.pairs={batch.pairs}" if batch.pairs is not None else f"batch.tokens={batch.tokens}"
    if lane_pairs < 1:
        raise PlanError(
            f"{name} is {float(pairs):,.1f} pairs a step, fewer than batch.lanes={lanes}, each of which needs at least "
            f"one; raise the batch or set batch.lanes to at most {max(1, int(pairs))}"
        )
    longest, most = manifest.max_seq_length, math.ceil(lane_pairs)
    needed = max(longest, _tokens_needed(lengths, pairs=lane_pairs, exact=batch.exact_pairs, longest=longest))
    held = float(lane_pairs) if batch.exact_pairs else lengths.pairs_in(batch.tokens_per_slot or needed)
    size = batch.tokens_per_slot or needed
    if size >= longest and (size < needed if batch.exact_pairs else held < 0.9 * lane_pairs):
        holds = f"holds about {max(1.0, held):,.1f} (mean length {lengths.mean:,.0f})"
        raise PlanError(
            f"{name} in batch.lanes={lanes} lanes is {float(lane_pairs):,.1f} pairs a micro-batch, but "
            f"batch.tokens_per_slot={size} {'must hold them at any length' if batch.exact_pairs else holds}; "
            f"set it to {needed} or leave it out, or raise batch.lanes"
        )
    if not batch.exact_pairs:
        mean_rows = size / lengths.mean
        most = max(most, _round_up(mean_rows + _DEVIATIONS * math.sqrt(mean_rows * lengths.variation) + 1))
    predictions, total = manifest.max_predictions, sum(shard.masked for shard in manifest.shards_of("train"))
    share = total / (tokens * manifest.mask_sets)
    if masking is not None and masking.source == "drawn":
        counts, most_masked = np.array(manifest.row_lengths("train")), masking.max_predictions(longest)
        drawn = np.clip(np.rint(masking.greatest_rate * np.arange(counts.size)), 1, most_masked)
        share, predictions = max(share, float(counts @ drawn) / tokens), max(predictions, most_masked)
    masked = most * predictions
    if not batch.exact_pairs:
        expected = size * share
        masked = max(predictions, min(masked, _round_up(expected + _DEVIATIONS * math.sqrt(expected))))
    masked = max(masked, size) if every_token else masked
    mean = min(float(pairs), lanes * held)
    least = min(int(lane_pairs), size // longest, masked // predictions)
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
    """Return the number of lanes (equal parts of the rows, each of which gives one micro-batch to a step).

    `pairs` is the number of pairs per step, and `longest` is the data set's `max_seq_length`. If
    `batch.tokens_per_slot` is set, it is the size of a micro-batch, and there are as many lanes as a step then needs.

    If `batch.tokens_per_slot` is null, the number of lanes is a power of two, but at most `pairs`. It is large enough
    that no micro-batch needs more than `batch.greatest_slot` tokens (null: LARGEST_DERIVED_MICRO_BATCH). If this gives
    fewer than 8 lanes, the number is doubled, up to 8, as long as a micro-batch still holds many rows.
    """
    mean = lengths.longest if batch.exact_pairs else lengths.mean
    if batch.tokens_per_slot is not None:
        held = lengths.pairs_in(batch.tokens_per_slot) if not batch.exact_pairs else batch.tokens_per_slot // mean
        return max(1, min(math.ceil(0.99 * float(pairs) / max(1.0, held)), int(pairs)))
    lanes, step = 1, float(pairs) * mean
    max_tokens = max(batch.greatest_slot or LARGEST_DERIVED_MICRO_BATCH, _round_up(longest))
    while step / lanes > max_tokens:  # gives a lower bound, so that the search below is short
        lanes *= 2
    exact = batch.exact_pairs
    while lanes < pairs and _tokens_needed(lengths, pairs=pairs / lanes, exact=exact, longest=longest) > max_tokens:
        lanes *= 2
    while lanes < _PREFERRED_LANES and step / (2 * lanes) >= _WELL_FILLED_ROWS * lengths.longest:
        lanes *= 2
    return max(1, min(lanes, int(pairs)))


def _tokens_needed(lengths: Lengths, *, pairs: Fraction, exact: bool, longest: int) -> int:
    """Return the token limit that a lane's micro-batches need to take `pairs` pairs each.

    If `exact`, every micro-batch has room for `pairs` pairs of any length. Otherwise micro-batches take `pairs` pairs
    on average. `longest` is the data set's `max_seq_length`.
    """
    return math.ceil(pairs) * longest if exact else _round_up(lengths.tokens_for(float(pairs)))


def _round_up(value: float) -> int:
    """Return `value` rounded up to a multiple of 8, which matrix products prefer."""
    return -(-math.ceil(value) // _MULTIPLE) * _MULTIPLE
