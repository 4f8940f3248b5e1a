"""The fp32 weights that training starts from are those that were drawn or given, not their rounded copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from packed import random_batch
from toy_training import gather_state
from trainer.config import ModelConfig, TrainerConfig
from trainer.engine.engine import Engine
from trainer.model import BertForPretraining
from worker_group import WorkerGroup

Groups = Callable[[int], WorkerGroup]
VOCABULARY = 101
LAYOUTS = [(1, 1), (1, 2), (2, 2), (3, 1), (3, 2)]


def make_bert_engine(*, stage: int, precision: str = "bf16", layers: int = 2) -> Engine:
    settings: dict[str, Any] = {
        "data": "data",
        "output": "run",
        "model": {"size": "tiny", "layers": layers},
        "batch": {"pairs": 8},
        "max_steps": 10,
        "precision": precision,
        "zero_stage": stage,
        "compile": False,
    }
    config = TrainerConfig.model_validate(settings)
    model = BertForPretraining(config.model, vocabulary_size=VOCABULARY, seed=3)
    return Engine(model, config=config, device=torch.device("cpu"), micro_batches=1)


def weights_before_and_after(rank: int, stage: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], bool]:
    """Names -> fp32 weights of the new engine and after a step at rate 0; whether the model computes with them."""
    engine = make_bert_engine(stage=stage)
    first = gather_state(engine)["parameter"]
    batch = random_batch([9, 12], vocabulary_size=VOCABULARY, seed=rank)
    output = engine(batch)
    engine.backward(output.mlm_loss_sum / batch.num_masked, last=True)
    engine.step(0.0)
    second = gather_state(engine)["parameter"]
    with engine.evaluation():
        found = engine(batch).mlm_loss_sum
    reference = BertForPretraining(engine.module.config, vocabulary_size=VOCABULARY, seed=3).bfloat16().eval()
    same = torch.equal(found, reference(batch).mlm_loss_sum)
    engine.close()
    return first, second, same


@pytest.mark.parametrize(("stage", "world_size"), LAYOUTS)
def test_the_drawn_weights_reach_the_optimizer_unrounded(worker_group: Groups, stage: int, world_size: int) -> None:
    config = TrainerConfig.model_validate(
        {"data": "d", "output": "r", "model": {"size": "tiny"}, "batch": {"pairs": 8}, "max_steps": 10}
    )
    drawn = dict(BertForPretraining(config.model, vocabulary_size=VOCABULARY, seed=3).named_parameters())
    for first, second, same in worker_group(world_size).run(weights_before_and_after, stage):
        assert same, "the model's weights are not the rounded weights"
        for name, parameter in drawn.items():
            assert torch.equal(first[name].view(parameter.shape), parameter.detach()), name
            assert torch.equal(second[name].view(parameter.shape), parameter.detach()), name
        assert any(not torch.equal(p, p.bfloat16().float()) for p in drawn.values())


def find_misaligned(rank: int, stage: int) -> list[str]:
    engine = make_bert_engine(stage=stage)
    found = [
        name
        for name, parameter in engine.module.named_parameters()
        if parameter.storage_offset() * parameter.element_size() % 16
    ]
    offsets = {parameter.storage_offset() for parameter in engine.module.parameters()}
    engine.close()
    assert len(offsets) > 10  # they are views of flat buffers
    assert dist.get_world_size() > rank
    return found


@pytest.mark.parametrize(("stage", "world_size"), [(1, 1), (1, 2), (2, 2)])
def test_every_weight_begins_at_a_multiple_of_16_bytes(worker_group: Groups, stage: int, world_size: int) -> None:
    """Code compiled for a model whose weights do reads 16 bytes at once, and another model takes the same code."""
    assert worker_group(world_size).run(find_misaligned, stage) == [[]] * world_size


def test_scaled_weights_have_the_deviations_that_the_setting_names() -> None:
    """Of a normal truncated at two deviations 0.88 are left; the same draws as the published ones, stretched."""
    models = {}
    for start in ("published", "scaled"):
        config = ModelConfig(size="tiny", initial_weights=start)
        model = BertForPretraining(config, vocabulary_size=VOCABULARY, seed=3)
        models[start] = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for name, scaled in models["scaled"].items():
        published = models["published"][name]
        if name == "mlm_head.dense.bias":
            assert torch.equal(scaled, torch.full([128], 32.0))
        elif scaled.ndim < 2:
            assert torch.equal(scaled, published)
        elif name == "mlm_head.dense.weight":
            assert torch.equal(scaled, 8.0 * torch.eye(128))
        else:
            deviation = 0.05 if name.startswith("embeddings.") else 0.06
            assert torch.allclose(scaled, published * (deviation / 0.02), rtol=1e-5, atol=1e-8)
    assert models["scaled"]["encoder.layers.0.feed_forward.down.weight"].std() == pytest.approx(0.88 * 0.06, rel=0.02)
    assert models["published"]["embeddings.position.weight"].std() == pytest.approx(0.88 * 0.02, rel=0.02)
