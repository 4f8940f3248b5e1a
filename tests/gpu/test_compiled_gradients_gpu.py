"""On a card: the compiled model's gradients are the eager model's and fp32's, and the engine learns with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_model_gpu import relative, to_gpu
from torch import Tensor

from lost_gradient import lose_gradient
from packed import random_batch
from pipeline.settings import ConfigError
from trainer.config import ModelConfig, TrainerConfig
from trainer.engine.engine import Engine
from trainer.engine.self_check import check_compiled_model
from trainer.model import BertForPretraining, heads
from trainer.model.batch import Batch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

VOCABULARY = 1_003
LENGTHS = [512, 3, 64, 65, 127, 128, 200, 511, 2, 300]
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.05}
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.fixture(scope="module")
def one_rank() -> Iterator[None]:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    store, device = dist.HashStore(), torch.device("cuda:0")
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1, device_id=device)
    yield
    dist.destroy_process_group()


def gradients_of(
    model: BertForPretraining, run: Callable[[Batch], Any], batch: Batch, *, scale: float = 1.0
) -> tuple[float, dict[str, Tensor]]:
    """(masked-LM loss, gradients) with dropout of one seed."""
    torch.manual_seed(7)
    output = run(batch)
    loss = output.mlm_loss_sum / batch.num_masked + output.nsp_loss_sum / batch.num_pairs
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = [gradient.float() / scale for gradient in torch.autograd.grad(loss * scale, parameters)]
    return float(output.mlm_loss_sum.detach()) / batch.num_masked, dict(zip(names, gradients, strict=True))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_gradients_compiled_eager_and_in_float32(norm: str, precision: str, dropout: float) -> None:
    """With dropout eager and compiled drop the same (fp32 runs another attention, whose draws are others)."""
    torch._dynamo.reset()
    dtype = PRECISIONS[precision]
    config = ModelConfig(size="mini", norm=norm, dropout=dropout, attention_dropout=dropout)
    model = BertForPretraining(config, vocabulary_size=VOCABULARY, seed=1).cuda().to(dtype)
    batch = to_gpu(random_batch(LENGTHS, vocabulary_size=VOCABULARY))
    scale = 1024.0 if precision == "fp16" else 1.0
    eager_loss, eager = gradients_of(model, model, batch, scale=scale)
    compiled = torch.compile(model, fullgraph=True, dynamic=False, options={"fallback_random": True})
    loss, found = gradients_of(model, compiled, batch, scale=scale)
    assert loss == pytest.approx(eager_loss, rel=2e-3)
    references = {"eager": eager}
    if dropout == 0.0:
        references["fp32"] = gradients_of(model.float(), model, batch)[1]
    whole = torch.stack([gradient.norm() for gradient in eager.values()]).norm()
    for reference, wanted in references.items():
        for name, right in wanted.items():
            if right.norm() > 1e-3 * whole:
                assert relative(found[name], right) < TOLERANCE[dtype], (reference, name)


def make_engine(
    *,
    precision: str,
    stage: int,
    compiled: bool,
    vocabulary_size: int = VOCABULARY,
    micro_batches: int = 1,
    **settings: Any,
) -> Engine:
    config = TrainerConfig.model_validate(
        {
            "data": "data", "output": "run", "model": {"size": "mini"}, "batch": {"pairs": 8}, "max_steps": 100,
            "precision": precision, "zero_stage": stage, "compile": compiled, "device": "cuda",
            **settings,
        }
    )  # fmt: skip
    model = BertForPretraining(config.model, vocabulary_size=vocabulary_size, seed=1)
    return Engine(model, config=config, device=torch.device("cuda:0"), micro_batches=micro_batches)


def train(engine: Engine, batch: Batch, *, steps: int) -> list[float]:
    """Masked-LM loss of each step on one batch; the same dropout in every call."""
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        output = engine(batch)
        engine.backward(output.mlm_loss_sum / batch.num_masked + output.nsp_loss_sum / batch.num_pairs, last=True)
        engine.step(1e-3)
        losses.append(float(output.mlm_loss_sum.detach()) / batch.num_masked)
    return losses


@pytest.mark.parametrize(("precision", "stage"), [("fp32", 0), ("bf16", 1), ("bf16", 2), ("fp16", 1)])
def test_the_engine_learns_compiled_as_eager(one_rank: None, precision: str, stage: int) -> None:
    """One batch by heart: the loss falls, on the same curve. Weights of one model after another in one process, one of
    them with an odd vocabulary, whose code was compiled for other addresses."""
    torch._dynamo.reset()
    batch = to_gpu(random_batch(LENGTHS, vocabulary_size=VOCABULARY))
    curves = []
    for compiled in (False, True, True):
        engine = make_engine(precision=precision, stage=stage, compiled=compiled)
        if compiled:
            check_compiled_model(engine, batch, precision=precision, seed=3)  # type: ignore[arg-type]
        curves.append(train(engine, batch, steps=20))
        engine.close()
    eager, first, second = curves
    assert eager[-1] < eager[0] - 1.0
    tolerance = 1e-3 if precision == "fp32" else 0.02
    for curve in (first, second):
        assert curve == pytest.approx(eager, rel=tolerance)


@pytest.mark.parametrize("recompute", ["none", "layers"])
@pytest.mark.parametrize(("precision", "stage"), [("bf16", 1), ("bf16", 2), ("fp16", 1), ("fp32", 1)])
def test_replayed_kernels_have_the_bits_of_started_ones(
    one_rank: None, precision: str, stage: int, recompute: str
) -> None:
    """Steps of three micro-batches with other rows and lengths each, an evaluation between them."""
    turned = [LENGTHS[turn:] + LENGTHS[:turn] for turn in range(3)]
    rows = [random_batch(lengths, vocabulary_size=VOCABULARY, seed=seed) for seed, lengths in enumerate(turned)]
    batches = [to_gpu(batch) for batch in rows]
    torch.use_deterministic_algorithms(True)
    curves = []
    for cuda_graphs in (False, True):
        torch._dynamo.reset()
        settings = {"cuda_graphs": cuda_graphs, "recompute": recompute}
        engine = make_engine(precision=precision, stage=stage, compiled=True, micro_batches=3, **settings)
        check_compiled_model(engine, batches[0], precision=precision, seed=3)  # type: ignore[arg-type]
        losses = []
        for step in range(8):
            for index, batch in enumerate(batches):
                torch.manual_seed(10 * step + index)
                output = engine(batch)
                loss = output.mlm_loss_sum / batch.num_masked + output.nsp_loss_sum / batch.num_pairs
                engine.backward(loss, last=index == len(batches) - 1)
                losses.append(loss.detach().clone())
            engine.step(1e-3)
            with engine.evaluation():
                losses.append(engine(batches[0]).mlm_loss_sum.clone())
        curves.append(torch.stack([loss.double() for loss in losses]).tolist())
        engine.close()
    torch.use_deterministic_algorithms(False)
    assert curves[0] == curves[1]
    assert curves[0][-1] < curves[0][3] - 1.0


def test_the_self_check_finds_a_lost_gradient(one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(heads, "linear_cross_entropy_sum", lose_gradient(heads.linear_cross_entropy_sum))
    engine = make_engine(precision="bf16", stage=1, compiled=True)
    batch = to_gpu(random_batch(LENGTHS, vocabulary_size=VOCABULARY))
    with pytest.raises(ConfigError, match=r"gradient norm of mlm_head\S* 0 compiled.*compile=false"):
        check_compiled_model(engine, batch, precision="bf16", seed=3)
    engine.close()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_drawn_weights_are_the_optimizers(one_rank: None, stage: int, precision: str) -> None:
    engine = make_engine(precision=precision, stage=stage, compiled=False)
    drawn = dict(BertForPretraining(engine.module.config, vocabulary_size=VOCABULARY, seed=1).named_parameters())
    pieces = {piece.name: piece.tensors["parameter"] for piece in engine.local_slices()}
    for name, parameter in drawn.items():
        assert torch.equal(pieces[name].cpu(), parameter.detach().view(-1)), name
    engine.close()
