"""The engine's step: the norm it reports, what it skips, what it leaves alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toy_training
from pipeline.settings import ConfigError
from toy_training import (
    NUM_LANES,
    ToyModel,
    accumulate,
    empty_batch,
    gather_state,
    lane_batch,
    make_config,
    make_engine,
    train,
)
from trainer.engine import engine as engine_module
from trainer.engine.deepspeed_setup import deepspeed_dictionary
from trainer.engine.engine import Engine, LossScale
from worker_group import WorkerGroup

Groups = Callable[[int], WorkerGroup]
LAYOUTS = [(0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (1, "bf16"), (2, "bf16"), (3, "bf16")]


def reference_gradients() -> dict[str, torch.Tensor]:
    """Gradient of the mean over all labels of step 1, float64, without any engine."""
    torch.manual_seed(0)
    model = ToyModel().double()
    count = sum(len(lane_batch(1, lane)[0]) for lane in range(NUM_LANES))
    for lane in range(NUM_LANES):
        ids, labels, weights = lane_batch(1, lane)
        logits_sum = model(ids, labels, weights.double())
        (logits_sum.double() / count).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def first_step(rank: int, stage: int, precision: str, clip_norm: float) -> tuple[float, dict[str, torch.Tensor]]:
    """(reported norm, gradient as AdamW saw it: ten times its first moment after one step)."""
    config = make_config(
        zero_stage=stage, precision=precision, optimizer={"learning_rate": 1e-2, "clip_norm": clip_norm}
    )
    engine = make_engine(config)
    accumulate(engine, 1)
    result = engine.step(1e-2)
    moments = gather_state(engine)["exp_avg"]
    engine.close()
    assert not result.skipped
    return result.grad_norm, {name: moment * 10 for name, moment in moments.items()}


@pytest.mark.parametrize(("stage", "precision"), LAYOUTS)
@pytest.mark.parametrize("clip_norm", [0.0, 0.5])
def test_norm_is_reported_before_clipping(worker_group: Groups, stage: int, precision: str, clip_norm: float) -> None:
    expected = reference_gradients()
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in expected.values()))
    assert norm > 1.0
    answers = worker_group(2).run(first_step, stage, precision, clip_norm)
    reported, seen = answers[0]
    assert answers[1][0] == reported
    tolerance = 1e-5 if precision == "fp32" else 0.02
    assert reported == pytest.approx(norm, rel=tolerance)
    factor = clip_norm / norm if clip_norm else 1.0
    for name, gradient in expected.items():
        error = (seen[name] - factor * gradient.float()).norm() / (factor * gradient.norm())
        assert error < tolerance * 2, (name, error)


def poisoned_step(rank: int, stage: int, precision: str, lanes_each: int, poison: float) -> dict[str, Any]:
    """Two good steps, one in which lane 1's loss is `poison` times too large, two good ones."""
    config = make_config(zero_stage=stage, precision=precision)
    torch.manual_seed(0)
    engine = Engine(ToyModel(), config=config, device=torch.device("cpu"), micro_batches=lanes_each)
    patch = pytest.MonkeyPatch()
    patch.setattr(toy_training, "NUM_LANES", lanes_each * engine.world_size)
    train(engine, config, first=1, last=2)
    before = gather_state(engine)
    accumulate(engine, 3, poison=poison)
    result = engine.step(1e-2)
    after = gather_state(engine)
    curve = train(engine, config, first=4, last=5)
    taken = engine.steps_taken
    engine.close()
    patch.undo()
    unchanged = all(torch.equal(before[kind][name], after[kind][name]) for kind in before for name in before[kind])
    return {"result": result, "unchanged": unchanged, "taken": taken, "curve": curve}


@pytest.mark.parametrize(("stage", "precision"), LAYOUTS)
def test_a_step_that_is_not_finite_is_not_applied(worker_group: Groups, stage: int, precision: str) -> None:
    """One rank's NaN or infinity: every rank skips, nothing moves, the next steps go on."""
    for lanes_each, poison in ((2, float("nan")), (1, float("inf"))):
        for answer in worker_group(2).run(poisoned_step, stage, precision, lanes_each, poison):
            assert answer["result"].skipped
            assert not math.isfinite(answer["result"].grad_norm)
            assert answer["unchanged"]
            assert answer["taken"] == 4
            assert np.isfinite(answer["curve"]).all()


def step_at_rate_zero(rank: int, stage: int) -> bool:
    engine = make_engine(make_config(zero_stage=stage))
    before = gather_state(engine)["parameter"]
    accumulate(engine, 1)
    engine.step(0.0)
    after = gather_state(engine)["parameter"]
    engine.close()
    return all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_the_rate_is_the_one_given(worker_group: Groups, stage: int) -> None:
    """At rate zero nothing moves, decay included: neither now nor while DeepSpeed initializes.

    DeepSpeed#5788: the rate jumps on resume.
    """
    assert worker_group(2).run(step_at_rate_zero, stage) == [True, True]


def train_with_evaluations(rank: int, stage: int, evaluate: bool) -> tuple[list[float], list[Any]]:
    config = make_config(zero_stage=stage)
    engine = make_engine(config)
    held_out, curve = [], []
    for step in range(1, 5):
        curve += train(engine, config, first=step, last=step)
        if evaluate:
            with engine.evaluation():
                assert not engine.module.training
                loss = engine(*(lane_batch(99, rank) if rank == 0 else empty_batch()))
                assert not loss.requires_grad
                held_out.append(float(loss))
            assert engine.module.training
    engine.close()
    return held_out, curve


def test_evaluation_leaves_training_alone(worker_group: Groups) -> None:
    held_out = {}
    for stage in (0, 1, 2, 3):
        held_out[stage], curve = worker_group(2).run(train_with_evaluations, stage, True)[0]
        _, undisturbed = worker_group(2).run(train_with_evaluations, stage, False)[0]
        assert curve == undisturbed
    for stage in (1, 2, 3):
        np.testing.assert_allclose(held_out[stage], held_out[0], rtol=1e-5)
    assert held_out[0][-1] < held_out[0][0]


def train_twice(rank: int, stage: int) -> bool:
    config = make_config(zero_stage=stage)
    curves = []
    for _ in range(2):
        engine = make_engine(config)
        curves.append(train(engine, config, first=1, last=4))
        engine.close()
    return curves[0] == curves[1]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_same_run_has_the_same_bits(worker_group: Groups, stage: int) -> None:
    assert worker_group(3).run(train_twice, stage) == [True] * 3


def train_fp16(rank: int, stage: int) -> dict[str, Any]:
    from deepspeed.accelerator import get_accelerator

    patch = pytest.MonkeyPatch()
    patch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)
    patch.setattr(engine_module, "SCALE_WINDOW", 3)
    config = make_config(zero_stage=stage, precision="fp16")
    engine = make_engine(config)
    scales, curve = [engine._engine.optimizer.loss_scale], []
    for step in range(1, 9):
        loss = accumulate(engine, step, poison=float("inf") if step == 4 else 1.0)
        result = engine.step(1e-2)
        scales.append(engine._engine.optimizer.loss_scale)  # what DeepSpeed will scale the next loss by
        curve.append((loss, result.grad_norm))
    taken = engine.steps_taken
    engine.restore(lambda name, start, stop: {}, steps_taken=7, loss_scale=LossScale(value=128.0, finite_steps=1))
    accumulate(engine, 9)
    norm_after_restore = engine.step(1e-2).grad_norm
    engine.close()
    patch.undo()
    return {"scales": scales, "curve": curve, "taken": taken, "norm": norm_after_restore}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_fp16_scales_its_loss(worker_group: Groups, stage: int) -> None:
    """Doubled after three finite steps, halved at the overflow in step 4; losses and norms are unscaled."""
    run = worker_group(2).run(train_fp16, stage)[0]
    assert run["scales"] == [2.0**16] * 3 + [2.0**17] + [2.0**16] * 3 + [2.0**17] * 2
    assert run["taken"] == 7
    steady = worker_group(2).run(train_steady, stage)[0]
    losses = [loss for loss, _ in run["curve"]]
    np.testing.assert_allclose(losses[:4], [loss for loss, _ in steady[:4]], rtol=0.02)
    assert run["curve"][2][1] == pytest.approx(steady[2][1], rel=0.03)
    assert not math.isfinite(run["curve"][3][1])
    assert 0.0 < run["norm"] < 10.0


def train_steady(rank: int, stage: int) -> list[tuple[float, float]]:
    engine = make_engine(make_config(zero_stage=stage))
    curve = []
    for step in range(1, 5):
        loss = accumulate(engine, step)
        curve.append((loss, engine.step(1e-2).grad_norm))
    engine.close()
    return curve


def refuse_fp16(rank: int) -> str:
    from deepspeed.accelerator import get_accelerator

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(get_accelerator(), "is_fp16_supported", lambda: False)
        with pytest.raises(ConfigError) as caught:
            make_engine(make_config(zero_stage=1, precision="fp16"))
    return str(caught.value)


def test_fp16_where_the_machine_cannot_is_refused(worker_group: Groups) -> None:
    assert worker_group(1).run(refuse_fp16) == ["precision=fp16: not supported on this cpu; set precision=bf16 or fp32"]


def look_at_the_process(rank: int) -> dict[str, Any]:
    import deepspeed.ops

    linear = torch.nn.functional.linear
    make_engine(make_config(zero_stage=3)).close()
    return {"compiled": deepspeed.ops.__compatible_ops__, "linear": torch.nn.functional.linear is linear}


def test_deepspeed_compiles_nothing_and_replaces_nothing(worker_group: Groups) -> None:
    seen = worker_group(2).run(look_at_the_process)[0]
    assert seen["compiled"] == {"deepspeed_shm_comm": False}
    assert seen["linear"]


def test_needs_a_process_group() -> None:
    with pytest.raises(RuntimeError, match="needs an initialized process group"):
        Engine(ToyModel(), config=make_config(), device=torch.device("cpu"), micro_batches=1)


def test_dictionary_by_hand() -> None:
    config = make_config(zero_stage=3, precision="bf16", optimizer={"clip_norm": 0.7}, deepspeed={})
    assert deepspeed_dictionary(config, micro_batches=3, num_elements=777) == {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 3,
        "gradient_clipping": 0.7,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**62,
        "zero_optimization": {
            "stage": 3,
            "reduce_bucket_size": 777,
            "overlap_comm": False,
            "contiguous_gradients": True,
            "reduce_scatter": True,
            "memory_efficient_linear": False,
            "stage3_param_persistence_threshold": 8192,
        },
        "bf16": {"enabled": True, "check_grad_overflow": False},
        "data_types": {"grad_accum_dtype": "fp32"},
    }


def test_deepspeed_sends_fp32_too() -> None:
    config = make_config(zero_stage=3, precision="bf16", communication_data_type="fp32")
    settings = deepspeed_dictionary(config, micro_batches=1, num_elements=777)
    assert settings["communication_data_type"] == "fp32"
    assert settings["data_types"] == {"grad_accum_dtype": "fp32"}


def test_gradients_summed_in_our_own_buffers_need_no_others() -> None:
    config = make_config(zero_stage=2, precision="bf16")
    assert "data_types" not in deepspeed_dictionary(config, micro_batches=3, num_elements=777)
    raw = make_config(zero_stage=2, precision="bf16", deepspeed={"wall_clock_breakdown": False})
    assert deepspeed_dictionary(raw, micro_batches=3, num_elements=777)["data_types"] == {"grad_accum_dtype": "fp32"}


def test_raw_keys_go_over_the_derived_ones() -> None:
    raw = {
        "zero_optimization": {"contiguous_gradients": False, "reduce_bucket_size": 1000},
        "wall_clock_breakdown": True,
    }
    settings = deepspeed_dictionary(make_config(zero_stage=1, deepspeed=raw), micro_batches=1, num_elements=7)
    assert settings["wall_clock_breakdown"] is True
    assert settings["zero_optimization"]["stage"] == 1
    assert settings["zero_optimization"]["contiguous_gradients"] is False
    assert settings["zero_optimization"]["reduce_bucket_size"] == 1000
    assert "data_types" not in settings


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"gradient_clipping": 1.0}, "deepspeed.gradient_clipping: .* set optimizer.clip_norm"),
        ({"gradient_clipping": None}, "deepspeed.gradient_clipping: .* set optimizer.clip_norm"),
        ({"zero_optimization": 3}, "deepspeed.zero_optimization=3: must be a mapping of settings"),
        ({"zero_optimization": {"stage": 3}}, "deepspeed.zero_optimization.stage: .* set zero_stage"),
        ({"fp16": {"enabled": True}}, "deepspeed.fp16.enabled: .* set precision"),
    ],
)
def test_raw_keys_with_a_field_of_their_own_are_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(zero_stage=1, deepspeed=raw)


def wait_for_a_silent_rank(rank: int, done: Path) -> str:
    """What rank 0 gets to hear from its gradients' reduction while rank 1 does not take part in it."""
    own_path = {"wall_clock_breakdown": False}  # DeepSpeed's, in its groups
    engine = make_engine(make_config(zero_stage=1, collective_timeout_s=10, deepspeed=own_path))
    if rank == 1:
        deadline = time.monotonic() + 300
        while not done.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return ""
    try:
        accumulate(engine, 1)
    except RuntimeError as error:
        return str(error)
    finally:
        done.touch()
    return "no error"


def test_no_rank_waits_longer_for_a_silent_one_than_the_config_says(tmp_path: Path) -> None:
    """ray#42008: also in the groups that DeepSpeed makes for itself, which torch would let wait for half an hour."""
    group = WorkerGroup(2)  # DeepSpeed keeps its groups for the life of a process
    try:
        heard, _ = group.run(wait_for_a_silent_rank, tmp_path / "done")
    finally:
        group.close()
    assert "Timed out waiting 10000ms" in heard
