"""BertForPretraining under every ZeRO stage: tied embedding, chunked head and dropout included."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from packed import random_batch
from pipeline.dataset.manifest import Special
from toy_training import save_checkpoint
from trainer.checkpoint import load
from trainer.config.schema import TrainerConfig
from trainer.engine.engine import Engine
from trainer.model import BertForPretraining, residual_norm
from trainer.model.batch import Batch, MicroBatchShape, to_batch
from worker_group import WorkerGroup

Groups = Callable[[int], WorkerGroup]
VOCABULARY = 300
LANES = [[9, 4], [5], [17, 3, 6], [12, 12]]
STEPS = 4


def make_config(stage: int, precision: str, *, dropout: float = 0.1, recompute: str = "none") -> TrainerConfig:
    return TrainerConfig.model_validate(
        {
            "data": "data",
            "output": "run",
            "batch": {"pairs": 8},
            "max_steps": 50,
            "model": {"size": "tiny", "dropout": dropout, "attention_dropout": dropout},
            "zero_stage": stage,
            "precision": precision,
            "recompute": recompute,
            "optimizer": {"learning_rate": 1e-3},
        }
    )


def lane_batch(step: int, lane: int | None) -> Batch:
    if lane is None:
        shape = MicroBatchShape(tokens=64, pairs=4, masked=16, max_seq_length=32)
        special = Special(pad=0, unk=100, cls=101, sep=102, mask=103)
        return to_batch(None, shape=shape, special=special, constant_shapes=False)
    return random_batch(LANES[lane], vocabulary_size=VOCABULARY, seed=10 * step + lane)


def run(
    rank: int, stage: int, precision: str, folder: str | None, dropout: float = 0.1, recompute: str = "none"
) -> dict[str, Any]:
    """Losses and norms of some steps; the last state is saved to `folder`."""
    torch.use_deterministic_algorithms(True)
    world = dist.get_world_size()
    micro_batches = -(-len(LANES) // world)
    config = make_config(stage, precision, dropout=dropout, recompute=recompute)
    model = BertForPretraining(config.model, vocabulary_size=VOCABULARY, seed=1)
    engine = Engine(model, config=config, device=torch.device("cpu"), micro_batches=micro_batches)
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        batches = [lane_batch(step, lane) for lane in range(len(LANES))]
        masked = sum(batch.num_masked for batch in batches)
        labelled = sum(batch.num_labelled for batch in batches)
        sums = torch.zeros(2, dtype=torch.float64)
        for index in range(micro_batches):
            lane = rank + index * world
            seed = hashlib.blake2b(f"{step}/{lane}".encode(), digest_size=4).digest()
            torch.manual_seed(int.from_bytes(seed, "little"))
            output = engine(lane_batch(step, lane if lane < len(LANES) else None))
            loss = output.mlm_loss_sum / masked + output.nsp_loss_sum / labelled
            engine.backward(loss * world, last=index == micro_batches - 1)
            sums += torch.stack([output.mlm_loss_sum, output.nsp_loss_sum]).detach().double()
        norms.append(engine.step(1e-3).grad_norm)
        dist.all_reduce(sums)
        losses.append(float(sums[0] / masked + sums[1] / labelled))
    with engine.evaluation():
        held_out = float(engine(lane_batch(99, 2)).mlm_loss_sum)
    if folder is not None:
        save_checkpoint(folder, step=STEPS, engine=engine, plan_state={}, config=config)
    result = {"losses": losses, "norms": norms, "held_out": held_out, "bytes": engine.parameter_bytes()}
    assert model.encoder.recompute == (recompute == "layers")
    engine.close()
    return result


@pytest.fixture(scope="module")
def alone(worker_group: Groups) -> dict[str, Any]:
    return worker_group(1).run(run, 0, "fp32", None)[0]


@pytest.mark.parametrize(("world", "stage"), [(1, 1), (2, 1), (2, 2), (2, 3), (3, 3), (4, 0)])
def test_same_losses_in_every_stage(worker_group: Groups, alone: dict[str, Any], world: int, stage: int) -> None:
    """Dropout is on and seeded by lane; three workers have empty micro-batches."""
    result = worker_group(world).run(run, stage, "fp32", None)[0]
    np.testing.assert_allclose(result["losses"], alone["losses"], rtol=1e-5)
    np.testing.assert_allclose(result["norms"], alone["norms"], rtol=1e-5)
    np.testing.assert_allclose(result["held_out"], alone["held_out"], rtol=1e-5)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_low_precision(worker_group: Groups, alone: dict[str, Any], stage: int) -> None:
    result = worker_group(2).run(run, stage, "bf16", None)[0]
    np.testing.assert_allclose(result["losses"], alone["losses"], rtol=0.01)


@pytest.mark.parametrize(
    ("world", "stage", "precision"),
    [(2, 0, "fp32"), (1, 1, "fp32"), (2, 1, "bf16"), (2, 2, "fp32"), (2, 3, "fp32"), (3, 3, "bf16")],
)
def test_layers_that_backward_computes_again_have_the_same_bits(
    worker_group: Groups, world: int, stage: int, precision: str
) -> None:
    """Dropout is on; three workers have empty micro-batches."""
    stored, again = (worker_group(world).run(run, stage, precision, None, 0.1, way)[0] for way in ("none", "layers"))
    for key in ("losses", "norms", "held_out", "bytes"):
        assert again[key] == stored[key], key


def test_parameters_are_shared_out_in_stage_3(worker_group: Groups, alone: dict[str, Any]) -> None:
    result = worker_group(2).run(run, 3, "fp32", None)[0]
    assert result["bytes"] / alone["bytes"] == pytest.approx(0.5, abs=0.02)


def run_fused(rank: int, stage: int) -> dict[str, Any]:
    """`run` through the fused ends of layers, with torch's parts where a GPU has kernels; and how often they ran."""
    calls = []

    def fused(
        branch: Tensor,
        residual: Tensor,
        gradient_sink: Tensor,
        weight: Tensor,
        bias: Tensor,
        branch_bias: Tensor,
        *rest: Any,
    ) -> tuple[Tensor, ...]:
        calls.append(rest)
        assert not residual.requires_grad
        gradients_alone = [tensor - tensor.detach() for tensor in (gradient_sink, branch_bias)]
        total = branch + residual + gradients_alone[0] + gradients_alone[1]
        out, mean, rstd = torch.native_layer_norm(total, weight.shape, weight, bias, rest[-1])
        return out, out, mean, rstd

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(residual_norm, "_kernels_take", lambda hidden: True)
        patch.setattr(residual_norm, "residual_norm", fused)
        return {**run(rank, stage, "fp32", None, 0.0), "fused": len(calls)}


def test_no_bias_is_used_outside_its_layer_in_stage_3(worker_group: Groups) -> None:
    """It may be gone by then, and its gradient has no place; in other stages the end of a layer makes it."""
    parted = worker_group(2).run(run, 1, "fp32", None, 0.0)[0]
    for stage in (1, 3):
        found = worker_group(2).run(run_fused, stage)[0]
        assert (found["fused"] > 0) == (stage == 1)
        np.testing.assert_allclose(found["losses"], parted["losses"], rtol=1e-5)
        np.testing.assert_allclose(found["norms"], parted["norms"], rtol=1e-5)


@pytest.mark.parametrize("stage", [1, 3])
def test_weights_come_out_under_the_models_names(worker_group: Groups, tmp_path: Path, stage: int) -> None:
    """Loaded into a new model they give the held-out loss that the engine gave."""
    result = worker_group(2).run(run, stage, "fp32", str(tmp_path))[0]
    model = BertForPretraining(make_config(1, "fp32").model, vocabulary_size=VOCABULARY, seed=2)
    weights = load.read_weights(load.newest_verified(load.find_checkpoints(tmp_path)) or tmp_path)
    assert weights.keys() == dict(model.named_parameters()).keys()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    model.eval()
    assert float(model(lane_batch(99, 2)).mlm_loss_sum.detach()) == pytest.approx(result["held_out"], rel=1e-5)
