"""The learning rate is a function of the step and of nothing else."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
    get_polynomial_decay_schedule_with_warmup,
    get_wsd_schedule,
)

from trainer.config.schema import TrainerConfig
from trainer.engine.schedules import corners, learning_rate, warmup_steps


def make_config(*, max_steps: int = 100, peak: float = 1e-3, **schedule: object) -> TrainerConfig:
    return TrainerConfig.model_validate(
        {
            "data": "data",
            "output": "run",
            "batch": {"pairs": 8},
            "max_steps": max_steps,
            "optimizer": {"learning_rate": peak},
            "schedule": schedule,
        }
    )


def warmup_of(config: TrainerConfig) -> int:
    return warmup_steps(config.schedule, steps=config.max_steps)


def test_linear_by_hand() -> None:
    config = make_config(max_steps=110, peak=1.0, warmup_steps=10, final_factor=0.5)
    rates = {step: learning_rate(step, config) for step in (1, 5, 10, 11, 61, 110, 111, 500)}
    assert rates == pytest.approx({1: 0.1, 5: 0.5, 10: 1.0, 11: 1.0, 61: 0.75, 110: 0.505, 111: 0.5, 500: 0.5})


def test_constant_stays_at_the_peak() -> None:
    config = make_config(peak=1.0, name="constant", warmup_steps=4)
    assert [learning_rate(step, config) for step in (1, 2, 4, 5, 100)] == [0.25, 0.5, 1.0, 1.0, 1.0]


def test_without_warmup_the_first_and_the_last_update_learn() -> None:
    config = make_config(max_steps=10, peak=1.0, warmup_steps=0)
    rates = [learning_rate(step, config) for step in range(1, 11)]
    assert rates == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])


def polynomial_decay(global_step: int, *, peak: float, decay_steps: int, end: float) -> Fraction:
    """tf.train.polynomial_decay with power=1 and cycle=False, as documented: exact, with its own names."""
    step = min(global_step, decay_steps)
    return (Fraction(peak) - Fraction(end)) * (1 - Fraction(step, decay_steps)) + Fraction(end)


@pytest.mark.parametrize("final_factor", [0.0, 0.25])
def test_the_fall_is_googles(final_factor: float) -> None:
    """google-research/bert, optimization.py without warm-up: update n has global_step n - 1."""
    config = make_config(max_steps=1000, peak=0.5, warmup_steps=0, final_factor=final_factor)
    for step in (1, 2, 3, 500, 998, 999, 1000):
        exact = polynomial_decay(step - 1, peak=0.5, decay_steps=1000, end=final_factor * 0.5)
        assert learning_rate(step, config) == pytest.approx(float(exact), rel=1e-12)


def rates_of_transformers(*, peak: float, warmup: int, steps: int) -> list[float]:
    """Rates of the updates 1..steps of a loop of optimizer.step and scheduler.step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=warmup, num_training_steps=steps)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(("warmup", "steps"), [(0, 7), (1, 7), (10, 100), (99, 100)])
def test_the_fall_is_that_of_transformers_and_the_warmup_one_step_ahead(warmup: int, steps: int) -> None:
    """Ours has no update of rate 0: theirs are the first, if there is a warm-up, and one after the last."""
    theirs = rates_of_transformers(peak=2e-3, warmup=warmup, steps=steps)
    config = make_config(max_steps=steps, peak=2e-3, warmup_steps=warmup)
    ours = [learning_rate(step, config) for step in range(1, steps + 1)]
    assert ours[warmup:] == pytest.approx(theirs[warmup:], rel=1e-12)
    assert ours[:warmup] == pytest.approx([*theirs[1:warmup], 2e-3][:warmup], rel=1e-12)
    assert min(ours) > 0


def test_google_recipe() -> None:
    """google-research/bert: 1e-4, 10,000 steps of warm-up, linear to zero at 1,000,000; update n has global_step
    n - 1 in the fall, and n in our warm-up, which has no update of rate 0."""
    config = make_config(max_steps=1_000_000, peak=1e-4, warmup_steps=10_000, fall_from="start")
    assert [learning_rate(step, config) for step in (1, 5_000, 10_000)] == pytest.approx([1e-8, 5e-5, 1e-4])
    for step in (10_001, 500_000, 1_000_000):
        exact = polynomial_decay(step - 1, peak=1e-4, decay_steps=1_000_000, end=0.0)
        assert learning_rate(step, config) == pytest.approx(float(exact), rel=1e-9)


def test_nvidias_recipe() -> None:
    """DeepLearningExamples, schedulers.py (PolyWarmUpScheduler), phase 1: the root of what is left of all steps."""
    peak, warmup, total = 6e-3, 0.2843, 7_038
    config = make_config(
        max_steps=total, peak=peak, name="polynomial", power=0.5, warmup_fraction=warmup, fall_from="start"
    )
    for step in (1, 1_000, 2_000, 2_002, 5_000, 7_038):
        progress = step / total
        theirs = peak * progress / warmup if progress < warmup else peak * (1 - (step - 1) / total) ** 0.5
        assert learning_rate(step, config) == pytest.approx(theirs, rel=1e-3), step
    assert [rate for _, rate in corners(config)] == pytest.approx(
        [peak / 2_001, peak, peak * (1 - 2_001 / total) ** 0.5, peak * (1 / total) ** 0.5]
    )


def test_warmup_fraction_rounds_up() -> None:
    assert warmup_of(make_config(max_steps=150, warmup_fraction=0.01)) == 2
    assert [warmup_of(make_config(max_steps=100, warmup_fraction=share)) for share in (0.07, 0.14, 0.28)] == [7, 14, 28]
    assert warmup_of(make_config(max_steps=150, warmup_steps=7)) == 7


def by_hand(name: str, step: int, *, warmup: int, steps: int, **how: float) -> float:
    """The rate of an update, with the peak 1, as the papers write it."""
    if step <= warmup:
        return step / warmup
    final, power, decay = how.get("final", 0.0), how.get("power", 1.0), int(how.get("decay", 0))
    done = (step - 1 - warmup) / (steps - warmup)
    return {
        "polynomial": final + (1 - final) * (1 - done) ** power,
        "cosine": final + 0.5 * (1 - final) * (1 + math.cos(math.pi * done)),
        "noam": (warmup / step) ** 0.5,
        "wsd": 1.0 if step <= steps - decay else final + (1 - final) * ((steps + 1 - step) / decay) ** power,
    }[name]


@pytest.mark.parametrize(
    ("name", "settings", "how"),
    [
        ("polynomial", {"power": 2.0, "final_factor": 0.1}, {"power": 2.0, "final": 0.1}),
        ("polynomial", {"power": 0.5}, {"power": 0.5}),
        ("cosine", {"final_factor": 0.2}, {"final": 0.2}),
        ("noam", {}, {}),
        ("wsd", {"decay_steps": 30, "final_factor": 0.1}, {"decay": 30, "final": 0.1}),
        ("wsd", {"decay_fraction": 0.25, "power": 2.0}, {"decay": 50, "power": 2.0}),
    ],
)
def test_each_schedule_is_its_formula(name: str, settings: dict[str, Any], how: dict[str, float]) -> None:
    config = make_config(max_steps=200, peak=1.0, name=name, warmup_steps=20, **settings)
    for step in range(1, 201):
        exact = by_hand(name, step, warmup=20, steps=200, **how)
        assert learning_rate(step, config) == pytest.approx(exact, rel=1e-12), step
    assert learning_rate(200, config) > 0.0


@pytest.mark.parametrize(
    ("settings", "schedule"),
    [
        ({"name": "cosine"}, lambda o: get_cosine_schedule_with_warmup(o, 10, 100)),
        (
            {"name": "polynomial", "power": 3.0, "final_factor": 0.1},
            lambda o: get_polynomial_decay_schedule_with_warmup(o, 10, 100, lr_end=2e-4, power=3.0),
        ),
        (
            {"name": "wsd", "decay_steps": 20},
            lambda o: get_wsd_schedule(o, 10, 20, num_stable_steps=70, decay_type="linear"),
        ),
    ],
)
def test_falls_are_those_of_transformers(settings: dict[str, Any], schedule: Any) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-3)
    scheduler = schedule(optimizer)
    config = make_config(max_steps=100, peak=2e-3, warmup_steps=10, **settings)
    for step in range(1, 101):
        if step > 10:
            assert learning_rate(step, config) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9), step
        optimizer.step()
        scheduler.step()


def test_over_time_shares_are_of_the_hours() -> None:
    """Rates at hours of 10: a warm-up of 1, then the fall; the step does not count."""
    config = make_config(peak=1.0, name="linear", warmup_fraction=0.1).model_copy(update={"max_hours": 10.0})
    wanted = {0.0: 0.0, 0.5: 0.5, 1.0: 1.0, 5.5: 0.5, 10.0: 0.0, 11.0: 0.0}
    assert {hours: learning_rate(3, config, hours=hours) for hours in wanted} == pytest.approx(wanted)
    wsd = make_config(peak=1.0, name="wsd", warmup_fraction=0.1, decay_fraction=0.2)
    wsd = wsd.model_copy(update={"max_hours": 10.0})
    wanted = {0.5: 0.5, 1.0: 1.0, 7.9: 1.0, 9.0: 0.5, 9.5: 0.25, 10.0: 0.0}
    assert {hours: learning_rate(3, wsd, hours=hours) for hours in wanted} == pytest.approx(wanted)
    noam = make_config(peak=1.0, name="noam", warmup_fraction=0.1).model_copy(update={"max_hours": 10.0})
    assert learning_rate(9, noam, hours=4.0) == pytest.approx(0.5)


def test_corners_are_where_the_schedule_turns() -> None:
    config = make_config(max_steps=100, peak=1.0, name="wsd", warmup_steps=10, decay_steps=20)
    assert dict(corners(config)) == pytest.approx({1: 0.1, 10: 1.0, 80: 1.0, 100: 0.05})
    assert dict(corners(config.model_copy(update={"max_hours": 2.0}))) == pytest.approx(
        {0.0: 0.0, 0.02: 1.0, 1.8: 1.0, 2.0: 0.0}
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"name": "wsd", "warmup_steps": 60, "decay_steps": 50},
            r"decay_steps=50 and warmup_steps=60 do not fit max_st",
        ),
        ({"name": "wsd", "warmup_fraction": 0.6, "decay_fraction": 0.5}, r"more than the whole; lower one"),
        ({"name": "noam", "warmup_steps": 0}, r"peak at the end of the warm-up, and there is none; give one"),
        (
            {"name": "cosine", "power": 2.0},
            r"schedule\.power=2\.0 .*cosine does not use it; set schedule\.name=polynomial",
        ),
        ({"name": "noam", "final_factor": 0.5}, r"schedule\.final_factor=0\.5 .*noam does not use it"),
        ({"decay_steps": 5}, r"schedule\.decay_steps=5 .*linear does not use it; set schedule\.name=wsd"),
        ({"decay_fraction": 0.5}, r"schedule\.decay_fraction=0\.5 .*linear does not use it"),
        ({"name": "wsd", "decay_steps": 5, "decay_fraction": 0.5}, r"decay_fraction=0\.5 .*decay_steps=5 replaces it"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(**settings)


@pytest.mark.parametrize("step", [0, -1])
def test_steps_below_one_are_refused(step: int) -> None:
    with pytest.raises(ValueError, match=f"no learning rate for step {step}"):
        learning_rate(step, make_config())


@given(max_steps=st.integers(2, 10_000), fraction=st.floats(0, 0.9), final_factor=st.floats(0, 1), data=st.data())
def test_rises_then_falls_within_bounds(
    max_steps: int, fraction: float, final_factor: float, data: st.DataObject
) -> None:
    config = make_config(max_steps=max_steps, peak=1.0, warmup_fraction=fraction, final_factor=final_factor)
    step = data.draw(st.integers(1, max_steps - 1))
    rate, following = learning_rate(step, config), learning_rate(step + 1, config)
    assert 0.0 < rate <= 1.0
    assert rate <= following if step + 1 <= warmup_of(config) else following <= rate
    assert learning_rate(max_steps, config) > 0.0
    after = learning_rate(max_steps + 1, config)
    assert after == pytest.approx(final_factor, abs=1e-12) or warmup_of(config) == max_steps
