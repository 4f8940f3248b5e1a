"""What a step takes and who reads it: `batch.*` and `ingest.*`."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from pipeline.settings import Settings
from trainer.config.number_types import Positive


class BatchConfig(Settings):
    """The global batch of one step: one micro-batch of every lane (docs/DESIGN.md)."""

    pairs: Positive | None = None
    """Sentence pairs (rows of the data set) of an optimizer step, over all workers: the batch size of papers. On
    average, or exactly with `exact_pairs`; at most those of the data set. Give this or tokens."""
    tokens: Positive | None = None
    """Tokens of an optimizer step, over all workers, on average: a batch of pairs x mean length of a row. Give this or
    pairs."""
    lanes: Positive | None = None
    """Lanes: parts that the rows are dealt into for the whole run. A step takes a micro-batch of each, and a worker has
    its share of them, so this is also the largest number of workers, and no worker changes the batch. Null: derived."""
    tokens_per_slot: Positive | None = None
    """Most tokens of a micro-batch. Null: derived, as few as keep the batch's pace."""
    greatest_slot: Positive | None = None
    """Most tokens of a micro-batch if neither lanes nor tokens_per_slot is given. Null: what the run's smallest GPU
    holds by the estimate of trainer/engine/memory.py, at most 32,768; settled when the run begins and kept."""
    exact_pairs: bool = False
    """Every step holds exactly `pairs` pairs, at a cost in fill."""

    @model_validator(mode="after")
    def _check_unit(self) -> BatchConfig:
        if (self.pairs is None) == (self.tokens is None):
            raise ValueError("give exactly one of batch.pairs and batch.tokens")
        if self.exact_pairs and self.pairs is None:
            raise ValueError("batch.exact_pairs needs batch.pairs")
        return self


class IngestConfig(Settings):
    """Reading of the data."""

    read_ahead_blocks: Positive = 4
    """Row groups decoded ahead of their use, a worker."""
    object_store_mb: Positive = 256
    """Ray object store that a worker's read-ahead may fill, MB."""
    verify: Literal["footers", "full"] = "footers"
    """At start: sizes and footer hashes, or the sha256 of every shard. Page checksums are always verified."""
    skip_corrupt: bool = False
    """Pass over training row groups that cannot be read, with a warning, and count their rows, instead of stopping."""
