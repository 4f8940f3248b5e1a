"""Decides how many passes a document gets (how many times pairs are made from it), from the weight of its source in the
mixture.

The number depends only on seed, document id, weight and config.passes, so any number of workers gives the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline import draws
from pipeline.config import PipelineConfig
from pipeline.dataset import SplitName
from pipeline.tokenizer import TokenizedDocument


def passes_of(document_id: bytes, *, weight: float, passes: int, seed: int) -> int:
    """Return how many passes a document gets (how many times pairs are made from it); 0 means that the document is
    dropped.

    The number is weight * passes, rounded to a whole number. `weight` is the weight of the document's source, and
    `passes` is config.passes. The product is rounded up with a probability equal to its fractional part, and otherwise
    rounded down. The draw depends only on `seed` and the document id.
    """
    rest, whole = math.modf(weight * passes)
    return int(whole) + (rest > 0 and draws.key(seed, "weight", document_id) < rest * 2.0**64)


def list_passes(documents: Sequence[TokenizedDocument], *, config: PipelineConfig, split: SplitName) -> list[int]:
    """Return the number of passes for each document (how many times pairs are made from it).

    Every number is at least 1, because documents with 0 passes are dropped during reading. If `split` is validation
    (held-out documents), no number exceeds config.passes.
    """
    weights = config.source_weights
    found = (
        passes_of(document.id, weight=weights[document.source], passes=config.passes, seed=config.seed)
        for document in documents
    )
    return [max(1, min(number, config.passes) if split == "validation" else number) for number in found]
