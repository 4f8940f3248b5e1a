"""Learning rates as a pure function of the step or, with max_hours, of the time used.

Invariant: no state is kept between steps. So a run has the same rates after it resumes, or with another number of
workers. (In DeepSpeed, rates could jump on resume: DeepSpeed#5788.) The time used is part of the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from trainer.config import ScheduleConfig, TrainerConfig


def warmup_steps(schedule: ScheduleConfig, *, steps: int) -> int:
    """Return the number of warm-up steps: schedule.warmup_steps, or else warmup_fraction x `steps`, rounded up."""
    if schedule.warmup_steps is not None:
        return schedule.warmup_steps
    return math.ceil(Fraction(str(schedule.warmup_fraction)) * steps)  # as floats, 0.07 * 100 is above 7


def decay_steps(schedule: ScheduleConfig, *, steps: int) -> int:
    """Return the number of steps of wsd's fall: schedule.decay_steps, or else decay_fraction x `steps`, rounded up."""
    if schedule.decay_steps is not None:
        return schedule.decay_steps
    return math.ceil(Fraction(str(schedule.decay_fraction)) * steps)


def learning_rate(step: int, config: TrainerConfig, *, hours: float = 0.0) -> float:
    """Return the learning rate of the update whose number, counted from 1, is `step`.

    The schedule has N updates, and the first W updates are warm-up. The peak is optimizer.learning_rate. During warm-up
    the rate is peak x step / W, so the first update has a rate above 0. A fall would reach final_factor x peak at
    update N + 1. If final_factor is 0, the rate of `linear` is peak x (N - (step - 1)) / (N - W), so the last update
    has a rate above 0. With s the share of the fall that is left and f = final_factor, the rate is

        linear              peak x (f + (1 - f) s)
        polynomial, wsd     peak x (f + (1 - f) s ** power); wsd falls only in its last updates (decay_steps)
        cosine              peak x (f + (1 - f) (1 + cos(pi (1 - s))) / 2)
        constant            peak
        noam                peak x sqrt(W / step) (Vaswani et al. 2017, section 5.3)

    With schedule.span=phase each phase (part of the run) has its own schedule over its steps. With max_hours, N is this
    time, W and wsd's fall are shares of it, and `hours`, the time used before the update, stands for `step`. If there
    is a warm-up, the first update then has a rate of 0. Raises ValueError if `step` is below 1.

    With fall_from=start, the fall begins at the first update: in all formulas of linear, polynomial and cosine W is
    then 0 after the warm-up. So it is in google-research/bert (optimization.py) and in NVIDIA's DeepLearningExamples
    (schedulers.py).

    google-research/bert and transformers' get_linear_schedule_with_warmup count from 0, so their first update has a
    rate of 0. NVIDIA's DeepLearningExamples count the warm-up from 1 too, but their last update has a rate of 0.
    """
    if step < 1:
        raise ValueError(f"the first update is step 1, so there is no learning rate for step {step}")
    if config.max_hours is not None:
        return _over_time(config).rate(hours, before=hours)
    for first, last, curve in _curves(config):
        if step <= last or last >= config.max_steps:
            return curve.rate(step - first, before=step - first - 1)
    raise AssertionError(step)


def corners(config: TrainerConfig) -> Iterator[tuple[float, float]]:
    """Yield (step, learning rate) at the ends and corners of the schedule; with max_hours (hours, learning rate)."""
    if config.max_hours is not None:
        curve = _over_time(config)
        for hours in sorted({0.0, curve.warmup, curve.length - curve.decay, curve.length}):
            yield hours, curve.rate(hours, before=hours)
        return
    for first, last, curve in _curves(config):
        steps = {1, int(curve.warmup), int(curve.length - curve.decay), last - first}
        steps |= {int(curve.warmup) + 1} if curve.schedule.fall_from == "start" else set()
        for step in sorted(steps - {0}):
            yield first + step, curve.rate(step, before=step - 1)


@dataclass(frozen=True, slots=True)
class _Curve:
    """A schedule of `length` updates or hours, of which `warmup` are warm-up and the last `decay` wsd's fall."""

    schedule: ScheduleConfig
    peak: float
    length: float
    warmup: float
    decay: float

    def rate(self, place: float, *, before: float) -> float:
        """Return the rate of the update that begins after `before` and ends at `place`."""
        if place <= self.warmup and self.warmup:
            return self.peak * place / self.warmup
        name, final = self.schedule.name, self.schedule.final_factor
        if name == "constant":
            return self.peak
        if name == "noam":
            return self.peak * math.sqrt(self.warmup / place)
        start = self.warmup if self.schedule.fall_from == "peak" else 0.0
        start = self.length - self.decay if name == "wsd" else start
        progress = min(1.0, max(0.0, before - start) / ((self.length - start) or 1))
        if name == "linear":
            return self.peak * (1.0 - progress * (1.0 - final))
        left = (1.0 + math.cos(math.pi * progress)) / 2 if name == "cosine" else (1.0 - progress) ** self.schedule.power
        return self.peak * (final + (1.0 - final) * left)


def _curves(config: TrainerConfig) -> Iterator[tuple[int, int, _Curve]]:
    """Yield (steps before it, last step, schedule) of the run or, with schedule.span=phase, of each of its phases."""
    parts = [(config.max_steps, config.schedule, config.optimizer.learning_rate)]
    if config.schedule.span == "phase" and config.phases:
        parts = [
            (steps, phase.schedule_in(config.schedule), phase.learning_rate or config.optimizer.learning_rate)
            for steps, phase in zip(config.phase_steps, config.phases, strict=True)
        ]
    first = 0
    for steps, schedule, peak in parts:
        warmup = warmup_steps(schedule, steps=steps)
        decay = min(decay_steps(schedule, steps=steps), max(0, steps - warmup)) if schedule.name == "wsd" else 0
        yield first, first + steps, _Curve(schedule, peak, steps, warmup, decay)
        first += steps


def _over_time(config: TrainerConfig) -> _Curve:
    """Return the schedule over the time `config.max_hours`."""
    hours, schedule = config.max_hours or 0.0, config.schedule
    decay = hours * schedule.decay_fraction if schedule.name == "wsd" else 0.0
    return _Curve(schedule, config.optimizer.learning_rate, hours, hours * schedule.warmup_fraction, decay)
