"""AdamW, LAMB, RAdam, SGD and Muon under every ZeRO stage, against their papers in fp64."""

from __future__ import annotations

import logging
import logging.handlers
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import small_runs
from small_runs import write_small_set
from toy_training import NUM_LANES, ToyModel, gather_state, lane_batch, make_config, micro_batches, train
from trainer.config import OptimizerConfig
from trainer.engine.engine import Engine
from trainer.engine.optimizers import build_optimizer, count_matrices, hidden_matrices, parameter_groups
from trainer.engine.schedules import learning_rate
from trainer.engine.update_rules import Layout, MatrixPart, orthogonalize
from trainer.model import BertForPretraining
from worker_group import WorkerGroup

Groups = Callable[[int], WorkerGroup]
RATES = {"adamw": 1e-2, "lamb": 2e-2, "radam": 1e-2, "sgd": 1e-1, "muon": 2e-2}
UNCORRECTED = ("adamw", "lamb", "muon")
"""Optimizers that also work without bias correction, as google-research/bert's."""
STEPS = 8
RAW = {"wall_clock_breakdown": False}
LAYOUTS: list[tuple[int, int, dict[str, Any]]] = [
    *((world, stage, {}) for world, stages in ((1, (0, 1, 3)), (2, (0, 1, 2, 3)), (3, (1, 2, 3))) for stage in stages),
    (2, 1, RAW),
]
"""World size, ZeRO stage, and DeepSpeed settings, which make it take its own step."""
CASES = [
    *((name, True, *layout) for name in RATES for layout in LAYOUTS),
    *((name, False, *layout) for name in UNCORRECTED for layout in LAYOUTS[::2]),
]
"""Optimizer, whether it corrects the bias, and layout."""


def settings_of(name: str, *, corrected: bool = True) -> dict[str, Any]:
    changes = {} if name == "sgd" else {"beta2": 0.98}
    changes |= {} if corrected else {"bias_correction": False}
    return {"name": name, "learning_rate": RATES[name], "weight_decay": 0.1, "clip_norm": 0.5, **changes}


class StackedModel(ToyModel):
    """The toy model with three matrices in one weight, as query, key and value are stored."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Linear(24, 39)
        self.expand.num_matrices = 3  # type: ignore[assignment]
        self.norm = nn.LayerNorm(39)
        self.shrink = nn.Linear(39, 24)


@cache
def follow_the_paper(name: str, *, corrected: bool = True) -> dict[str, Tensor]:
    """The parameters after STEPS updates, in fp64, one matrix after another. `corrected`: with bias correction."""
    config = make_config(optimizer=settings_of(name))
    torch.manual_seed(0)
    model = StackedModel().double()
    memory: dict[str, tuple[Tensor, Tensor]] = {}
    for step in range(1, STEPS + 1):
        model.zero_grad()
        lanes = [lane_batch(step, lane) for lane in range(NUM_LANES)]
        total = sum(model(ids, labels, weights.double()) for ids, labels, weights in lanes)
        (total / sum(len(ids) for ids, _, _ in lanes)).backward()
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None))
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None
            gradient = parameter.grad * min(1.0, 0.5 / norm)
            moments = memory.setdefault(key, (torch.zeros_like(parameter), torch.zeros_like(parameter)))
            decay = 0.1 if parameter.dim() > 1 else 0.0
            hidden = key in ("expand.weight", "shrink.weight")
            with torch.no_grad():
                cut = 3 if key == "expand.weight" else 1
                parts = zip(*(value.chunk(cut) for value in (parameter, gradient, *moments)), strict=True)
                for weights, part, mean, square in parts:
                    update = RULES[name](part, mean, square, step if corrected else math.inf, hidden)
                    update = update + decay * weights
                    if name == "lamb" and parameter.dim() > 1:
                        update *= weights.norm() / update.norm()
                    weights.sub_(learning_rate(step, config) * update)
    return {key: p.detach() for key, p in model.named_parameters()}


def adam(gradient: Tensor, mean: Tensor, square: Tensor, step: float, hidden: bool) -> Tensor:
    mean.copy_(0.9 * mean + 0.1 * gradient)
    square.copy_(0.98 * square + 0.02 * gradient**2)
    return mean / (1 - 0.9**step) / ((square / (1 - 0.98**step)).sqrt() + 1e-6)


def radam(gradient: Tensor, mean: Tensor, square: Tensor, step: float, hidden: bool) -> Tensor:
    mean.copy_(0.9 * mean + 0.1 * gradient)
    square.copy_(0.98 * square + 0.02 * gradient**2)
    most = 2 / (1 - 0.98) - 1
    freedom = most - 2 * step * 0.98**step / (1 - 0.98**step)
    if freedom <= 5:
        return mean / (1 - 0.9**step)
    rectified = math.sqrt((freedom - 4) * (freedom - 2) * most / ((most - 4) * (most - 2) * freedom))
    return rectified * mean / (1 - 0.9**step) * math.sqrt(1 - 0.98**step) / (square.sqrt() + 1e-6)


def sgd(gradient: Tensor, mean: Tensor, square: Tensor, step: float, hidden: bool) -> Tensor:
    mean.copy_(0.9 * mean + gradient)
    return mean.clone()


def muon(gradient: Tensor, mean: Tensor, square: Tensor, step: float, hidden: bool) -> Tensor:
    """By singular values: Newton-Schulz maps each of them by the same polynomial."""
    if not hidden:
        return adam(gradient, mean, square, step, hidden)
    mean.copy_(0.95 * mean + 0.05 * gradient)
    left, values, right = torch.linalg.svd(0.05 * gradient + 0.95 * mean, full_matrices=False)
    values /= values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left @ values.diag() @ right * 0.2 * math.sqrt(max(gradient.shape))


RULES: dict[str, Callable[..., Tensor]] = {"adamw": adam, "lamb": adam, "radam": radam, "sgd": sgd, "muon": muon}


def follow_the_engine(
    rank: int, name: str, stage: int, raw: dict[str, Any], precision: str, corrected: bool = True
) -> dict[str, Any]:
    """The same by the engine, which at half of the steps is replaced by a new one with the saved state."""
    optimizer = settings_of(name, corrected=corrected)
    config = make_config(zero_stage=stage, optimizer=optimizer, deepspeed=raw, precision=precision)
    engine = new_engine(config)
    train(engine, config, first=1, last=STEPS // 2)
    state = gather_state(engine)
    engine.close()
    engine = new_engine(config, seed=1)

    def read(key: str, start: int, stop: int) -> dict[str, Tensor]:
        return {kind: of_kind[key].view(-1)[start:stop] for kind, of_kind in state.items() if key in of_kind}

    engine.restore(read, steps_taken=STEPS // 2)
    train(engine, config, first=STEPS // 2 + 1, last=STEPS)
    result = {"state": gather_state(engine), "bytes": engine.optimizer_bytes()}
    engine.close()
    return result


def new_engine(config: Any, *, seed: int = 0) -> Engine:
    torch.manual_seed(seed)
    world_size = torch.distributed.get_world_size()
    return Engine(StackedModel(), config=config, device=torch.device("cpu"), micro_batches=micro_batches(world_size))


@pytest.mark.parametrize(("name", "corrected", "world", "stage", "raw"), CASES)
def test_each_rule_is_its_papers_in_every_stage_and_after_a_resume(
    worker_group: Groups, name: str, corrected: bool, world: int, stage: int, raw: dict[str, Any]
) -> None:
    found = worker_group(world).run(follow_the_engine, name, stage, raw, "fp32", corrected)[0]["state"]
    wanted = follow_the_paper(name, corrected=corrected)
    assert found["parameter"].keys() == wanted.keys()
    for key, exact in wanted.items():
        torch.testing.assert_close(
            found["parameter"][key].double(), exact, rtol=1e-4, atol=3e-5, msg=lambda m, k=key: f"{k}: {m}"
        )
    one = {"sgd": wanted.keys(), "muon": {"expand.weight", "shrink.weight"}}.get(name, set())
    assert wanted.keys() - found.get("exp_avg_sq", {}).keys() == set(one)


@pytest.mark.parametrize("name", UNCORRECTED)
def test_bias_correction_can_be_told_by_the_parameters(name: str) -> None:
    exact, other = (follow_the_paper(name, corrected=corrected) for corrected in (True, False))
    assert max(float((other[key] - value).abs().max()) for key, value in exact.items()) > 5e-3


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bf16_stays_near(worker_group: Groups, name: str, stage: int) -> None:
    """The masters stay near the fp32 parameters, which a step with other matrices or norms would leave."""
    found = worker_group(2).run(follow_the_engine, name, stage, {}, "bf16")[0]["state"]["parameter"]
    for key, exact in follow_the_paper(name).items():
        assert float((found[key] - exact).norm() / (exact.norm() + 0.1)) < 0.05, key


def test_muon_keeps_one_moment_of_hidden_matrices(worker_group: Groups) -> None:
    runs = {name: worker_group(1).run(follow_the_engine, name, 0, {}, "fp32")[0] for name in ("muon", "sgd", "lamb")}
    parameters = runs["lamb"]["state"]["parameter"]
    total, hidden = sum(map(torch.numel, parameters.values())), 2 * 24 * 39
    assert {name: run["bytes"] for name, run in runs.items()} == {
        "lamb": 8 * total,
        "muon": 8 * total - 4 * hidden,
        "sgd": 4 * total,
    }


def overflow(rank: int, name: str) -> tuple[bool, bool]:
    """Whether a step with a gradient that is not finite was skipped, and left parameters and moments as they were."""
    config = make_config(zero_stage=1, optimizer={"name": name, "learning_rate": 1e-2})
    engine = new_engine(config)
    train(engine, config, first=1, last=2)
    before = gather_state(engine)
    ids, labels, weights = lane_batch(3, 0)
    for index in range(engine.micro_batches):
        engine.backward(engine(ids, labels, weights * math.inf), last=index + 1 == engine.micro_batches)
    skipped = engine.step(1e-2).skipped
    after = gather_state(engine)
    same = all(torch.equal(before[kind][key], after[kind][key]) for kind in before for key in before[kind])
    engine.close()
    return skipped, same


@pytest.mark.parametrize("name", RATES)
def test_a_step_that_is_not_finite_changes_nothing(worker_group: Groups, name: str) -> None:
    assert worker_group(2).run(overflow, name) == [(True, True)] * 2


def collect_warnings(rank: int) -> list[str]:
    logger, found = logging.getLogger("DeepSpeed"), logging.handlers.BufferingHandler(1000)
    logger.addHandler(found)
    try:
        new_engine(make_config(zero_stage=1, optimizer={"name": "lamb"})).close()
    finally:
        logger.removeHandler(found)
    return [record.getMessage() for record in found.buffer]


def test_deepspeed_does_not_warn_of_our_optimizers(worker_group: Groups) -> None:
    assert worker_group(1).run(collect_warnings) == [[]]


def test_bert_gives_muon_its_hidden_matrices_and_says_where_three_are_one() -> None:
    model = BertForPretraining(make_config(model={"size": "tiny"}).model, vocabulary_size=64, seed=0)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = parameter_groups(model, weight_decay=0.1, name="muon")
    found = {
        rule: {names[id(p)] for g in groups if g["rule"] == rule for p in g["params"]} for rule in ("muon", "adamw")
    }
    inner = {"attention.qkv", "attention.output", "feed_forward.up", "feed_forward.down"}
    hidden = {f"encoder.layers.{layer}.{part}.weight" for layer in (0, 1) for part in inner}
    assert found["muon"] == hidden | {"pooler.dense.weight", "mlm_head.dense.weight"}
    assert found["adamw"] == set(names.values()) - found["muon"]
    assert {names[key] for key in hidden_matrices(model)} == found["muon"]
    assert count_matrices(model) == {f"encoder.layers.{layer}.attention.qkv.weight": 3 for layer in (0, 1)}


def test_parts_of_stacked_matrices_by_hand() -> None:
    """A rank has elements 5 to 20 of a parameter of three matrices of 2 x 4, at 100 of its partition."""
    layout = Layout()
    layout.add((3, 5), matrices=1, start=0, offset=0, length=0)
    layout.add((6, 4), matrices=3, start=5, offset=100, length=15)
    assert layout.shapes == [(3, 5), (2, 4), (2, 4), (2, 4)]
    assert layout.parts == [MatrixPart(1, 5, 100, 3), MatrixPart(2, 0, 103, 8), MatrixPart(3, 0, 111, 4)]


def test_orthogonalize_agrees_with_torchs_muon() -> None:
    """torch.optim.Muon iterates in bf16."""
    torch.manual_seed(0)
    for shape in ((16, 48), (48, 16), (32, 32)):
        weight = nn.Parameter(torch.zeros(shape))
        weight.grad = torch.randn(shape)
        torch.optim.Muon([weight], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False).step()
        ours = orthogonalize(weight.grad[None])[0] * math.sqrt(max(1.0, shape[0] / shape[1]))
        assert float((ours + weight.detach()).norm() / ours.norm()) < 0.03


@pytest.mark.parametrize("name", ["radam", "sgd"])
def test_agrees_with_torchs_own(name: str) -> None:
    """Over 10 steps of one vector, which no decay touches."""
    config = OptimizerConfig.model_validate({"name": name, "epsilon": 1e-8})
    ours, theirs = (nn.ParameterList([nn.Parameter(torch.linspace(-1, 1, 16))]) for _ in range(2))
    optimizer = build_optimizer(ours, config=config)
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    optimizer.bind({ours[0]: Layout()}, partitioned=False)  # type: ignore[union-attr]
    for moment in ("exp_avg", "exp_avg_sq"):
        optimizer.state[ours[0]][moment] = torch.zeros(16)
    other: torch.optim.Optimizer = torch.optim.SGD(theirs, lr=0.01, momentum=0.9)
    if name == "radam":
        other = torch.optim.RAdam(theirs, lr=0.01, decoupled_weight_decay=True)
    for step in range(1, 11):
        for parameter in (ours[0], theirs[0]):
            parameter.grad = torch.sin(step * torch.arange(16.0))
        optimizer.param_groups[0]["update"] = float(step)
        optimizer.step()
        other.step()
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["muon", "lamb"])
def test_a_run_resumes_bit_for_bit_and_in_another_layout(worker_group: Groups, tmp_path: Path, name: str) -> None:
    """Through checkpoint files, which hold only the moments that the optimizer keeps."""
    data = write_small_set(tmp_path / "set")

    def configure(output: str, **changes: Any) -> Any:
        optimizer = {"name": name, "learning_rate": 3e-3}
        return small_runs.make_config(data, tmp_path / output, optimizer=optimizer, max_steps=6, **changes)

    pair = worker_group(2)
    small_runs.run(pair, configure("whole"))
    for output in ("stopped", "moved"):
        small_runs.run(pair, configure(output), stop_at=3)
    small_runs.run(pair, configure("stopped"))
    small_runs.run(worker_group(1), configure("moved", workers=1, zero_stage=3))
    whole = small_runs.curve(tmp_path / "whole")
    assert small_runs.curve(tmp_path / "stopped") == whole
    losses, moved = ([float.fromhex(row[1]) for row in small_runs.curve(tmp_path / run)] for run in ("whole", "moved"))
    assert moved == pytest.approx(losses, rel=1e-4)
