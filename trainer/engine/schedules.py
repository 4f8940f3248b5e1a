"""Learning rates as a pure function of the step.

Invariant: no state between steps, so that a resumed run, or one with another number of workers, has the same rates
(DeepSpeed#5788: rates that jump on resume).
"""

from __future__ import annotations

import math
from fractions import Fraction

from trainer.config import ScheduleConfig, TrainerConfig


def warmup_steps(schedule: ScheduleConfig, *, steps: int) -> int:
    """Return the warm-up steps of `steps` steps: warmup_steps, or warmup_fraction of them, rounded up."""
    if schedule.warmup_steps is not None:
        return schedule.warmup_steps
    return math.ceil(Fraction(str(schedule.warmup_fraction)) * steps)  # 0.07 * 100 is above 7 in binary


def learning_rate(step: int, config: TrainerConfig) -> float:
    """Return the rate of update number `step`, counted from 1. Raises ValueError for a step below 1.

    Warm-up of W steps: peak x step / W, so that the first update learns. `linear` then falls to final_factor x peak,
    which an update after the last of N would have: peak x (N - (step - 1)) / (N - W) for a factor of 0, so that the
    last update learns. `constant` keeps the peak. With schedule.span=phase each phase does so over its own steps.

    google-research/bert (optimization.py) and transformers' get_linear_schedule_with_warmup fall the same way. Both
    count from 0 and waste the first update on a rate of 0; google's fall begins at step 0 instead of W, a difference of
    W / N. The warm-up counts from 1, as in NVIDIA's DeepLearningExamples (schedulers.py), whose last update has rate 0.
    """
    if step < 1:
        raise ValueError(f"the first update is step 1, so there is no learning rate for step {step}")
    peak = config.optimizer.learning_rate
    if config.schedule.span == "run" or not config.phases:
        return _rate(step, config.schedule, steps=config.max_steps, peak=peak)
    lengths, index = config.phase_steps, 0
    while step > lengths[index] and index + 1 < len(lengths):
        step, index = step - lengths[index], index + 1
    phase = config.phases[index]
    peak = peak if phase.learning_rate is None else phase.learning_rate
    return _rate(step, phase.schedule_in(config.schedule), steps=lengths[index], peak=peak)


def _rate(step: int, schedule: ScheduleConfig, *, steps: int, peak: float) -> float:
    """Return the rate of step `step` of `steps`."""
    warmup = warmup_steps(schedule, steps=steps)
    if step <= warmup:
        return peak * step / warmup
    if schedule.name == "constant":
        return peak
    progress = min(1.0, (step - 1 - warmup) / max(1, steps - warmup))
    return peak * (1.0 - progress * (1.0 - schedule.final_factor))
