"""BERT-Large trains on a card of 24 GB: shown under a cap on a process's memory, beside the estimate.

Also `python tests/gpu/test_memory_gpu.py 24` (GB), which prints what was measured, and `... cpu`, which tries the code.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from packed import on_device, random_batch
from trainer.config import TrainerConfig
from trainer.data.micro_batch import MicroBatchShape
from trainer.engine import largest_micro_batch
from trainer.engine.engine import Engine
from trainer.engine.memory import estimate_memory
from trainer.engine.self_check import check_compiled_model
from trainer.model import BertForPretraining

VOCABULARY, LONGEST, STEPS = 30_522, 512, 6
LARGE = {"model": {"size": "large"}}


@dataclass(frozen=True)
class Measured:
    title: str
    tokens: int
    """In a micro-batch; a step has two."""
    estimate: float
    allocated: int
    """Most bytes of tensors at one time."""
    reserved: int
    """Most bytes that torch had taken from the device, freed blocks that it keeps included."""
    seconds: float
    """Of the last step."""
    losses: tuple[float, ...]

    def describe(self) -> str:
        sizes = [f"{size / 1e9:.1f} GB" for size in (self.estimate, self.allocated, self.reserved)]
        return (
            f"{self.title}: 2 x {self.tokens:,} tokens; {sizes[0]} estimated, {sizes[1]} allocated, {sizes[2]} "
            f"reserved; {2 * self.tokens / self.seconds:,.0f} tokens/s; losses "
            f"{', '.join(f'{loss:.3f}' for loss in self.losses)}"
        )


def train(
    rank: int, kind: str, settings: dict[str, Any], recompute: str, card_bytes: float, tokens: int | None, answers: Any
) -> None:
    """Some steps in a process of its own, which may use no more than `card_bytes` of its GPU."""
    on_gpu = kind == "cuda"
    device = torch.device(kind, 0) if on_gpu else torch.device(kind)
    if on_gpu:
        share = card_bytes / torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), device)
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=dist.HashStore(),
        rank=0,
        world_size=1,
        device_id=device if on_gpu else None,
    )
    config = TrainerConfig.model_validate(
        {
            "data": "d",
            "output": "o",
            "batch": {"tokens": 65_536},
            "max_steps": 10,
            "recompute": recompute,
            **settings,
        }
    )
    tokens = tokens or largest_micro_batch(
        config, vocabulary_size=VOCABULARY, longest=LONGEST, card_bytes=card_bytes, most=32_768
    )
    assert tokens is not None
    count = tokens // LONGEST
    shape = MicroBatchShape(tokens=tokens, pairs=count, masked=tokens // 6, max_seq_length=LONGEST)
    estimate = estimate_memory(config, vocabulary_size=VOCABULARY, shape=shape, micro_batches=2, workers=1)
    weights = BertForPretraining(config.model, vocabulary_size=VOCABULARY, seed=1)
    engine = Engine(weights, config=config, device=device, micro_batches=2)
    batches = [
        on_device(random_batch([LONGEST] * count, vocabulary_size=VOCABULARY, masked_share=1 / 6, seed=seed), device)
        for seed in range(2)
    ]
    check_compiled_model(engine, batches[0], precision="bf16", seed=0)
    losses, seconds = [], 0.0
    for step in range(STEPS):
        began, total = time.perf_counter(), 0.0
        for index, batch in enumerate(batches):
            torch.manual_seed(10 * step + index)
            output = engine(batch)
            loss = output.mlm_loss_sum / (2 * batch.num_masked) + output.nsp_loss_sum / (2 * batch.num_pairs)
            engine.backward(loss, last=index == 1)
            total += loss.item()
        assert not engine.step(1e-4).skipped  # waits for the gradient norm
        seconds = time.perf_counter() - began
        losses.append(total)
    peaks = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if on_gpu else (0, 0)
    title = f"{config.model.title}, bf16, ZeRO {config.zero_stage}, recompute={recompute}"
    answers.put(Measured(title, tokens, estimate.total, *peaks, seconds, tuple(losses)))
    engine.close()
    dist.destroy_process_group()


def measure(
    recompute: str,
    *,
    card_bytes: float = 24e9,
    tokens: int | None = None,
    kind: str = "cuda",
    settings: dict[str, Any] = LARGE,
) -> Measured:
    answers = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(train, (kind, settings, recompute, card_bytes, tokens, answers))
    found: Measured = answers.get()
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("recompute", ["none", "layers"])
def test_bert_large_trains_on_a_card_of_24_gb(recompute: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    found = measure(recompute)
    print(found.describe())
    assert found.allocated <= found.reserved <= 24e9
    assert found.estimate == pytest.approx(found.allocated, rel=0.2)
    assert all(map(math.isfinite, found.losses))
    assert found.losses[-1] < found.losses[0]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [
        LARGE,
        {**LARGE, "zero_stage": 3},
        {"model": {"layers": 6, "heads": 8}},
        {"model": {"layers": 4, "heads": 12, "hidden_size": 312, "feed_forward_size": 1200}},
        {"model": {"size": "base", "norm": "pre"}},
    ],
)
def test_recomputation_gives_the_same_losses_from_less_memory(settings: dict[str, Any]) -> None:
    """Heads of width 96 and 26 use flash attention, whose dropout must be drawn again as it was."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    stored, again = (measure(way, card_bytes=80e9, tokens=16_384, settings=settings) for way in ("none", "layers"))
    print(f"{stored.describe()}\n{again.describe()}")
    assert again.allocated < 0.8 * stored.allocated
    assert again.losses[0] == pytest.approx(stored.losses[0], rel=1e-3)
    assert again.losses[-1] == pytest.approx(stored.losses[-1], rel=0.02)


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "24"
    how: dict[str, Any] = (
        {"kind": "cpu", "tokens": 1024, "settings": {"model": {"size": "tiny"}}}
        if what == "cpu"
        else {"card_bytes": float(what) * 1e9}
    )
    for way in ("none", "layers"):
        print(measure(way, **how).describe(), flush=True)
