"""Micro-batches of pairs with given lengths."""

from __future__ import annotations

import numpy as np

from pipeline.dataset.manifest import Special
from trainer.data.micro_batch import NO_LABEL, MicroBatch

SPECIAL = Special(pad=0, unk=100, cls=101, sep=102, mask=103)


def make_micro_batch(lengths: list[int], *, masked: list[int] | None = None, labelled: bool = True) -> MicroBatch:
    """Pairs of the given lengths; `masked` positions a pair (default 1), from the pair's second token on."""
    masked = [1] * len(lengths) if masked is None else masked
    starts = np.cumsum([0, *lengths[:-1]])
    ids = np.arange(200, 200 + sum(lengths)).astype(np.uint16)
    positions = np.concatenate([start + 1 + np.arange(count) for start, count in zip(starts, masked, strict=True)])
    labels = ids[positions]
    ids[positions] = SPECIAL.mask
    count = len(lengths)
    return MicroBatch(
        input_ids=ids,
        lengths=np.array(lengths, np.int32),
        first_lengths=np.array(lengths, np.int32) // 2 + 1,
        masked_positions=positions.astype(np.int32),
        masked_labels=labels,
        nsp_labels=(np.arange(count) % 2 if labelled else np.full(count, NO_LABEL)).astype(np.int8),
        sources=np.zeros(count, np.uint16),
        shards=np.zeros(count, np.int32),
        row_groups=np.zeros(count, np.int32),
        rows=np.arange(count, dtype=np.int32),
        epochs=np.zeros(count, np.int32),
    )
