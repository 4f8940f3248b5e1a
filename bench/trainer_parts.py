"""Runs one measurement of bench/trainer.py in this process, and prints the result as one JSON object.

Usage: python -m bench.trainer_parts NAME DATA SIZE [DEVICE [TOKENS]]
Every part that trains uses the same rows of the same data set, in bf16: forward, backward, clipping and AdamW. Rates
count real tokens, and `places_per_second` also counts padding. The loss is the masked-LM loss, averaged over all
batches: once for the first pass over the batches, and once for the last pass. Losses stay on the device until the
timing has ended, because reading them would wait for the device.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from bench.transformers_bert import IGNORED, build_model, initial_state, pad, rows_of, send
from pipeline.dataset import read_manifest
from trainer.config import ModelConfig, TrainerConfig
from trainer.data import MicroBatchStream, Step, open_phases, resolve_phases
from trainer.engine import Engine
from trainer.engine.optimizers import build_optimizer
from trainer.model import Batch, BertForPretraining, to_batch
from trainer.telemetry import count_flops
from trainer.train import backend_of

TOKENS = 32_768
"""The maximum number of real tokens of a micro-batch. A padded batch has this many token places, padding included."""
BATCHES, ROUNDS = 8, 5
"""How many batches there are, and how many passes over these batches are timed."""
RATE, WARM_UP = 1e-4, 10
"""The peak learning rate, and the number of steps in which the rate rises linearly to the peak. Then it stays there."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings that all parts share."""

    data: str
    size: str = "large"
    device: str = "cuda"
    tokens: int = TOKENS

    def config(self, *, zero_stage: int = 1) -> TrainerConfig:
        """Return the trainer's config for our parts. The part with transformers takes model size and optimizer from
        this config."""
        return TrainerConfig.model_validate(
            {
                "data": self.data,
                "output": "unused",
                "model": {"size": self.size},
                "batch": {"tokens": self.tokens, "lanes": 1, "tokens_per_slot": self.tokens},
                "max_steps": 1_000_000,
                "zero_stage": zero_stage,
                "device": self.device,
                "precision": "bf16",
                "optimizer": {"learning_rate": RATE},
            }
        )


class Measured(NamedTuple):
    """The times and losses from `measure`."""

    seconds: float
    """Seconds per step: the median over ROUNDS passes."""
    first_s: float
    """Seconds from `begun`, an argument of `measure`, to the end of the first step."""
    losses: list[Any]
    """What each step returned, in order."""


def rate_at(index: int) -> float:
    """Return the learning rate of the step with the given index, which counts from 0."""
    return RATE * min(1.0, (index + 1) / WARM_UP)


def read_steps(setting: Setting, *, constant_shapes: bool) -> tuple[list[Step], list[Batch]]:
    """Return the first BATCHES steps of the data set, each of one micro-batch, and the micro-batches as tensors.

    With `constant_shapes`, the tensors are on the device and all have the same sizes. Otherwise they are on the CPU.
    """
    config, manifest = setting.config(), read_manifest(setting.data)
    (phase,) = open_phases(resolve_phases(config), manifests=[manifest])
    stream = MicroBatchStream(phase.plan, setting.data)
    steps = [stream.next_step() for _ in range(BATCHES)]
    stream.close()
    batches = [
        to_batch(
            step.micro_batches[0],
            shape=phase.shape.micro_batch,
            special=manifest.special,
            constant_shapes=constant_shapes,
            device=setting.device if constant_shapes else "cpu",
        )
        for step in steps
    ]
    return steps, batches


def measure(step: Callable[[int], Any], *, begun: float, device: str = "cuda") -> Measured:
    """Call `step` with 0, 1, 2 and so on, and time the calls.

    The first BATCHES calls are one pass over the batches. This pass is not timed, because the model is compiled in it.
    Then ROUNDS passes are timed.
    """
    losses = [step(0)]
    synchronize(device)
    first_s = time.perf_counter() - begun
    losses += [step(index) for index in range(1, BATCHES)]
    rounds = []
    for number in range(1, ROUNDS + 1):
        synchronize(device)
        start = time.perf_counter()
        losses += [step(index) for index in range(number * BATCHES, (number + 1) * BATCHES)]
        synchronize(device)
        rounds.append((time.perf_counter() - start) / BATCHES)
    return Measured(statistics.median(rounds), first_s, losses)


def synchronize(device: str) -> None:
    """Wait until the device has done all its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def flops_a_step(steps: Sequence[Step], *, model: ModelConfig, vocabulary_size: int) -> float:
    """Return the mean number of model FLOPs of a step."""
    totals = [
        count_flops(
            model,
            vocabulary_size=vocabulary_size,
            num_tokens=step.num_tokens,
            num_squared=step.num_squared,
            num_masked=step.num_masked,
        )
        for step in steps
    ]
    return sum(totals) / len(totals)


def result_of(
    measured: Measured, *, steps: Sequence[Step], setting: Setting, num_tokens: float | None = None
) -> dict[str, Any]:
    """Return the result of a part that trains, as a dict for printing.

    `num_tokens` is the mean number of real tokens per step. If it is None, the number is taken from `steps`.
    """
    mean = sum(step.num_tokens for step in steps) / len(steps)
    tokens = mean if num_tokens is None else num_tokens
    vocabulary_size = read_manifest(setting.data).vocabulary_size
    flops = flops_a_step(steps, model=setting.config().model, vocabulary_size=vocabulary_size) * tokens / mean
    losses = torch.stack(measured.losses).double().tolist()
    return {
        "tokens_per_second": tokens / measured.seconds,
        "places_per_second": setting.tokens / measured.seconds,
        "tflops": flops / measured.seconds / 1e12,
        "step_ms": measured.seconds * 1e3,
        "memory_gb": torch.cuda.max_memory_allocated() / 1e9 if setting.device == "cuda" else None,
        "first_step_s": measured.first_s,
        "loss_before": sum(losses[:BATCHES]) / BATCHES,
        "loss_after": sum(losses[-BATCHES:]) / BATCHES,
    }


def measure_plain(setting: Setting) -> dict[str, Any]:
    """Measure our compiled model without DeepSpeed: bf16 weights and moments, and torch's own clipping and fused
    AdamW."""
    begun = time.perf_counter()
    config = setting.config()
    steps, batches = read_steps(setting, constant_shapes=True)
    model = BertForPretraining(config.model, vocabulary_size=read_manifest(setting.data).vocabulary_size)
    model.to(setting.device, torch.bfloat16)
    optimizer = build_optimizer(model, config=config.optimizer)
    if setting.device == "cuda":
        model.compile(dynamic=False)

    def step(index: int) -> Tensor:
        counts = steps[index % BATCHES]
        output = model(batches[index % BATCHES])
        loss: Tensor = output.mlm_loss_sum / counts.num_masked
        (loss + output.nsp_loss_sum / max(1, counts.num_labelled)).backward()
        update(model, optimizer, rate=rate_at(index))
        return loss.detach()

    return result_of(measure(step, begun=begun, device=setting.device), steps=steps, setting=setting)


def measure_engine(setting: Setting, *, zero_stage: int) -> dict[str, Any]:
    """Measure our model in our engine over DeepSpeed. It has bf16 weights, and fp32 master weights and moments."""
    begun = time.perf_counter()
    config = setting.config(zero_stage=zero_stage)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    device = torch.device("cuda:0" if setting.device == "cuda" else "cpu")
    store = dist.HashStore()  # type: ignore[attr-defined]
    bound = device if setting.device == "cuda" else None
    dist.init_process_group(backend_of(config), store=store, rank=0, world_size=1, device_id=bound)
    steps, batches = read_steps(setting, constant_shapes=True)
    model = BertForPretraining(config.model, vocabulary_size=read_manifest(setting.data).vocabulary_size)
    engine = Engine(model, config=config, device=device, micro_batches=1)
    engine.module.train()

    def step(index: int) -> Tensor:
        counts = steps[index % BATCHES]
        output = engine(batches[index % BATCHES])
        loss: Tensor = output.mlm_loss_sum / counts.num_masked
        engine.backward(loss + output.nsp_loss_sum / max(1, counts.num_labelled), last=True)
        engine.step(rate_at(index))
        return loss.detach()

    result = result_of(measure(step, begun=begun, device=setting.device), steps=steps, setting=setting)
    return {**result, "compiled": getattr(engine.module, "_compiled_call_impl", None) is not None}


def measure_transformers(setting: Setting, *, compiled: bool) -> dict[str, Any]:
    """Measure transformers' BertForPreTraining on the same rows as our model, but padded, from the same initial
    weights.

    The model runs with sdpa (torch's scaled_dot_product_attention), bf16 autocast and AdamW.
    """
    config, manifest = setting.config(), read_manifest(setting.data)
    state = initial_state(config.model, manifest=manifest, seed=0)
    begun = time.perf_counter()
    steps, unpadded = read_steps(setting, constant_shapes=False)
    model: Any = build_model(config.model, manifest=manifest, state=state, device=setting.device)
    optimizer = build_optimizer(model, config=config.optimizer)
    if compiled and setting.device == "cuda":
        model.compile(dynamic=False)
    rows = [row for batch in unpadded for row in rows_of(batch)]
    length = manifest.max_seq_length
    number = setting.tokens // length
    batches = [
        send(pad(rows[start : start + number], length=length), setting.device)
        for start in range(0, BATCHES * number, number)
    ]
    tokens = sum(int(batch["attention_mask"].sum()) for batch in batches) / BATCHES

    def step(index: int) -> Tensor:
        batch = batches[index % BATCHES]
        with torch.autocast(setting.device, dtype=torch.bfloat16):
            output = model(**batch)
        output.loss.backward()
        update(model, optimizer, rate=rate_at(index))
        with torch.no_grad():  # its loss is the sum of both; that of the pairs is small work
            pairs = output.seq_relationship_logits.float()
            nsp = F.cross_entropy(pairs, batch["next_sentence_label"], ignore_index=IGNORED)
            return output.loss.detach() - nsp  # type: ignore[no-any-return]

    measured = measure(step, begun=begun, device=setting.device)
    return result_of(measured, steps=steps, setting=setting, num_tokens=tokens)


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, rate: float) -> None:
    """Clip the gradients to norm 1, update the weights with the learning rate `rate`, and clear the gradients."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def measure_peak(setting: Setting) -> dict[str, Any]:
    """Measure the rate of one large bf16 matrix product in TFLOP/s, the most that this GPU can reach."""
    size = 8192 if setting.device == "cuda" else 512
    left, right = (torch.randn(size, size, device=setting.device, dtype=torch.bfloat16) for _ in range(2))

    def multiply(_: int) -> None:
        left @ right

    measured = measure(multiply, begun=time.perf_counter(), device=setting.device)
    return {"tflops": 2 * size**3 / measured.seconds / 1e12}


PARTS: dict[str, Callable[[Setting], dict[str, Any]]] = {
    "peak": measure_peak,
    "transformers": lambda setting: measure_transformers(setting, compiled=False),
    "transformers-compiled": lambda setting: measure_transformers(setting, compiled=True),
    "plain": measure_plain,
    "zero-1": lambda setting: measure_engine(setting, zero_stage=1),
    "zero-2": lambda setting: measure_engine(setting, zero_stage=2),
    "zero-3": lambda setting: measure_engine(setting, zero_stage=3),
}


def main(name: str, data: str, size: str, device: str = "cuda", tokens: str = str(TOKENS)) -> None:
    """Run the part `name` and print its result."""
    torch.manual_seed(0)
    print(json.dumps({"part": name, **PARTS[name](Setting(data, size, device, int(tokens)))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
