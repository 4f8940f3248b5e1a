"""Learning rates as a pure function of the step.

Invariant: nothing is remembered between steps, so that a resumed run, or one with another number of
workers, follows the same rates (DeepSpeed#5788: rates that jump on resume).
"""

from __future__ import annotations

import math

from trainer.config import TrainerConfig


def warmup_steps(config: TrainerConfig) -> int:
    """Steps of linear warm-up: as given, or warmup_fraction of max_steps, rounded up."""
    if config.schedule.warmup_steps is not None:
        return config.schedule.warmup_steps
    return math.ceil(config.schedule.warmup_fraction * config.max_steps)


def learning_rate(step: int, config: TrainerConfig) -> float:
    """Rate of update number `step`; the first update of a run is number 1.

    Rises linearly to the peak at the last warm-up step; `linear` then falls to final_factor x peak at
    max_steps and stays there, `constant` keeps the peak. Raises ValueError for a step below 1.
    """
    if step < 1:
        raise ValueError(f"the first update is step 1, so there is no learning rate for step {step}")
    peak = config.optimizer.learning_rate
    warmup = warmup_steps(config)
    if step < warmup:
        return peak * step / warmup
    if config.schedule.name == "constant":
        return peak
    progress = min(1.0, (step - warmup) / max(1, config.max_steps - warmup))
    return peak * (1.0 - progress * (1.0 - config.schedule.final_factor))
