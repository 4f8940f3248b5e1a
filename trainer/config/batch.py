"""The settings `batch.*` (the global batch of a step), `masking.*` and `ingest.*` (reading of the data)."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.settings import Settings
from trainer.config.number_types import Positive

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Rate = Annotated[float, Field(gt=0.0, lt=1.0)]


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

    warmup_steps: Positive | None = None
    """Number of steps, from the run's first, over which the batch grows in a line to its full size. Steps take
    micro-batches from some of the lanes in turn, so small steps are short. Null: none."""
    warmup_from: Rate = 0.1
    """Share of the batch in the first step, if warmup_steps is set."""

    @model_validator(mode="after")
    def _check_unit(self) -> BatchConfig:
        if (self.pairs is None) == (self.tokens is None):
            raise ValueError("give exactly one of batch.pairs and batch.tokens")
        if self.exact_pairs and self.pairs is None:
            raise ValueError("batch.exact_pairs needs batch.pairs")
        if self.exact_pairs and self.warmup_steps is not None:
            raise ValueError(
                f"batch.exact_pairs asks for equal steps, and batch.warmup_steps={self.warmup_steps} for growing ones; "
                f"leave one of them out"
            )
        return self


class MaskingConfig(Settings):
    """The settings of the masks: which tokens of a row the model must predict. Held-out evaluation always uses the data
    set's own masks."""

    source: Literal["stored", "drawn"] = "stored"
    """stored: the mask sets of the data set, one in each epoch. drawn: masks drawn while training, anew in each
    epoch."""
    rate: Rate = 0.15
    """Share of a row's tokens to predict. For drawn masks, as all settings below."""
    final_rate: Rate | None = None
    """Rate at the last step; from step 1 on, the rate moves to it in a line. Null: constant."""
    masked_share: Share = 0.8
    """Share of the chosen words that become [MASK]."""
    random_share: Share = 0.1
    """Share of the chosen words whose tokens become random ones. All others stay as they are."""
    whole_words: bool = True
    """Choose whole words, by the vocabulary's ## marks. false: single tokens."""

    @model_validator(mode="after")
    def _check_shares(self) -> MaskingConfig:
        if self.masked_share + self.random_share > 1.0 + 1e-9:
            raise ValueError(
                f"masking.masked_share={self.masked_share} and random_share={self.random_share} are more than the "
                f"whole; lower one of them"
            )
        return self

    def rate_at(self, step: int, *, max_steps: int) -> float:
        """Return the share of tokens to predict in a step, from 1, of a run of `max_steps` steps."""
        if self.final_rate is None:
            return self.rate
        return self.rate + (self.final_rate - self.rate) * min(1.0, (step - 1) / max(1, max_steps - 1))

    @property
    def greatest_rate(self) -> float:
        """The greatest rate of the run, for drawn masks."""
        return max(self.rate, self.final_rate or 0.0)

    def max_predictions(self, longest: int) -> int:
        """Return the maximum number of tokens to predict in a row, if rows have at most `longest` tokens."""
        return max(1, math.ceil(self.greatest_rate * longest))


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
