"""The micro-batch: whole sentence pairs, one after another, without padding. Plain numpy, no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

NO_LABEL = -1
"""The label of positions and pairs that have nothing to predict. Their weight in the loss is zero."""
MOST_TOKENS = 2**31 - 1
"""Maximum tokens of a micro-batch, because its positions are int32."""


@dataclass(frozen=True, slots=True)
class MicroBatchShape:
    """The limits of a micro-batch. Raises ValueError if a pair of the maximum length would not fit."""

    tokens: int
    """T, the maximum number of tokens."""
    pairs: int
    """P, the maximum number of sentence pairs."""
    masked: int
    """M, the maximum number of masked positions."""
    max_seq_length: int
    """Maximum length of a pair or a dummy sequence, in tokens."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise ValueError(f"micro-batch shape: {field.name}={value} must be at least 1")
        if self.tokens > MOST_TOKENS:
            raise ValueError(
                f"micro-batches of {self.tokens:,} tokens exceed the maximum of {MOST_TOKENS:,}; lower the "
                f"batch or batch.tokens_per_slot, or raise batch.lanes"
            )
        if self.tokens < self.max_seq_length:
            raise ValueError(
                f"batch.tokens_per_slot={self.tokens} is below the data set's max_seq_length={self.max_seq_length}: a "
                f"pair of that length would not fit; raise it to at least {self.max_seq_length}"
            )

    @property
    def sequences(self) -> int:
        """The number of sequences in a micro-batch that is padded to a constant shape.

        It is the maximum number of pairs, plus the number of dummy sequences (sequences of padding) that a micro-batch
        needs if it has no pairs at all.
        """
        return self.pairs + -(-self.tokens // self.max_seq_length)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch: p >= 1 pairs with n tokens and m masked positions in total."""

    input_ids: NDArray[np.integer]
    """[n] uint16 or int32: token ids of the pairs, one pair after another, with masks applied."""
    lengths: NDArray[np.int32]
    """[p] number of tokens of each pair."""
    first_lengths: NDArray[np.int32]
    """[p] number of tokens of each pair's first segment, [CLS] and [SEP] included."""
    masked_positions: NDArray[np.int32]
    """[m] indices of the masked positions among the n tokens, ascending."""
    masked_labels: NDArray[np.integer]
    """[m] token ids at the masked positions before masking."""
    nsp_labels: NDArray[np.int8]
    """[p] 0 = next, 1 = not next, NO_LABEL if there is no second segment."""
    sources: NDArray[np.uint16]
    """[p] index of the first segment's source in the manifest's `sources`."""
    shards: NDArray[np.int32]
    """[p] index of the row's shard (file) among the train or the validation shards, in the manifest's order."""
    row_groups: NDArray[np.int32]
    """[p] index of the row group in the shard."""
    rows: NDArray[np.int32]
    """[p] index of the row in the row group, as stored."""
    epochs: NDArray[np.int32]
    """[p] epoch in which the row is read. A micro-batch may continue into the next epoch."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens, n."""
        return int(self.input_ids.size)

    @property
    def num_pairs(self) -> int:
        """Number of pairs, p."""
        return int(self.lengths.size)

    @property
    def num_masked(self) -> int:
        """Number of masked positions, m."""
        return int(self.masked_positions.size)

    @property
    def num_labelled(self) -> int:
        """Number of pairs with a next-sentence label."""
        return int(np.count_nonzero(self.nsp_labels != NO_LABEL))

    @property
    def starts(self) -> NDArray[np.int64]:
        """[p] index of each pair's first token, [CLS]."""
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    @property
    def masked_sources(self) -> NDArray[np.uint16]:
        """[m] source (corpus) of the pair to which each masked position belongs, as an index in the manifest's
        `sources`."""
        pairs = np.searchsorted(self.starts, self.masked_positions, side="right") - 1
        return self.sources[pairs]

    @property
    def position_ids(self) -> NDArray[np.int64]:
        """[n] position of each token in its pair, from 0."""
        return np.arange(self.num_tokens) - np.repeat(self.starts, self.lengths)

    @property
    def segment_ids(self) -> NDArray[np.int64]:
        """[n] 0 for tokens of a first segment, 1 for tokens of a second segment."""
        second = np.arange(self.num_tokens) >= np.repeat(self.starts + self.first_lengths, self.lengths)
        return second.astype(np.int64)
