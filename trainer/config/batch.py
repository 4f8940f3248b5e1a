"""Settings of the global batch and of reading the data: `batch.*` and `ingest.*`."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from pipeline.settings import Settings
from trainer.config.number_types import Positive


class BatchConfig(Settings):
    """The global batch of one step: one micro-batch of every lane (docs/DESIGN.md)."""

    pairs: Positive | None = None
    """Sentence pairs (rows of the data set) per optimizer step, over all workers: the batch size in papers. An average,
    or exact with `exact_pairs`; at most the rows of the data set. Set either this or tokens."""
    tokens: Positive | None = None
    """Mean tokens per optimizer step, over all workers: pairs x mean row length. Set either this or pairs."""
    lanes: Positive | None = None
    """Lanes: equal parts of the rows, fixed for the whole run. A step takes one micro-batch of each lane. Workers share
    the lanes, so this is also the largest number of workers, and their number does not change the batch. Null:
    derived."""
    tokens_per_slot: Positive | None = None
    """Maximum tokens of a micro-batch. Null: derived, the fewest that keep the stated batch."""
    greatest_slot: Positive | None = None
    """Maximum tokens of a micro-batch if neither lanes nor tokens_per_slot is set. Null: what the run's smallest GPU
    holds by the estimate in trainer/engine/memory.py, at most 32,768; fixed when the run begins."""
    exact_pairs: bool = False
    """Take exactly `pairs` pairs in every step; micro-batches are then less full."""

    @model_validator(mode="after")
    def _check_unit(self) -> BatchConfig:
        if (self.pairs is None) == (self.tokens is None):
            raise ValueError("give exactly one of batch.pairs and batch.tokens")
        if self.exact_pairs and self.pairs is None:
            raise ValueError("batch.exact_pairs needs batch.pairs")
        return self


class IngestConfig(Settings):
    """How the data is read."""

    read_ahead_blocks: Positive = 4
    """Row groups that each worker decodes ahead of their use."""
    object_store_mb: Positive = 256
    """MB of Ray's object store that a worker's read-ahead may use."""
    verify: Literal["footers", "full"] = "footers"
    """Check at the start: sizes and footer hashes, or the sha256 of every shard. Page checksums are always verified."""
    skip_corrupt: bool = False
    """Skip training row groups that cannot be read, with a warning, and count their rows, instead of stopping."""
