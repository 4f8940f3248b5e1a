"""Lays out micro-batches as the model's input tensors.

With constant shapes all batches have the same tensor sizes, so that the model is compiled only once. Dummy tokens and
pairs of weight zero fill the unused places. Cost: 25 bytes are copied per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.dataset import Special
from trainer.data import NO_LABEL, MicroBatch, MicroBatchShape

__all__ = ["NO_LABEL", "Batch", "MicroBatch", "MicroBatchShape", "to_batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch on a device: T tokens in S sequences, P sentence pairs, M masked positions.

    With constant shapes, T, S, P and M are the maxima in MicroBatchShape. Otherwise they are the counts of this
    micro-batch, but never 0. Each pair is one sequence. The pairs come first, then dummy sequences of [PAD], then empty
    sequences. Dummy pairs and dummy masked positions, of weight zero, fill the unused places.
    """

    input_ids: Tensor
    """int64 [T]: token ids, with masks applied."""
    segment_ids: Tensor
    """int64 [T]: 1 for tokens of a second segment, 0 for all others."""
    position_ids: Tensor
    """int64 [T]: position of each token in its sequence, from 0."""
    offsets: Tensor
    """int32 [S + 1]: cumulative lengths of the sequences, from 0 to T."""
    cls_positions: Tensor
    """int64 [P]: index of each pair's [CLS] among the tokens; 0 for dummies."""
    masked_positions: Tensor
    """int64 [M]: index of each masked token among the tokens; 0 for dummies."""
    masked_labels: Tensor
    """int64 [M]: the original id; NO_LABEL for dummies."""
    masked_weights: Tensor
    """float32 [M]: 1, or 0 for dummies."""
    nsp_labels: Tensor
    """int64 [P]: 0 = next, 1 = not next, NO_LABEL for dummies and for pairs without a next-sentence label."""
    nsp_weights: Tensor
    """float32 [P]: 1, or 0 without a label."""
    max_length: int
    """Upper bound of the sequence lengths; with constant shapes the data set's max_seq_length."""
    num_tokens: int
    """Number of tokens without dummies."""
    num_pairs: int
    """Number of pairs without dummies."""
    num_masked: int
    """Number of masked positions without dummies."""
    num_labelled: int
    """Number of pairs with a next-sentence label."""


def to_batch(
    micro_batch: MicroBatch | None,
    *,
    shape: MicroBatchShape,
    special: Special,
    constant_shapes: bool,
    device: torch.device | str = "cpu",
) -> Batch:
    """Return a micro-batch laid out as tensors on `device`.

    If `micro_batch` is None (no data), the batch has one dummy pair of weight zero. If the micro-batch has no masked
    position, it gets a dummy position of weight zero. So both heads of the model always run. The micro-batch must not
    exceed the limits in `shape`. With `constant_shapes`, these limits are also the sizes of the tensors. Copies to a
    CUDA device go through pinned memory and are asynchronous.
    """
    target = torch.device(device)
    tokens = pairs = masked = 0
    if micro_batch is not None:
        tokens, pairs, masked = micro_batch.num_tokens, micro_batch.num_pairs, micro_batch.num_masked
    assert tokens <= shape.tokens
    assert pairs <= shape.pairs
    assert masked <= shape.masked
    if constant_shapes:
        size, width, heads, sequences = shape.tokens, shape.pairs, shape.masked, shape.sequences
    else:
        size, width, heads = max(tokens, 2), max(pairs, 1), max(masked, 1)
        sequences = width

    pinned = target.type == "cuda"
    whole = torch.empty(3 * size + 2 * heads + 2 * width, dtype=torch.int64, pin_memory=pinned)
    weights = torch.empty(heads + width, dtype=torch.float32, pin_memory=pinned)
    offsets = torch.empty(sequences + 1, dtype=torch.int32, pin_memory=pinned)
    parts = (size, size, size, heads, heads, width, width)
    _fill(micro_batch, whole.numpy(), parts=parts, special=special, longest=shape.max_seq_length)
    _fill_weights(micro_batch, weights.numpy(), heads=heads)
    _fill_offsets(micro_batch, offsets.numpy(), size=size, longest=shape.max_seq_length)
    if pinned:
        whole, weights, offsets = (part.to(target, non_blocking=True) for part in (whole, weights, offsets))

    bounds = [0, *np.cumsum(parts).tolist()]
    views = [whole[start:stop] for start, stop in pairwise(bounds)]
    input_ids, segment_ids, position_ids, masked_positions, masked_labels, cls_positions, nsp_labels = views
    longest = int(micro_batch.lengths.max()) if micro_batch is not None else 2
    return Batch(
        input_ids=input_ids,
        segment_ids=segment_ids,
        position_ids=position_ids,
        offsets=offsets,
        cls_positions=cls_positions,
        masked_positions=masked_positions,
        masked_labels=masked_labels,
        masked_weights=weights[:heads],
        nsp_labels=nsp_labels,
        nsp_weights=weights[heads:],
        max_length=shape.max_seq_length if constant_shapes else longest,
        num_tokens=tokens,
        num_pairs=pairs,
        num_masked=masked,
        num_labelled=micro_batch.num_labelled if micro_batch is not None else 0,
    )


def _fill(
    micro_batch: MicroBatch | None, whole: NDArray[np.int64], *, parts: tuple[int, ...], special: Special, longest: int
) -> None:
    ids, segments, places, masked, labels, cls, nsp = np.split(whole, np.cumsum(parts)[:-1])
    tokens = pairs = heads = 0
    if micro_batch is not None:
        tokens, pairs, heads = micro_batch.num_tokens, micro_batch.num_pairs, micro_batch.num_masked
        ids[:tokens] = micro_batch.input_ids
        segments[:tokens] = micro_batch.segment_ids
        places[:tokens] = micro_batch.position_ids
        masked[:heads], labels[:heads] = micro_batch.masked_positions, micro_batch.masked_labels
        cls[:pairs], nsp[:pairs] = micro_batch.starts, micro_batch.nsp_labels
    ids[tokens:], segments[tokens:] = special.pad, 0
    places[tokens:] = np.arange(ids.size - tokens) % longest
    masked[heads:], labels[heads:] = 0, NO_LABEL
    cls[pairs:], nsp[pairs:] = 0, NO_LABEL
    if micro_batch is None:
        ids[0], ids[1] = special.cls, special.sep


def _fill_weights(micro_batch: MicroBatch | None, weights: NDArray[np.float32], *, heads: int) -> None:
    weights[:] = 0.0
    if micro_batch is not None:
        weights[: micro_batch.num_masked] = 1.0
        weights[heads : heads + micro_batch.num_pairs] = micro_batch.nsp_labels != NO_LABEL


def _fill_offsets(micro_batch: MicroBatch | None, offsets: NDArray[np.int32], *, size: int, longest: int) -> None:
    """Write the bounds of all sequences into `offsets`: 0, the end of each pair, then the end of each dummy sequence.

    A dummy sequence is `longest` tokens of padding. Dummy sequences fill the batch up to `size` tokens, so the last
    dummy sequence may be shorter. All sequences after it are empty.
    """
    offsets[0] = 0
    pairs = 0
    if micro_batch is not None:
        pairs = micro_batch.num_pairs
        np.cumsum(micro_batch.lengths, out=offsets[1 : pairs + 1])
    end = int(offsets[pairs])
    dummies = end + longest * np.arange(1, offsets.size - pairs)
    offsets[pairs + 1 :] = np.minimum(dummies, size)
