"""Which parameters are decayed, and that AdamW does what its paper says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from toy_training import NUM_LANES, ToyModel, gather_state, lane_batch, make_config, make_engine, train
from trainer.config import OptimizerConfig
from trainer.engine.optimizers import build_optimizer, parameter_groups
from trainer.engine.schedules import learning_rate
from worker_group import WorkerGroup

SETTINGS = {"learning_rate": 1e-2, "weight_decay": 0.1, "beta2": 0.98, "clip_norm": 0.5}
STEPS = 6


class TiedModel(nn.Module):
    """A matrix used twice, biases and a LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.dense = nn.Linear(4, 4)
        self.LayerNorm = nn.LayerNorm(4)
        self.decoder = nn.Linear(4, 6)
        self.decoder.weight = self.embedding.weight


def test_only_matrices_decay_and_tied_ones_count_once() -> None:
    model = TiedModel()
    groups = parameter_groups(model, weight_decay=0.01)
    names = {id(p): name for name, p in model.named_parameters()}
    found = {decay: [] for decay in (0.01, 0.0)}
    for group in groups:
        found[group["weight_decay"]] += [names[id(p)] for p in group["params"]]
    assert sorted(found[0.01]) == ["dense.weight", "embedding.weight"]
    assert sorted(found[0.0]) == ["LayerNorm.bias", "LayerNorm.weight", "decoder.bias", "dense.bias"]


def test_what_follows_a_parameter_in_its_group_is_aligned() -> None:
    """All begin at a multiple of 8 elements: one of odd size stands last, the next of odd size in another group."""
    sizes = [(16,), (3,), (8,), (5,), (24,), (2, 4), (3, 3), (4, 4)]
    model = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)
    groups = parameter_groups(model, weight_decay=0.1)
    found = [[tuple(p.shape) for p in group["params"]] for group in groups]
    assert found == [[(2, 4), (4, 4), (3, 3)], [(16,), (8,), (24,), (3,)], [(5,)]]


def test_frozen_parameters_stay_out() -> None:
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    groups = parameter_groups(model, weight_decay=0.1)
    assert [len(group["params"]) for group in groups] == [1]


def test_nothing_to_train_is_refused() -> None:
    model = nn.Linear(3, 2).requires_grad_(False)
    with pytest.raises(ValueError, match="Linear has no trainable parameter"):
        parameter_groups(model, weight_decay=0.1)


def test_one_step_by_hand() -> None:
    """First step of AdamW: w - rate * (decay * w + g / (|g| + epsilon)), decay on the matrix alone."""
    model = nn.Linear(2, 1)
    config = OptimizerConfig(weight_decay=0.1, epsilon=1e-6)
    optimizer = build_optimizer(model, config=config)
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.0]
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    model.weight.grad = torch.tensor([[3.0, -0.5]])
    model.bias.grad = torch.tensor([2.0])
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), weight - 0.01 * (0.1 * weight + torch.tensor([[1.0, -1.0]])))
    torch.testing.assert_close(model.bias.detach(), bias - 0.01)


def follow_the_paper(*, bias_correction: bool) -> dict[str, Tensor]:
    """The toy model's parameters after STEPS updates in fp64, by Adam's paper or by google-research/bert."""
    config = make_config(optimizer=SETTINGS)
    torch.manual_seed(0)
    model = ToyModel().double()
    named = dict(model.named_parameters())
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in named.items()}
    for step in range(1, STEPS + 1):
        model.zero_grad()
        lanes = [lane_batch(step, lane) for lane in range(NUM_LANES)]
        total = sum(model(ids, labels, weights.double()) for ids, labels, weights in lanes)
        (total / sum(len(ids) for ids, _, _ in lanes)).backward()
        gradients = {name: p.grad for name, p in named.items() if p.grad is not None}
        norm = float(torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt())
        for name, parameter in named.items():
            gradient = gradients[name] * min(1.0, SETTINGS["clip_norm"] / norm)
            mean, square = moments[name]
            mean.mul_(0.9).add_(0.1 * gradient)
            square.mul_(0.98).add_(0.02 * gradient.square())
            first, second = (1 - 0.9**step, 1 - 0.98**step) if bias_correction else (1.0, 1.0)
            update = (mean / first) / ((square / second).sqrt() + 1e-6)
            decay = SETTINGS["weight_decay"] if parameter.dim() > 1 else 0.0
            with torch.no_grad():
                parameter.sub_(learning_rate(step, config) * (update + decay * parameter))
    return {name: p.detach() for name, p in named.items()}


def follow_the_engine(rank: int, stage: int, raw: dict[str, Any], bias_correction: bool) -> dict[str, Tensor]:
    """The same by the engine, resumed halfway."""
    config = make_config(
        zero_stage=stage, optimizer={**SETTINGS, "bias_correction": bias_correction}, deepspeed=raw, workers=2
    )
    engine = make_engine(config)
    train(engine, config, first=1, last=STEPS // 2)
    engine.restore(lambda name, start, stop: {}, steps_taken=STEPS // 2)
    train(engine, config, first=STEPS // 2 + 1, last=STEPS)
    parameters = gather_state(engine)["parameter"]
    engine.close()
    return parameters


@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize(("stage", "raw"), [(0, {}), (1, {}), (2, {}), (3, {}), (1, {"wall_clock_breakdown": False})])
def test_bias_is_corrected_as_in_the_paper_or_not_at_all(
    worker_group: Callable[[int], WorkerGroup], stage: int, raw: dict[str, Any], bias_correction: bool
) -> None:
    found = worker_group(2).run(follow_the_engine, stage, raw, bias_correction)[0]
    wanted = follow_the_paper(bias_correction=bias_correction)
    assert found.keys() == wanted.keys()
    for name, exact in wanted.items():
        torch.testing.assert_close(found[name].double(), exact, rtol=1e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")
    other = follow_the_paper(bias_correction=not bias_correction)
    assert max(float((other[name] - exact).abs().max()) for name, exact in wanted.items()) > 5e-3
