"""Mixtures: how many passes over a document its source's weight gives. Pure.

A function of (seed, document id, weight, passes) alone, so that any number of workers gives the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline import draws
from pipeline.config import PipelineConfig
from pipeline.dataset import SplitName
from pipeline.tokenizer import TokenizedDocument


def passes_of(document_id: bytes, *, weight: float, passes: int, seed: int) -> int:
    """The whole part of weight x passes, and one more for the share of documents that the rest of it says.

    0: the document is dropped.
    """
    product = weight * passes
    whole = math.floor(product)
    rest = product - whole
    if not rest:
        return whole
    return whole + (draws.key(seed, "weight", document_id) < rest * 2.0**64)


def list_passes(documents: Sequence[TokenizedDocument], *, config: PipelineConfig, split: SplitName) -> list[int]:
    """Passes over each document, at least 1 (those of 0 are dropped while reading); held-out ones have at most
    config.passes."""
    weights = config.source_weights
    most = config.passes if split == "validation" else None
    found = [
        passes_of(document.id, weight=weights[document.source], passes=config.passes, seed=config.seed)
        for document in documents
    ]
    return [max(1, number if most is None else min(number, most)) for number in found]
