"""Learning rates as a pure function of the step.

Invariant: no state is kept between steps. So a run has the same rates after it resumes, or with another number of
workers. (In DeepSpeed, rates could jump on resume: DeepSpeed#5788.)
"""

from __future__ import annotations

import math
from fractions import Fraction

from trainer.config import ScheduleConfig, TrainerConfig


def warmup_steps(schedule: ScheduleConfig, *, steps: int) -> int:
    """Return the number of warm-up steps: schedule.warmup_steps, or else warmup_fraction x `steps`, rounded up."""
    if schedule.warmup_steps is not None:
        return schedule.warmup_steps
    return math.ceil(Fraction(str(schedule.warmup_fraction)) * steps)  # as floats, 0.07 * 100 is above 7


def learning_rate(step: int, config: TrainerConfig) -> float:
    """Return the learning rate of the update whose number, counted from 1, is `step`.

    The schedule has N updates, and the first W updates are warm-up. The peak is optimizer.learning_rate. During warm-up
    the rate is peak x step / W, so the first update has a rate above 0. With the `linear` schedule the rate then falls
    linearly. It would reach final_factor x peak at update N + 1. If final_factor is 0, the rate is
    peak x (N - (step - 1)) / (N - W), so the last update has a rate above 0. With the `constant` schedule the rate
    stays at the peak. With schedule.span=phase each phase (part of the run) has its own schedule over its steps.
    Raises ValueError if `step` is below 1.

    google-research/bert (optimization.py) and transformers' get_linear_schedule_with_warmup also fall linearly. Both
    count from 0, so their first update has a rate of 0. In google-research/bert the line falls from step 0 on, not from
    step W on, which changes the rate by at most peak x W / N. NVIDIA's DeepLearningExamples (schedulers.py) count the
    warm-up from 1 too, but their last update has a rate of 0.
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
    """Return the learning rate of an update in a schedule of `steps` updates. `step` counts updates from 1."""
    warmup = warmup_steps(schedule, steps=steps)
    if step <= warmup:
        return peak * step / warmup
    if schedule.name == "constant":
        return peak
    progress = min(1.0, (step - 1 - warmup) / max(1, steps - warmup))
    return peak * (1.0 - progress * (1.0 - schedule.final_factor))
