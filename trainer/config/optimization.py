"""How the weights move: `optimizer.*`, `schedule.*`, and `guard.*` for steps that go wrong."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.settings import Settings
from trainer.config.number_types import Count, Positive, PositiveFloat, Probability


class OptimizerConfig(Settings):
    """AdamW; biases and LayerNorm are not decayed."""

    name: Literal["adamw"] = "adamw"
    """Update rule."""
    learning_rate: PositiveFloat = 1e-4
    """Peak learning rate."""
    beta1: Probability = 0.9
    """Decay of the first moment."""
    beta2: Probability = 0.999
    """Decay of the second moment."""
    epsilon: PositiveFloat = 1e-6
    """Added to the root of the second moment."""
    bias_correction: bool = True
    """Divide the moments by 1 - beta^step, as Adam's paper does. false: as in google-research/bert, whose first updates
    are therefore larger (3.2 times at the defaults)."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    """Decoupled weight decay."""
    clip_norm: Annotated[float, Field(ge=0.0)] = 1.0
    """Greatest global gradient norm; 0 for none."""


class ScheduleConfig(Settings):
    """Learning rate as a function of the step."""

    name: Literal["linear", "constant"] = "linear"
    """linear: warm-up, then down towards final_factor. constant: warm-up, then flat."""
    warmup_steps: Count | None = None
    """Steps of linear warm-up; null: warmup_fraction of max_steps."""
    warmup_fraction: Probability = 0.01
    """Used where warmup_steps is null."""
    final_factor: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Learning rate that a step after max_steps would have, as a share of the peak: the last step still learns."""
    span: Literal["run", "phase"] = "run"
    """run: one schedule over all phases. phase: each phase warms up and falls over its own steps."""


class GuardConfig(Settings):
    """The divergence guard: what happens at steps that are not finite. Such a step is never applied."""

    max_bad_steps: Positive = 3
    """Bad steps in a row after which the run goes back to the last checkpoint from before them."""
    max_rollbacks: Count = 1
    """Times that a run goes back; then it stops."""
    skip_before: Count = 100
    """Steps before the first bad one whose data are passed over with those of the bad ones after going back."""
    spike_factor: Annotated[float, Field(gt=1.0)] | None = None
    """A step is bad too, but applied, where its loss exceeds so many times the median of those before; null: no."""
    spike_window: Positive = 100
    """Losses that the median is of; in the first steps of a phase, before there are as many, no step is a spike."""
