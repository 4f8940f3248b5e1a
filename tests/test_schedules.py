"""The learning rate is a function of the step and of nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import TrainerConfig
from trainer.schedules import learning_rate, warmup_steps


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
    rates = {step: learning_rate(step, config) for step in (1, 5, 10, 60, 110, 500)}
    assert rates == pytest.approx({1: 0.1, 5: 0.5, 10: 1.0, 60: 0.75, 110: 0.5, 500: 0.5})


def test_constant_stays_at_the_peak() -> None:
    config = make_config(peak=1.0, name="constant", warmup_steps=4)
    assert [learning_rate(step, config) for step in (1, 2, 4, 5, 100)] == [0.25, 0.5, 1.0, 1.0, 1.0]


def test_without_warmup_the_first_step_is_not_wasted() -> None:
    config = make_config(max_steps=10, peak=1.0, warmup_steps=0)
    assert learning_rate(1, config) == pytest.approx(0.9)
    assert learning_rate(10, config) == 0.0


def test_google_recipe() -> None:
    """google-research/bert: 1e-4, 10,000 steps of warm-up, linear to zero at 1,000,000."""
    config = make_config(max_steps=1_000_000, peak=1e-4, warmup_steps=10_000)
    assert learning_rate(10_000, config) == 1e-4
    assert learning_rate(505_000, config) == pytest.approx(0.5e-4)


def test_warmup_fraction_rounds_up() -> None:
    assert warmup_of(make_config(max_steps=150, warmup_fraction=0.01)) == 2
    assert [warmup_of(make_config(max_steps=100, warmup_fraction=share)) for share in (0.07, 0.14, 0.28)] == [7, 14, 28]
    assert warmup_of(make_config(max_steps=150, warmup_steps=7, warmup_fraction=0.5)) == 7


@pytest.mark.parametrize("step", [0, -1])
def test_steps_below_one_are_refused(step: int) -> None:
    with pytest.raises(ValueError, match=f"no learning rate for step {step}"):
        learning_rate(step, make_config())


@given(
    max_steps=st.integers(2, 10_000),
    fraction=st.floats(0, 0.9),
    final_factor=st.floats(0, 1),
    data=st.data(),
)
def test_rises_then_falls_within_bounds(
    max_steps: int, fraction: float, final_factor: float, data: st.DataObject
) -> None:
    config = make_config(max_steps=max_steps, peak=1.0, warmup_fraction=fraction, final_factor=final_factor)
    step = data.draw(st.integers(1, max_steps - 1))
    rate, following = learning_rate(step, config), learning_rate(step + 1, config)
    assert 0.0 <= rate <= 1.0
    assert rate <= following if step + 1 <= warmup_of(config) else following <= rate
    assert learning_rate(max_steps, config) == pytest.approx(final_factor, abs=1e-12) or warmup_of(config) == max_steps
