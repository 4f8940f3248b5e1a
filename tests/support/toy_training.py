"""A small model and a training step over lanes, run by ranks of a WorkerGroup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.checkpoint import CheckpointWriter
from trainer.config.schema import TrainerConfig
from trainer.engine.engine import Engine, StepResult
from trainer.engine.schedules import learning_rate

VOCABULARY = 101
WIDTH = 24
NUM_LANES = 4


class ToyModel(nn.Module):
    """Embedding, MLP, LayerNorm, tied output; odd sizes, so that partitions end inside parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.expand = nn.Linear(WIDTH, 37)
        self.norm = nn.LayerNorm(37)
        self.shrink = nn.Linear(37, WIDTH)
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))

    def forward(self, ids: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Sum of weighted cross-entropies, fp32."""
        hidden = self.shrink(nn.functional.gelu(self.norm(self.expand(self.embedding(ids)))))
        logits = nn.functional.linear(hidden, self.embedding.weight, self.bias)
        losses = nn.functional.cross_entropy(logits.float(), labels, reduction="none")
        return (losses * weights).sum()


def make_config(**changes: Any) -> TrainerConfig:
    settings: dict[str, Any] = {
        "data": "data",
        "output": "run",
        "batch": {"pairs": 8},
        "max_steps": 50,
        "precision": "fp32",
        "compile": False,
        "optimizer": {"learning_rate": 1e-2},
        "schedule": {"warmup_steps": 5},
        "deepspeed": {"zero_optimization": {"stage3_param_persistence_threshold": 40}},
    }
    if changes.get("zero_stage") != 3:
        settings["deepspeed"] = {}
    return TrainerConfig.model_validate({**settings, **changes})


def lane_batch(step: int, lane: int) -> tuple[Tensor, Tensor, Tensor]:
    """(ids, labels, weights) of a lane: 5 + 9 x lane labels, so that lanes weigh differently."""
    generator = torch.Generator().manual_seed(1000 * step + lane)
    ids = torch.randint(0, VOCABULARY, (5 + 9 * lane,), generator=generator)
    return ids, (ids * 7 + 3) % VOCABULARY, torch.ones(len(ids))


def empty_batch() -> tuple[Tensor, Tensor, Tensor]:
    """What stands for a lane that a rank does not have: one position of weight zero."""
    return torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), torch.zeros(1)


def micro_batches(world_size: int) -> int:
    return -(-NUM_LANES // world_size)


def make_engine(config: TrainerConfig, *, seed: int = 0, device: str = "cpu") -> Engine:
    torch.manual_seed(seed)
    return Engine(
        ToyModel(), config=config, device=torch.device(device), micro_batches=micro_batches(dist.get_world_size())
    )


def accumulate(engine: Engine, step: int, *, poison: float = 1.0, mean_of_means: bool = False) -> float:
    """Gradients of one global batch; returns the global mean loss. `poison` multiplies lane 1's loss."""
    rank, world_size = engine.rank, engine.world_size
    count = sum(len(lane_batch(step, lane)[0]) for lane in range(NUM_LANES))
    total = torch.zeros((), dtype=torch.float64)
    for index in range(engine.micro_batches):
        lane = rank + index * world_size
        ids, labels, weights = lane_batch(step, lane) if lane < NUM_LANES else empty_batch()
        loss = engine(*(tensor.to(engine.device) for tensor in (ids, labels, weights)))
        total += loss.detach().double().cpu() / count
        factor = world_size / count
        if mean_of_means:
            factor = world_size / (len(ids) * NUM_LANES)
        engine.backward(loss * factor * (poison if lane == 1 else 1.0), last=index == engine.micro_batches - 1)
    dist.all_reduce(total)
    return float(total)


def train(engine: Engine, config: TrainerConfig, *, first: int, last: int) -> list[tuple[float, float]]:
    """(loss, gradient norm) of steps first..last."""
    curve = []
    for step in range(first, last + 1):
        loss = accumulate(engine, step)
        result: StepResult = engine.step(learning_rate(step, config))
        curve.append((loss, result.grad_norm))
    return curve


def save_checkpoint(run: str | Path, *, step: int, engine: Engine, config: TrainerConfig, plan_state: Any) -> None:
    """Write the checkpoint after `step` steps and wait for its commit. Collective."""
    writer = CheckpointWriter(run, engine=engine, config=config)
    writer.save(step, plan_state=plan_state)
    writer.finish()


def gather_parameters(engine: Engine) -> dict[str, Tensor]:
    """The run's fp32 parameters, put together from all ranks' slices; NaN where no rank has an element."""
    return gather_state(engine)["parameter"]


def gather_state(engine: Engine) -> dict[str, dict[str, Tensor]]:
    """Kind -> name -> full tensor, from all ranks' slices."""
    mine = [
        (s.name, s.start, s.shape, {k: v.cpu().clone() for k, v in s.tensors.items()}) for s in engine.local_slices()
    ]
    everyone: list[Any] = [None] * engine.world_size
    dist.all_gather_object(everyone, mine)
    state: dict[str, dict[str, Tensor]] = {}
    for name, start, shape, tensors in (piece for part in everyone for piece in part):
        for kind, values in tensors.items():
            full = state.setdefault(kind, {}).setdefault(name, torch.full(shape, float("nan")))
            flat = full.view(-1)[start : start + len(values)]
            assert flat.isnan().all(), f"{name}[{start}:] is held by two ranks"
            flat.copy_(values)
    return state
