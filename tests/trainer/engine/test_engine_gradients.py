"""Gradients in buckets of our own: DeepSpeed's numbers, whatever the buckets, and none of its own path left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from toy_training import ToyModel, gather_state, make_config, make_engine, train
from trainer.engine import gradients
from trainer.engine.engine import Engine
from worker_group import WorkerGroup

Groups = Callable[[int], WorkerGroup]
STEPS = 4


def run_layout(
    rank: int, stage: int, precision: str, raw: dict[str, Any], bucket: int | None
) -> tuple[list[tuple[float, float]], dict[str, torch.Tensor]]:
    """(loss, norm) of each step and the parameters after the last; `raw`: DeepSpeed settings, `bucket`: elements."""
    with pytest.MonkeyPatch.context() as patch:
        if bucket is not None:
            patch.setattr(gradients, "LARGEST_BUCKET", bucket)
        config = make_config(zero_stage=stage, precision=precision, deepspeed=raw)
        engine = make_engine(config)
        curve = train(engine, config, first=1, last=STEPS)
        parameters = gather_state(engine)["parameter"]
        engine.close()
    return curve, parameters


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 0.02)])
def test_the_numbers_are_those_of_deepspeeds_own_path(
    worker_group: Groups, world: int, stage: int, precision: str, tolerance: float
) -> None:
    group = worker_group(world)
    curve, _ = group.run(run_layout, stage, precision, {}, None)[0]
    theirs, _ = group.run(run_layout, stage, precision, {"wall_clock_breakdown": False}, None)[0]
    np.testing.assert_allclose(curve, theirs, rtol=tolerance)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("stage", [1, 2])
def test_buckets_of_any_size_give_the_same_bits(worker_group: Groups, world: int, stage: int) -> None:
    """Also such as hold less than a parameter, and such as the padding at the end falls into."""
    group = worker_group(world)
    whole = group.run(run_layout, stage, "fp32", {}, None)[0]
    for bucket in (7, 1_000):
        curve, parameters = group.run(run_layout, stage, "fp32", {}, bucket)[0]
        assert [loss for loss, _ in curve] == [loss for loss, _ in whole[0]]
        assert all(torch.equal(parameters[name], values) for name, values in whole[1].items())


class HalfUsed(ToyModel):
    """A model one of whose parameters no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = torch.nn.Parameter(torch.ones(50))


def train_half_used(rank: int, stage: int) -> dict[str, dict[str, torch.Tensor]]:
    config = make_config(zero_stage=stage)
    torch.manual_seed(0)
    engine = Engine(HalfUsed(), config=config, device=torch.device("cpu"), micro_batches=4 // 2)
    train(engine, config, first=1, last=2)
    state = gather_state(engine)
    engine.close()
    return state


@pytest.mark.parametrize("stage", [1, 2])
def test_a_parameter_without_gradient_stands_still(worker_group: Groups, stage: int) -> None:
    """The buckets are used again: what another parameter left there must not be taken for its gradient."""
    state = worker_group(2).run(train_half_used, stage)[0]
    assert torch.equal(state["parameter"]["unused"], torch.ones(50))
    assert not state["exp_avg_sq"]["unused"].any()
    assert state["exp_avg_sq"]["shrink.bias"].all()


class Opposites(torch.nn.Module):
    """Its gradient is what it is given: parameters in two groups, a matrix and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.ones(3, 7))
        self.bias = torch.nn.Parameter(torch.ones(5))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return ((self.matrix.sum() + self.bias.sum()) * gradient).float()


def sum_gradients(rank: int, stage: int, raw: dict[str, Any], communication: str, lanes: int) -> list[float]:
    """Mean over three ranks and sum over `lanes` of 1, 2^-9 and -1: what Adam's first moment has seen of it."""
    optimizer = {"clip_norm": 0.0, "beta1": 0.5}
    config = make_config(
        zero_stage=stage, precision="bf16", deepspeed=raw, communication_data_type=communication, optimizer=optimizer
    )
    engine = Engine(Opposites(), config=config, device=torch.device("cpu"), micro_batches=lanes)
    gradient = torch.tensor([1.0, 2.0**-9, -1.0][rank], dtype=torch.bfloat16)
    for lane in range(lanes):
        engine.backward(engine(gradient) * 1.0, last=lane + 1 == lanes)  # DeepSpeed divides a loss that is the output
    engine.step(1e-3)
    moments = gather_state(engine)["exp_avg"]
    engine.close()
    return sorted({float(value) for values in moments.values() for value in values.view(-1)})


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("raw", [{}, {"wall_clock_breakdown": False}], ids=["own", "deepspeed"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_sums_of_ranks_in_fp32_keep_what_bf16_loses(
    worker_group: Groups, stage: int, raw: dict[str, Any], lanes: int
) -> None:
    """1 + 2^-9 is 1 in bf16, whose mantissa has 8 bits; in which order ranks are added depends on the element."""
    group = worker_group(3)
    exact = lanes * 2.0**-9 / 3 / 2
    kept = group.run(sum_gradients, stage, raw, "fp32", lanes)[0]
    assert kept == pytest.approx([exact] * len(kept), rel=5e-3)
    lost = group.run(sum_gradients, stage, raw, "as_computed", lanes)[0]
    assert (0.0 in lost) != (stage == 1 and not raw and lanes > 1)  # there all sums over micro-batches are fp32


def gradients_of(rank: int, raw: dict[str, Any]) -> tuple[int, bool]:
    """Hooks of DeepSpeed on gradients, and whether a step leaves any gradient behind."""
    config = make_config(zero_stage=1, deepspeed=raw)
    engine = make_engine(config)
    train(engine, config, first=1, last=1)
    hooks = len(engine._engine.optimizer._grad_acc_hooks)
    left = any(parameter.grad is not None for parameter in engine.module.parameters())
    engine.close()
    return hooks, left


def test_nothing_of_deepspeeds_path_is_left(worker_group: Groups) -> None:
    assert worker_group(1).run(gradients_of, {})[0] == (0, False)
    hooks, _ = worker_group(1).run(gradients_of, {"wall_clock_breakdown": False})[0]
    assert hooks == 8  # one a parameter


def train_in_two(rank: int, stage: int) -> list[float]:
    """Losses of steps that have two micro-batches where three are allowed, as a phase with fewer lanes has."""
    config = make_config(zero_stage=stage)
    torch.manual_seed(0)
    engine = Engine(ToyModel(), config=config, device=torch.device("cpu"), micro_batches=3)
    engine.micro_batches = 2
    losses = [loss for loss, _ in train(engine, config, first=1, last=3)]
    engine.close()
    return losses


@pytest.mark.parametrize("stage", [1, 2])
def test_a_step_may_have_fewer_micro_batches(worker_group: Groups, stage: int) -> None:
    whole = [loss for loss, _ in worker_group(2).run(run_layout, stage, "fp32", {}, None)[0][0]]
    assert worker_group(2).run(train_in_two, stage)[0] == whole[:3]
