"""The real model under every ZeRO stage: tied table, packed batch and all heads train as without DeepSpeed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from packed import random_batch
from toy_training import make_config
from worker_group import WorkerGroup

from trainer.config import ModelConfig
from trainer.engine import Engine
from trainer.model import BertForPretraining

Groups = Callable[[int], WorkerGroup]
STEPS = 4
VOCABULARY = 300


def make_model(norm: str) -> BertForPretraining:
    config = ModelConfig(size="tiny", norm=norm, dropout=0.0, attention_dropout=0.0)
    return BertForPretraining(config, vocabulary_size=VOCABULARY, seed=5)


def lane_batch(rank: int, step: int) -> Any:
    return random_batch([5 + rank, 17, 9], vocabulary_size=VOCABULARY, seed=10 * step + rank)


Curve = list[tuple[float, float]]


def train(rank: int, variants: list[tuple[int, str, str]]) -> list[tuple[Curve, list[str]]]:
    """For each (stage, precision, norm): losses and norms of this rank's batches, and the names of its slices."""
    torch.use_deterministic_algorithms(True)
    results = []
    for stage, precision, norm in variants:
        config = make_config(zero_stage=stage, precision=precision)
        engine = Engine(make_model(norm), config=config, device=torch.device("cpu"), micro_batches=1)
        curve = []
        for step in range(STEPS):
            batch = lane_batch(rank, step)
            output = engine(batch)
            loss = output.mlm_loss_sum / batch.num_masked + output.nsp_loss_sum / batch.num_pairs
            engine.backward(loss, last=True)
            curve.append((loss.item(), engine.step(1e-2).grad_norm))
        results.append((curve, [piece.name for piece in engine.local_slices()]))
        engine.close()
    torch.use_deterministic_algorithms(False)
    return results


def train_plainly(world_size: int, norm: str) -> list[list[float]]:
    """Losses of each rank's batches when the mean of their gradients drives plain AdamW."""
    model = make_model(norm)
    decayed = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, eps=1e-6)
    losses: list[list[float]] = [[] for _ in range(world_size)]
    for step in range(STEPS):
        total = torch.zeros(())
        for rank in range(world_size):
            batch = lane_batch(rank, step)
            output = model(batch)
            loss = output.mlm_loss_sum / batch.num_masked + output.nsp_loss_sum / batch.num_pairs
            losses[rank].append(loss.item())
            total = total + loss / world_size
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return losses


@pytest.mark.parametrize("world_size", [1, 2])
def test_every_stage_trains_as_plain_torch(worker_group: Groups, world_size: int) -> None:
    expected = train_plainly(world_size, "post")
    parameters = {name for name, _ in make_model("post").named_parameters()}
    ranks = worker_group(world_size).run(train, [(stage, "fp32", "post") for stage in (0, 1, 2, 3)])
    for results in zip(*ranks, strict=True):
        for (curve, _), losses in zip(results, expected, strict=True):
            np.testing.assert_allclose([loss for loss, _ in curve], losses, rtol=1e-5)
        assert {name for _, names in results for name in names} == parameters


def test_bfloat16_follows_float32(worker_group: Groups) -> None:
    first, _ = worker_group(2).run(train, [(1, "bf16", "post"), (3, "bf16", "pre")])
    for (curve, _), norm in zip(first, ("post", "pre"), strict=True):
        np.testing.assert_allclose([loss for loss, _ in curve], train_plainly(2, norm)[0], rtol=0.05)
