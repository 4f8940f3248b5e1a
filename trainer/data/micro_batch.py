"""A micro-batch: sentence pairs packed one after another, never split. Plain numpy, no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

NO_LABEL = -1
"""Stands in the labels where there is nothing to predict; the weight there is zero."""
MOST_TOKENS = 2**31 - 1
"""Places in a micro-batch are int32."""


@dataclass(frozen=True, slots=True)
class MicroBatchShape:
    """Most that a micro-batch holds. ValueError where not even one pair of the greatest length would fit."""

    tokens: int
    """T, tokens."""
    pairs: int
    """P, sentence pairs."""
    masked: int
    """M, masked positions."""
    max_seq_length: int
    """No pair, and no dummy sequence, is longer."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise ValueError(f"micro-batch shape: {field.name}={value} must be at least 1")
        if self.tokens > MOST_TOKENS:
            raise ValueError(
                f"micro-batches of {self.tokens:,} tokens exceed the {MOST_TOKENS:,} that can be numbered; lower the "
                f"batch or batch.tokens_per_slot, or raise batch.lanes"
            )
        if self.tokens < self.max_seq_length:
            raise ValueError(
                f"batch.tokens_per_slot={self.tokens} is below the data set's max_seq_length={self.max_seq_length}: a "
                f"pair of that length fits no micro-batch; raise it to at least {self.max_seq_length}"
            )

    @property
    def sequences(self) -> int:
        """Sequences of a batch with constant shapes: the pairs, and the dummies that any rest of T tokens may take."""
        return self.pairs + -(-self.tokens // self.max_seq_length)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The pairs of one micro-batch, p >= 1 of them with n tokens and m masked positions in all."""

    input_ids: NDArray[np.integer]
    """[n] uint16 or int32: the pairs' tokens one after another, with the mask set's inputs in place."""
    lengths: NDArray[np.int32]
    """[p] tokens of each pair."""
    first_lengths: NDArray[np.int32]
    """[p] tokens of each pair's first segment, [CLS] and [SEP] included."""
    masked_positions: NDArray[np.int32]
    """[m] index into the n tokens, ascending."""
    masked_labels: NDArray[np.integer]
    """[m] ids that stood there before masking."""
    nsp_labels: NDArray[np.int8]
    """[p] 0 = next, 1 = not, NO_LABEL where there is no second segment."""
    sources: NDArray[np.uint16]
    """[p] source of the first segment, an index into the manifest's `sources`."""
    shards: NDArray[np.int32]
    """[p] index of each row's shard among those of its split, in the manifest's order."""
    row_groups: NDArray[np.int32]
    """[p] its row group in the shard."""
    rows: NDArray[np.int32]
    """[p] its row in the row group, as stored."""
    epochs: NDArray[np.int32]
    """[p] the epoch that it is of: a micro-batch may run on into the next."""

    @property
    def num_tokens(self) -> int:
        """n"""
        return int(self.input_ids.size)

    @property
    def num_pairs(self) -> int:
        """p"""
        return int(self.lengths.size)

    @property
    def num_masked(self) -> int:
        """m"""
        return int(self.masked_positions.size)

    @property
    def num_labelled(self) -> int:
        """Pairs with a next-sentence label."""
        return int(np.count_nonzero(self.nsp_labels != NO_LABEL))

    @property
    def starts(self) -> NDArray[np.int64]:
        """[p] index of each pair's [CLS]."""
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    @property
    def masked_sources(self) -> NDArray[np.uint16]:
        """[m] source of the pair that each masked position stands in."""
        pairs = np.searchsorted(self.starts, self.masked_positions, side="right") - 1
        return self.sources[pairs]

    @property
    def position_ids(self) -> NDArray[np.int64]:
        """[n] place in the pair, from 0."""
        return np.arange(self.num_tokens) - np.repeat(self.starts, self.lengths)

    @property
    def segment_ids(self) -> NDArray[np.int64]:
        """[n] 0 in the first segment, 1 in the second."""
        second = np.arange(self.num_tokens) >= np.repeat(self.starts + self.first_lengths, self.lengths)
        return second.astype(np.int64)
