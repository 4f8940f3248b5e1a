"""ZeRO 0-3 are one training in four memory layouts, and the layouts are real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from toy_training import accumulate, make_config, make_engine, train
from trainer.engine.schedules import learning_rate
from worker_group import WorkerGroup

Groups = Callable[[int], WorkerGroup]
STEPS = 20


def run_stages(rank: int, stages: list[int], precision: str) -> dict[int, dict[str, Any]]:
    results = {}
    for stage in stages:
        config = make_config(zero_stage=stage, precision=precision)
        engine = make_engine(config)
        curve = train(engine, config, first=1, last=STEPS)
        results[stage] = {
            "losses": [loss for loss, _ in curve],
            "norms": [norm for _, norm in curve],
            "optimizer_bytes": engine.optimizer_bytes(),
            "parameter_bytes": engine.parameter_bytes(),
        }
        engine.close()
    return results


@pytest.fixture(scope="module")
def fp32_runs(worker_group: Groups) -> dict[int, list[dict[int, dict[str, Any]]]]:
    """World size -> rank -> stage -> what was measured."""
    return {world: worker_group(world).run(run_stages, [0, 1, 2, 3], "fp32") for world in (1, 2)}


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_fp32_losses_do_not_depend_on_the_stage(
    fp32_runs: dict[int, list[dict[int, dict[str, Any]]]], world: int, stage: int
) -> None:
    """DeepSpeed#8061, #5545: ZeRO-1/2 with overlap give NaN, a data race; off here, and equal to stage 0."""
    run = fp32_runs[world][0]
    np.testing.assert_allclose(run[stage]["losses"], run[0]["losses"], rtol=1e-5)
    np.testing.assert_allclose(run[stage]["norms"], run[0]["norms"], rtol=1e-5)
    assert run[0]["losses"][-1] < 0.7 * run[0]["losses"][0]


def test_every_rank_reports_the_same_norms(fp32_runs: dict[int, list[dict[int, dict[str, Any]]]]) -> None:
    first, second = fp32_runs[2]
    for stage in (0, 1, 2, 3):
        assert first[stage]["norms"] == second[stage]["norms"]


def test_stages_are_real(fp32_runs: dict[int, list[dict[int, dict[str, Any]]]]) -> None:
    """At two workers the moments halve in stages 1-3, the parameters in stage 3 (small ones stay whole)."""
    one, two = fp32_runs[1][0], fp32_runs[2][0]
    for stage in (1, 2, 3):
        assert two[stage]["optimizer_bytes"] / one[stage]["optimizer_bytes"] == pytest.approx(0.5, abs=0.01)
    assert two[0]["optimizer_bytes"] == one[0]["optimizer_bytes"]
    assert two[3]["parameter_bytes"] / two[0]["parameter_bytes"] == pytest.approx(0.5, abs=0.05)
    for stage in (1, 2):
        assert two[stage]["parameter_bytes"] == two[0]["parameter_bytes"]


def test_low_precision_follows_fp32(
    worker_group: Groups, fp32_runs: dict[int, list[dict[int, dict[str, Any]]]]
) -> None:
    """bf16 in every stage that has it stays near the fp32 curve (8 bits of mantissa: within 2%)."""
    expected = fp32_runs[2][0][0]["losses"]
    run = worker_group(2).run(run_stages, [1, 2, 3], "bf16")[0]
    for stage in (1, 2, 3):
        np.testing.assert_allclose(run[stage]["losses"], expected, rtol=0.02)


def one_step(rank: int, stage: int, mean_of_means: bool) -> dict[str, torch.Tensor]:
    """Adam's first moment after one unclipped step: a tenth of the gradient, exactly as the optimizer saw it."""
    config = make_config(zero_stage=stage, optimizer={"learning_rate": 1e-2, "clip_norm": 0.0})
    engine = make_engine(config)
    accumulate(engine, 1, mean_of_means=mean_of_means)
    engine.step(learning_rate(1, config))
    gradients = {}
    for piece in engine.local_slices():
        gradients[f"{piece.name}@{piece.start}"] = piece.tensors["exp_avg"].clone()
    everyone: list[Any] = [None] * engine.world_size
    dist.all_gather_object(everyone, gradients)
    engine.close()
    names = sorted({key.split("@")[0] for part in everyone for key in part})
    pieces = {key: values for part in everyone for key, values in part.items()}
    return {
        name: torch.cat([pieces[key] for key in sorted((k for k in pieces if k.split("@")[0] == name), key=_start)])
        for name in names
    }


def _start(key: str) -> int:
    return int(key.split("@")[1])


@pytest.fixture(scope="module")
def gradients_of_one_worker(worker_group: Groups) -> dict[str, torch.Tensor]:
    return worker_group(1).run(one_step, 0, False)[0]


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_gradients_do_not_depend_on_the_number_of_workers(
    worker_group: Groups, gradients_of_one_worker: dict[str, torch.Tensor], world: int, stage: int
) -> None:
    """Four lanes with unequal counts; three workers leave empty micro-batches.

    DeepSpeed#7839, #7985; accelerate#3877: accumulation changes the gradient.
    """
    assert _distance(worker_group(world).run(one_step, stage, False)[0], gradients_of_one_worker) < 1e-5


def test_a_mean_of_means_would_fail(worker_group: Groups, gradients_of_one_worker: dict[str, torch.Tensor]) -> None:
    assert _distance(worker_group(2).run(one_step, 1, True)[0], gradients_of_one_worker) > 1e-2


def _distance(gradients: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Norm of the difference over the norm, over all parameters."""
    assert gradients.keys() == expected.keys()
    difference = torch.cat([gradients[name] - expected[name] for name in expected]).norm()
    return float(difference / torch.cat(list(expected.values())).norm())
