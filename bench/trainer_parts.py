"""One measurement of bench/trainer.py in a process of its own: `python -m bench.trainer_parts NAME DATA SIZE`.

Prints one JSON object. Every part trains on the same rows of the same data set: forward, backward, clipping and AdamW,
bf16. Rates are of real tokens; places count padding too.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.manifest import read_manifest
from trainer.batches import Batch, to_batch
from trainer.config import ModelConfig, TrainerConfig
from trainer.engine import Engine
from trainer.flops import count_flops
from trainer.ingest import SlotStream, Step
from trainer.model import BertForPretraining
from trainer.phases import open_phases, resolve_phases

TOKENS = 32_768
"""Real tokens of a micro-batch, at most."""
PADDED_ROWS, LENGTH = 64, 512
"""Rows of a padded batch: as many token places."""
BATCHES, ROUNDS, STEPS, WARM_UP = 8, 4, 10, 6
RATE = 1e-5


def make_config(data: str, size: str, *, zero_stage: int = 1, workers: int = 1) -> TrainerConfig:
    """What all parts of ours share."""
    return TrainerConfig.model_validate(
        {
            "data": data,
            "output": "unused",
            "model": {"size": size},
            "batch": {"tokens": TOKENS * workers, "lanes": workers, "tokens_per_slot": TOKENS},
            "max_steps": 1_000_000,
            "zero_stage": zero_stage,
            "device": "cuda",
            "precision": "bf16",
        }
    )


def read_steps(config: TrainerConfig, *, on_gpu: bool) -> tuple[list[Step], list[Batch]]:
    """The first steps of the data set and their batches: on the GPU in constant shapes, otherwise as they are."""
    manifest = read_manifest(config.data)
    (phase,) = open_phases(resolve_phases(config), manifests=[manifest])
    stream = SlotStream(phase.plan, config.data)
    steps = [stream.next_step() for _ in range(BATCHES)]
    stream.close()
    batches = [
        to_batch(
            step.slots[0],
            shape=phase.shape.slot,
            special=manifest.special,
            constant_shapes=on_gpu,
            device="cuda" if on_gpu else "cpu",
        )
        for step in steps
    ]
    return steps, batches


def measure(step: Callable[[int], Any], *, begun: float) -> tuple[float, float]:
    """(seconds a step, seconds to the end of the first); the median of ROUNDS times STEPS steps."""
    step(0)
    torch.cuda.synchronize()
    first = time.perf_counter() - begun
    for index in range(WARM_UP):
        step(index)
    rounds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for index in range(STEPS):
            step(index)
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - start) / STEPS)
    return statistics.median(rounds), first


def flops_a_step(steps: Sequence[Step], *, model: ModelConfig, vocabulary_size: int) -> float:
    """Model FLOPs of the steps that `measure` takes, the mean."""
    used = [steps[index % len(steps)] for index in range(STEPS)]
    totals = [
        count_flops(
            model,
            vocabulary_size=vocabulary_size,
            num_tokens=step.num_tokens,
            num_squared=step.num_squared,
            num_masked=step.num_masked,
        )
        for step in used
    ]
    return sum(totals) / len(totals)


def result_of(steps: Sequence[Step], *, seconds: float, first: float, config: TrainerConfig) -> dict[str, Any]:
    """What a part of ours prints."""
    vocabulary_size = read_manifest(config.data).vocabulary_size
    tokens = sum(steps[index % len(steps)].num_tokens for index in range(STEPS)) / STEPS
    return {
        "tokens_per_second": tokens / seconds,
        "places_per_second": TOKENS / seconds,
        "tflops": flops_a_step(steps, model=config.model, vocabulary_size=vocabulary_size) / seconds / 1e12,
        "step_ms": seconds * 1e3,
        "memory_gb": torch.cuda.max_memory_allocated() / 1e9,
        "first_step_s": first,
    }


def measure_plain(data: str, size: str) -> dict[str, Any]:
    """Our model without DeepSpeed: bf16 weights and moments, compiled, torch's clipping and fused AdamW."""
    begun = time.perf_counter()
    config = make_config(data, size)
    steps, batches = read_steps(config, on_gpu=True)
    vocabulary_size = read_manifest(data).vocabulary_size
    model = BertForPretraining(config.model, vocabulary_size=vocabulary_size).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    model.compile(dynamic=False)

    def step(index: int) -> None:
        counts = steps[index % BATCHES]
        output = model(batches[index % BATCHES])
        (output.mlm_loss_sum / counts.num_masked + output.nsp_loss_sum / counts.num_pairs).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds, first = measure(step, begun=begun)
    return result_of(steps, seconds=seconds, first=first, config=config)


def measure_engine(data: str, size: str, *, zero_stage: int) -> dict[str, Any]:
    """The same through our engine over DeepSpeed: fp32 weights and moments beside the bf16 ones."""
    begun = time.perf_counter()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    device = torch.device("cuda:0")
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1, device_id=device)
    config = make_config(data, size, zero_stage=zero_stage)
    steps, batches = read_steps(config, on_gpu=True)
    vocabulary_size = read_manifest(data).vocabulary_size
    model = BertForPretraining(config.model, vocabulary_size=vocabulary_size)
    engine = Engine(model, config=config, device=device, micro_batches=1)

    def step(index: int) -> None:
        counts = steps[index % BATCHES]
        output = engine(batches[index % BATCHES])
        loss = output.mlm_loss_sum / counts.num_masked + output.nsp_loss_sum / counts.num_pairs
        engine.backward(loss, last=True)
        engine.step(RATE)

    seconds, first = measure(step, begun=begun)
    return result_of(steps, seconds=seconds, first=first, config=config)


def measure_transformers(data: str, size: str, *, compiled: bool) -> dict[str, Any]:
    """transformers' BertForPreTraining on the same rows, padded to 512: sdpa, bf16 autocast, fused AdamW."""
    from transformers import BertConfig, BertForPreTraining

    begun = time.perf_counter()
    config = make_config(data, size)
    steps, unpadded = read_steps(config, on_gpu=False)
    manifest = read_manifest(data)
    layers, heads, width = config.model.num_layers, config.model.num_heads, config.model.width
    model = BertForPreTraining(
        BertConfig(
            vocab_size=manifest.vocabulary_size,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            attn_implementation="sdpa",
        )
    ).cuda()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    if compiled:
        model.compile(dynamic=False)
    rows = [row for batch in unpadded for row in rows_of(batch)]
    batches = [pad(rows[start : start + PADDED_ROWS]) for start in range(0, len(rows) - PADDED_ROWS, PADDED_ROWS)]
    tokens = [int(batch["attention_mask"].sum()) for batch in batches]

    def step(index: int) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**batches[index % len(batches)]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds, first = measure(step, begun=begun)
    real = sum(tokens[index % len(tokens)] for index in range(STEPS)) / STEPS
    ours = flops_a_step(steps, model=config.model, vocabulary_size=manifest.vocabulary_size)
    mean = sum(steps[index % BATCHES].num_tokens for index in range(STEPS)) / STEPS
    return {
        "tokens_per_second": real / seconds,
        "places_per_second": PADDED_ROWS * LENGTH / seconds,
        "tflops": ours * real / mean / seconds / 1e12,
        "step_ms": seconds * 1e3,
        "memory_gb": torch.cuda.max_memory_allocated() / 1e9,
        "first_step_s": first,
    }


def rows_of(batch: Batch) -> Iterator[dict[str, Any]]:
    """The pairs of an unpadded batch as transformers takes them, each a row."""
    bounds = batch.offsets.tolist()
    labels = torch.full_like(batch.input_ids, -100)
    kept = batch.masked_weights > 0
    labels[batch.masked_positions[kept]] = batch.masked_labels[kept]
    for index in range(batch.num_pairs):
        part = slice(bounds[index], bounds[index + 1])
        yield {
            "input_ids": batch.input_ids[part],
            "token_type_ids": batch.segment_ids[part],
            "labels": labels[part],
            "next_sentence_label": batch.nsp_labels[index],
        }


def pad(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Rows of PADDED_ROWS x LENGTH on the GPU."""

    def fill(name: str, value: int) -> Tensor:
        whole = torch.full((len(rows), LENGTH), value, dtype=torch.int64)
        for index, row in enumerate(rows):
            whole[index, : len(row[name])] = row[name]
        return whole.cuda()

    mask = torch.zeros(len(rows), LENGTH, dtype=torch.int64)
    for index, row in enumerate(rows):
        mask[index, : len(row["input_ids"])] = 1
    return {
        "input_ids": fill("input_ids", 0),
        "token_type_ids": fill("token_type_ids", 0),
        "labels": fill("labels", -100),
        "attention_mask": mask.cuda(),
        "next_sentence_label": torch.stack([row["next_sentence_label"] for row in rows]).cuda(),
    }


def measure_peak() -> dict[str, Any]:
    """Rate of one large bf16 product: what this card can reach at all, TFLOP/s."""
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    seconds, _ = measure(lambda _: left @ right, begun=time.perf_counter())
    return {"tflops": 2 * 8192**3 / seconds / 1e12}


PARTS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "peak": lambda data, size: measure_peak(),
    "transformers": lambda data, size: measure_transformers(data, size, compiled=False),
    "transformers-compiled": lambda data, size: measure_transformers(data, size, compiled=True),
    "plain": measure_plain,
    "zero-1": lambda data, size: measure_engine(data, size, zero_stage=1),
    "zero-2": lambda data, size: measure_engine(data, size, zero_stage=2),
    "zero-3": lambda data, size: measure_engine(data, size, zero_stage=3),
}


def main(name: str, data: str, size: str) -> None:
    """Measure one part and print it."""
    torch.manual_seed(0)
    print(json.dumps({"part": name, **PARTS[name](data, size)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
