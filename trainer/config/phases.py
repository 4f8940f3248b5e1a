"""Parts of a run with a data set, batch or schedule of their own: `phases.N.*`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.settings import Settings
from trainer.config.batch import BatchConfig
from trainer.config.number_types import Count, Positive, PositiveFloat, Probability
from trainer.config.optimization import ScheduleConfig


class PhaseBatchConfig(Settings):
    """What a phase's batch has other than `batch`; null: as there."""

    pairs: Positive | None = None
    """Sentence pairs a step; takes the place of batch.tokens too."""
    tokens: Positive | None = None
    """Tokens a step; takes the place of batch.pairs too."""
    lanes: Positive | None = None
    """Lanes the data runs in."""
    tokens_per_slot: Positive | None = None
    """Tokens of a micro-batch."""
    exact_pairs: bool | None = None
    """Every step holds exactly `pairs` pairs."""


class PhaseScheduleConfig(Settings):
    """What a phase's schedule has other than `schedule`; null: as there. For schedule.span=phase."""

    name: Literal["linear", "constant"] | None = None
    """linear: falls towards final_factor. constant: flat."""
    warmup_steps: Count | None = None
    """Steps of linear warm-up, from the phase's first."""
    warmup_fraction: Probability | None = None
    """The same as a share of the phase's steps; takes the place of schedule.warmup_steps too."""
    final_factor: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Learning rate that a step after the phase's last would have, as a share of the peak."""


class PhaseEvaluationConfig(Settings):
    """What a phase's evaluation has other than `evaluation`; null: as there."""

    every_steps: Positive | None = None
    """Steps between evaluations, counted over the run; a phase's last step is always evaluated."""
    max_pairs: Positive | None = None
    """Held-out pairs evaluated."""


class PhaseConfig(Settings):
    """A part of the run with a data set or batch of its own; what it leaves out is as in the run."""

    data: str | None = None
    """Folder of the phase's data set; null: `data`. All phases' sets must have the same vocabulary."""
    max_steps: Positive | None = None
    """Steps of the phase. One phase may give neither this nor share: it takes what the others leave."""
    share: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """The same as a share of the run's max_steps."""
    learning_rate: PositiveFloat | None = None
    """Peak of the phase; null: optimizer.learning_rate. For schedule.span=phase."""
    batch: PhaseBatchConfig = PhaseBatchConfig()
    """The global batch."""
    schedule: PhaseScheduleConfig = PhaseScheduleConfig()
    """The learning rate."""
    evaluation: PhaseEvaluationConfig = PhaseEvaluationConfig()
    """Held-out evaluation."""

    @model_validator(mode="after")
    def _check_length(self) -> PhaseConfig:
        if self.max_steps is not None and self.share is not None:
            raise ValueError(f"max_steps={self.max_steps} and share={self.share} both say how long; give one of them")
        return self

    def batch_in(self, run: BatchConfig) -> BatchConfig:
        """The phase's batch, all told. Raises ValueError where its parts do not go together."""
        given = self.batch.model_dump(exclude_none=True)
        unit = dict.fromkeys(("pairs", "tokens")) if "pairs" in given or "tokens" in given else {}
        return BatchConfig.model_validate({**run.model_dump(), **unit, **given})

    def schedule_in(self, run: ScheduleConfig) -> ScheduleConfig:
        """The phase's schedule, all told."""
        given = self.schedule.model_dump(exclude_none=True)
        warmup = {"warmup_steps": None} if "warmup_fraction" in given else {}
        return ScheduleConfig.model_validate({**run.model_dump(), **warmup, **given})
