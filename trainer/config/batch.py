"""The settings `batch.*` (the global batch of a step) and `ingest.*` (reading of the data)."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from pipeline.settings import Settings
from trainer.config.number_types import Positive


class BatchConfig(Settings):
    """The settings of the global batch, which is the data of one step.

    The rows of the data set are divided into equal parts, called lanes. A step takes one micro-batch from each lane.
    """

    pairs: Positive | None = None
    """Sentence pairs (rows of the data set) per optimizer step, over all workers. Papers call this the batch size. It
    is an average, or exact with `exact_pairs`, and at most the number of rows. Set either this or tokens."""
    tokens: Positive | None = None
    """Mean tokens per optimizer step, over all workers: pairs times mean row length. Set either this or pairs."""
    lanes: Positive | None = None
    """Number of lanes: equal parts of the rows, fixed for the whole run. A step takes one micro-batch from each lane.
    Workers share the lanes, so there can be at most this many workers, but their number does not change the batch.
    Null: derived."""
    tokens_per_slot: Positive | None = None
    """Maximum tokens of a micro-batch. Null: derived, as few as suffice for the stated pairs or tokens."""
    greatest_slot: Positive | None = None
    """Maximum tokens of a micro-batch if neither lanes nor tokens_per_slot is set. Null: as many as the run's smallest
    GPU holds by the estimate in trainer/engine/memory.py, at most 32,768. Fixed when the run begins."""
    exact_pairs: bool = False
    """Take exactly `pairs` pairs in every step. Micro-batches are then less full."""

    @model_validator(mode="after")
    def _check_unit(self) -> BatchConfig:
        if (self.pairs is None) == (self.tokens is None):
            raise ValueError("give exactly one of batch.pairs and batch.tokens")
        if self.exact_pairs and self.pairs is None:
            raise ValueError("batch.exact_pairs needs batch.pairs")
        return self


class IngestConfig(Settings):
    """The settings for reading the data."""

    read_ahead_blocks: Positive = 4
    """Row groups that each worker decodes before they are needed."""
    object_store_mb: Positive = 256
    """MB of Ray's object store that a worker may use for reading ahead."""
    verify: Literal["footers", "full"] = "footers"
    """What to check at the start. footers: sizes and footer hashes. full: the sha256 of every shard. Page checksums are
    always verified."""
    skip_corrupt: bool = False
    """Skip row groups of training rows that cannot be read, instead of stopping. Each skipped row group gives a
    warning, and its rows are counted."""
