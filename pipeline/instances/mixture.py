"""Mixtures: the number of passes over a document, by the weight of its source.

A function of (seed, document id, weight, passes) only, so that any number of workers gives the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline import draws
from pipeline.config import PipelineConfig
from pipeline.dataset import SplitName
from pipeline.tokenizer import TokenizedDocument


def passes_of(document_id: bytes, *, weight: float, passes: int, seed: int) -> int:
    """Round weight * passes up with the probability of its fraction (drawn by document id), else down; 0: drop it."""
    rest, whole = math.modf(weight * passes)
    return int(whole) + (rest > 0 and draws.key(seed, "weight", document_id) < rest * 2.0**64)


def list_passes(documents: Sequence[TokenizedDocument], *, config: PipelineConfig, split: SplitName) -> list[int]:
    """Passes over each document: at least 1 (others are dropped while reading), at most config.passes if held out."""
    weights = config.source_weights
    found = (
        passes_of(document.id, weight=weights[document.source], passes=config.passes, seed=config.seed)
        for document in documents
    )
    return [max(1, min(number, config.passes) if split == "validation" else number) for number in found]
