"""The settings of the weight update: `optimizer.*`, `schedule.*`, and `guard.*` for steps that go wrong."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.settings import Settings
from trainer.config.number_types import Count, Positive, PositiveFloat, Probability


class OptimizerConfig(Settings):
    """The settings of the optimizer. Biases and LayerNorm have no weight decay."""

    name: Literal["adamw", "lamb", "radam", "sgd", "muon"] = "adamw"
    """Update rule. lamb: the update of each matrix (query, key and value apart) is as long as the matrix. muon: Muon
    for the matrices of hidden layers, at AdamW's learning rates; AdamW for all others."""
    learning_rate: PositiveFloat = 1e-4
    """Peak learning rate."""
    beta1: Probability = 0.9
    """Decay of the first moment. sgd: momentum."""
    beta2: Probability = 0.999
    """Decay of the second moment."""
    epsilon: PositiveFloat = 1e-6
    """Number added to the root of the second moment."""
    momentum: Probability = 0.95
    """Muon's momentum, for the matrices of hidden layers."""
    bias_correction: bool = True
    """Divide the moments by 1 - beta^step, as Adam's paper does. false: do not, as in google-research/bert, which makes
    the first updates larger (3.2 times at the defaults)."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    """Decoupled weight decay."""
    clip_norm: Annotated[float, Field(ge=0.0)] = 1.0
    """Maximum global norm of the gradients. 0: no clipping."""


ScheduleName = Literal["linear", "polynomial", "cosine", "constant", "noam", "wsd"]
FallStart = Literal["peak", "start"]


class ScheduleConfig(Settings):
    """The settings of the learning rate as a function of the step (with max_hours: of the time used)."""

    name: ScheduleName = "linear"
    """What follows the warm-up. linear, polynomial, cosine: a fall to final_factor. constant: the peak rate. noam: a
    fall with the root of the step. wsd (warm-up, stable, decay): the peak rate, then a fall over the last steps. With
    wsd a decay may start from any checkpoint: lower max_steps, or branch with resume_from."""
    warmup_steps: Count | None = None
    """Number of steps of linear warm-up. Null: warmup_fraction of max_steps."""
    warmup_fraction: Probability = 0.01
    """Warm-up as a share of max_steps, if warmup_steps is null."""
    final_factor: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Learning rate at the end of the fall, as a share of the peak. The step after max_steps would have this rate, so
    the last step still learns."""
    power: PositiveFloat = 1.0
    """polynomial and wsd: exponent of the fall; 1 is a line."""
    fall_from: FallStart = "peak"
    """linear, polynomial and cosine: where the fall begins. peak: at the end of the warm-up. start: at the first step,
    as in google-research/bert and NVIDIA's LAMB, so that the rate drops where the warm-up ends."""
    decay_steps: Positive | None = None
    """wsd: number of steps of the fall. Null: decay_fraction of max_steps."""
    decay_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    """wsd: the fall as a share of max_steps, if decay_steps is null."""
    span: Literal["run", "phase"] = "run"
    """run: one schedule over all phases. phase: each phase warms up and falls over its own steps."""


class GuardConfig(Settings):
    """The settings of the divergence guard, which decides what happens after bad steps.

    A step is bad if its loss or gradient is not finite, or if its loss spikes. A step whose loss or gradient is not
    finite is never applied.
    """

    max_bad_steps: Positive = 3
    """Number of bad steps in a row after which the run rolls back to the last checkpoint before them."""
    max_rollbacks: Count = 1
    """Maximum number of rollbacks. If another one is needed, the run stops."""
    skip_before: Count = 100
    """After a rollback, the data of the bad steps is skipped, and the data of this many steps before the first
    bad step."""
    spike_factor: Annotated[float, Field(gt=1.0)] | None = None
    """A step is a spike, and so bad, if its loss is above this many times the median of earlier losses. Its update is
    applied all the same. Null: off."""
    spike_window: Positive = 100
    """Number of earlier losses in the median of spike_factor. No step is a spike until this many losses of its phase
    are known."""
