"""The settings `phases.N.*`. A phase is a part of a run with its own data set, batch or schedule."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from pipeline.settings import Settings
from trainer.config.batch import BatchConfig
from trainer.config.number_types import Count, Positive, PositiveFloat, Probability
from trainer.config.optimization import FallStart, ScheduleConfig, ScheduleName


class PhaseBatchConfig(Settings):
    """A phase's changes to the run's `batch` settings. A null setting changes nothing."""

    pairs: Positive | None = None
    """Sentence pairs per step. Also replaces batch.tokens."""
    tokens: Positive | None = None
    """Tokens per step. Also replaces batch.pairs."""
    lanes: Positive | None = None
    """Number of lanes; see batch.lanes."""
    tokens_per_slot: Positive | None = None
    """Maximum tokens of a micro-batch."""
    exact_pairs: bool | None = None
    """Take exactly `pairs` pairs in every step."""


class PhaseScheduleConfig(Settings):
    """A phase's changes to the run's `schedule` settings. A null setting changes nothing.

    A phase can change the schedule only if the run sets `schedule.span=phase`.
    """

    name: ScheduleName | None = None
    """What follows the warm-up; see schedule.name."""
    warmup_steps: Count | None = None
    """Steps of linear warm-up at the start of the phase."""
    warmup_fraction: Probability | None = None
    """Warm-up as a share of the phase's steps. Also replaces schedule.warmup_steps."""
    final_factor: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Learning rate at the end of the fall, as a share of the peak. The step after the phase's last step would have
    this rate."""
    power: PositiveFloat | None = None
    """polynomial and wsd: exponent of the fall."""
    fall_from: FallStart | None = None
    """linear, polynomial and cosine: where the fall begins; see schedule.fall_from."""
    decay_steps: Positive | None = None
    """wsd: number of steps of the fall."""
    decay_fraction: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """wsd: the fall as a share of the phase's steps. Also replaces schedule.decay_steps."""


class PhaseEvaluationConfig(Settings):
    """A phase's changes to the run's `evaluation` settings. A null setting changes nothing."""

    every_steps: Positive | None = None
    """Steps between evaluations, counted over the run. A phase's last step is always evaluated."""
    max_pairs: Positive | None = None
    """Maximum number of held-out pairs to evaluate."""


class PhaseConfig(Settings):
    """The settings of a phase: a part of the run with its own data set, batch or schedule.

    A setting that is left out is taken from the run.
    """

    data: str | None = None
    """Folder of the phase's data set. Null: the run's `data`. All phases must have the same vocabulary."""
    max_steps: Positive | None = None
    """Number of steps in the phase. One phase may set neither this nor share: it takes the remaining steps."""
    share: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Length of the phase as a share of the run's max_steps."""
    learning_rate: PositiveFloat | None = None
    """Peak learning rate of the phase. Null: optimizer.learning_rate. For schedule.span=phase."""
    batch: PhaseBatchConfig = PhaseBatchConfig()
    """Changes to the global batch."""
    schedule: PhaseScheduleConfig = PhaseScheduleConfig()
    """Changes to the learning rate."""
    evaluation: PhaseEvaluationConfig = PhaseEvaluationConfig()
    """Changes to the held-out evaluation."""

    @model_validator(mode="after")
    def _check_length(self) -> PhaseConfig:
        if self.max_steps is not None and self.share is not None:
            raise ValueError(
                f"max_steps={self.max_steps} and share={self.share} both set the phase's length; set one of them"
            )
        return self

    def batch_in(self, run: BatchConfig) -> BatchConfig:
        """Return `run`, the run's batch settings, with the phase's changes. Raises ValueError if the result contradicts
        itself."""
        given = self.batch.model_dump(exclude_none=True)
        unit = dict.fromkeys(("pairs", "tokens")) if "pairs" in given or "tokens" in given else {}
        return BatchConfig.model_validate({**run.model_dump(), **unit, **given})

    def schedule_in(self, run: ScheduleConfig) -> ScheduleConfig:
        """Return `run`, the run's schedule settings, with the phase's changes."""
        given = self.schedule.model_dump(exclude_none=True)
        replaced = {f"{part}_steps": None for part in ("warmup", "decay") if f"{part}_fraction" in given}
        return ScheduleConfig.model_validate({**run.model_dump(), **replaced, **given})
