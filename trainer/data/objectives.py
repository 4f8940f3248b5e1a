"""Turns micro-batches as stored into those of another objective.

Invariant: rows, their order and their tokens stay the same; only what is predicted changes, so counts of targets are
true for loss, metrics and evaluation alike. Cost: a copy of the token ids for left_to_right, nothing for the others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainer.config import Objective
from trainer.data.micro_batch import NO_LABEL, MicroBatch


def apply_objective(micro_batch: MicroBatch, *, objective: Objective) -> MicroBatch:
    """Return `micro_batch` with the targets of `objective`.

    Without next sentences, no pair has a label. With left_to_right, the tokens are without masks, and each position but
    the last of its pair has the next token as its label.
    """
    if objective == "masked_next_sentence":
        return micro_batch
    unlabelled = replace(micro_batch, nsp_labels=np.full_like(micro_batch.nsp_labels, NO_LABEL))
    if objective == "masked":
        return unlabelled
    ids = micro_batch.input_ids.copy()
    ids[micro_batch.masked_positions] = micro_batch.masked_labels
    has_next = np.ones(ids.size, np.bool_)
    has_next[micro_batch.starts + micro_batch.lengths - 1] = False
    positions = np.flatnonzero(has_next).astype(np.int32)
    return replace(unlabelled, input_ids=ids, masked_positions=positions, masked_labels=ids[positions + 1])
