"""From the batch as papers state it (pairs or tokens a step) to lanes and slots, by the data set's mean lengths.

Never from the number of workers: the same data in the same order wherever it runs. A slot leaves about half a
length-weighted mean pair free; the shape counts on it, so that steps hold the stated batch on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.manifest import Manifest, SplitName
from trainer.config import BatchConfig
from trainer.plan import PlanError
from trainer.slots import SlotShape

GREATEST_DERIVED_SLOT = 32_768
"""Tokens: larger micro-batches gain no speed on one GPU and cost memory. batch.greatest_slot takes its place."""
_EASY_LANES = 8
_FULL_SLOT_ROWS = 10
_DEVIATIONS = 6.0
_SHORTEST_ROW = 5
_MULTIPLE = 8


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Lanes, slots and what a step holds. Means are expectations; the last steps of an epoch may hold fewer."""

    lanes: int
    """G: slots of a step, one a lane."""
    slot: SlotShape
    """T, P, M."""
    exact_pairs: int | None
    """Pairs of every step, in exact mode."""
    pairs_mean: float
    """Pairs a step."""
    pairs_least: int
    """No full step holds fewer."""
    pairs_most: int
    """No step holds more."""
    tokens_mean: float
    """Real tokens a step."""
    steps_per_epoch: int
    """Steps in which every row is read once."""

    @property
    def fill(self) -> float:
        """Share of the lanes x T tokens that is real."""
        return self.tokens_mean / (self.lanes * self.slot.tokens)

    def describe(self) -> str:
        """Two lines for people."""
        exact = "exactly " if self.exact_pairs is not None else ""
        return (
            f"batch: {exact}{self.pairs_mean:,.0f} pairs a step (least {self.pairs_least:,}, "
            f"most {self.pairs_most:,}), {self.tokens_mean:,.0f} tokens, {self.steps_per_epoch:,} steps an epoch\n"
            f"plan: {self.lanes} lanes (greatest number of workers), slots of {self.slot.tokens:,} tokens, "
            f"{self.slot.pairs:,} pairs, {self.slot.masked:,} masked positions, {self.fill:.1%} full"
        )


@dataclass(frozen=True, slots=True)
class _Lengths:
    rows: int
    mean: float
    longest: int
    masked_mean: float
    masked_most: int

    @property
    def rest(self) -> float:
        """Tokens that a slot leaves free: E[l^2] / 2 E[l], with E[l^2] / E[l] taken as (mean + longest) / 2."""
        return (self.mean + self.longest) / 4

    def pairs_in(self, tokens: int, *, most: float = math.inf) -> float:
        """Expected pairs of a slot: of a normal number between what always fits and `most`.

        Its deviation is the one that `rest` implies: E[l^2] - E[l]^2 = mean (longest - mean) / 2.
        """
        least = tokens // self.longest
        if most <= least:
            return most
        mean = max(1.0, (tokens - self.rest) / self.mean)
        deviation = math.sqrt(mean * (self.longest - self.mean) / (2 * self.mean))
        return least + _excess(mean - least, deviation) - _excess(mean - most, deviation)


def derive_shape(manifest: Manifest, *, batch: BatchConfig, split: SplitName = "train") -> BatchShape:
    """Lanes and slot shape for one split. PlanError names the setting that cannot be, and the remedy."""
    shards = manifest.shards_of(split)
    rows = manifest.num_rows(split)
    if rows == 0:
        raise PlanError(f"the data set holds no {split} rows; build it from more documents")
    lengths = _Lengths(
        rows=rows,
        mean=manifest.num_tokens(split) / rows,
        longest=manifest.max_seq_length,
        masked_mean=sum(shard.masked for shard in shards) / (rows * manifest.mask_sets),
        masked_most=manifest.max_predictions,
    )
    if batch.exact_pairs:
        assert batch.pairs is not None
        return _exact_shape(lengths, batch=batch, pairs=batch.pairs)
    return _mean_shape(lengths, batch=batch)


def _mean_shape(lengths: _Lengths, *, batch: BatchConfig) -> BatchShape:
    pairs = float(batch.pairs) if batch.pairs is not None else (batch.tokens or 0) / lengths.mean
    stated = f"batch.pairs={batch.pairs}" if batch.pairs is not None else f"batch.tokens={batch.tokens}"
    lanes, tokens = batch.lanes, batch.tokens_per_slot
    if lanes is None:
        lanes = _derive_lanes(lengths, pairs=pairs, tokens=tokens, greatest=batch.greatest_slot)
    if pairs < lanes:
        raise PlanError(
            f"{stated} is {pairs:,.1f} pairs a step, fewer than batch.lanes={lanes}, of which each holds one at least; "
            f"raise the batch or set batch.lanes to at most {max(1, int(pairs))}"
        )
    share = pairs / lanes
    if tokens is None:
        tokens = max(_round_up(share * lengths.mean + lengths.rest), lengths.longest)
    slot_pairs = lengths.pairs_in(tokens)
    if slot_pairs < 0.9 * share and tokens >= lengths.longest:
        raise PlanError(
            f"{stated} in batch.lanes={lanes} lanes is {share:,.1f} pairs a slot, but batch.tokens_per_slot="
            f"{tokens} holds about {max(1.0, slot_pairs):,.1f} (mean length {lengths.mean:,.0f}); set it to "
            f"{_round_up(share * lengths.mean + lengths.rest)} or leave it out, or raise batch.lanes"
        )
    most = _most_pairs(lengths, tokens=tokens)
    if slot_pairs > 1.02 * share:  # more tokens than the batch needs: let pairs end the slots
        most = next(
            few for few in range(math.ceil(share), most + 1) if lengths.pairs_in(tokens, most=few) > 0.99 * share
        )
    masked = _most_masked(lengths, tokens=tokens, pairs=most)
    slot = SlotShape(tokens=tokens, pairs=most, masked=masked, max_seq_length=lengths.longest)
    held = lengths.pairs_in(tokens, most=most)
    steps = math.ceil(lengths.rows / (lanes * held))
    mean = min(lanes * held, lengths.rows)
    least = min(tokens // lengths.longest, most, max(1, masked // lengths.masked_most))
    return BatchShape(
        lanes=lanes,
        slot=slot,
        exact_pairs=None,
        pairs_mean=mean,
        pairs_least=min(lanes * least, lengths.rows),
        pairs_most=min(lanes * most, lengths.rows),
        tokens_mean=mean * lengths.mean,
        steps_per_epoch=steps,
    )


def _exact_shape(lengths: _Lengths, *, batch: BatchConfig, pairs: int) -> BatchShape:
    lanes, tokens = batch.lanes, batch.tokens_per_slot
    if lanes is None:
        full = _Lengths(lengths.rows, lengths.longest, lengths.longest, lengths.masked_mean, lengths.masked_most)
        lanes = _derive_lanes(full, pairs=pairs, tokens=tokens, greatest=batch.greatest_slot)
    most = -(-pairs // lanes)
    slot = SlotShape(
        tokens=tokens if tokens is not None else most * lengths.longest,
        pairs=most,
        masked=most * lengths.masked_most,
        max_seq_length=lengths.longest,
    )
    return BatchShape(
        lanes=lanes,
        slot=slot,
        exact_pairs=pairs,
        pairs_mean=pairs,
        pairs_least=pairs,
        pairs_most=pairs,
        tokens_mean=pairs * lengths.mean,
        steps_per_epoch=math.ceil(lengths.rows / pairs),
    )


def _derive_lanes(lengths: _Lengths, *, pairs: float, tokens: int | None, greatest: int | None) -> int:
    """Lanes that fill the given slots; without, a power of two: slots of at most `greatest` tokens (None:
    GREATEST_DERIVED_SLOT), and up to 8 lanes while slots stay long enough to be full."""
    step = pairs * lengths.mean
    if tokens is not None:
        slot_pairs = lengths.pairs_in(tokens)
        lanes = int(pairs / slot_pairs)
        if lanes * slot_pairs < 0.95 * pairs:
            lanes += 1
    else:
        lanes = 1
        while step / lanes + lengths.rest > max(greatest or GREATEST_DERIVED_SLOT, lengths.longest):
            lanes *= 2
        while lanes < _EASY_LANES and step / (2 * lanes) >= _FULL_SLOT_ROWS * lengths.longest:
            lanes *= 2
    return max(1, min(lanes, int(pairs), lengths.rows))


def _most_pairs(lengths: _Lengths, *, tokens: int) -> int:
    """Pairs that a slot of `tokens` does not exceed in six deviations, whatever the lengths' distribution."""
    pairs = tokens / lengths.mean
    shortest = min(_SHORTEST_ROW, lengths.mean)
    deviation = math.sqrt((lengths.longest - lengths.mean) * (lengths.mean - shortest)) / lengths.mean
    return _round_up(pairs + _DEVIATIONS * math.sqrt(pairs) * deviation + 1)


def _most_masked(lengths: _Lengths, *, tokens: int, pairs: int) -> int:
    expected = tokens / lengths.mean * lengths.masked_mean
    most = _round_up(expected + _DEVIATIONS * math.sqrt(expected))
    return max(lengths.masked_most, min(most, pairs * lengths.masked_most))


def _excess(mean: float, deviation: float) -> float:
    """E[max(0, X)] of a normal X."""
    if deviation == 0 or math.isinf(mean):
        return max(0.0, mean)
    place = mean / deviation
    density = math.exp(-place * place / 2) / math.sqrt(2 * math.pi)
    return mean * (1 + math.erf(place / math.sqrt(2))) / 2 + deviation * density


def _round_up(value: float) -> int:
    """To a multiple of 8, which matrix products like."""
    return -(-math.ceil(value) // _MULTIPLE) * _MULTIPLE
