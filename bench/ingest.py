"""Measures how many GPUs a host can feed: it reads Parquet and makes batches like the trainer's workers, without a GPU.

Usage: python -m bench.ingest DATA [--processes N] [--steps N]
Each of the N processes is one worker of a run with N workers. It reads row groups, packs micro-batches and lays them
out as tensors. A GPU is assumed to take 235,000 tokens a second.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from bench.trainer_parts import TOKENS
from pipeline.dataset import read_manifest
from trainer.config import TrainerConfig
from trainer.data import MicroBatchStream, open_phases, resolve_phases
from trainer.model import to_batch

OUT = Path(__file__).resolve().parent / "out"
GPU_TOKENS_PER_SECOND = 235_000
WARM_UP = 4


def main(arguments: Sequence[str]) -> int:
    """Measure all processes at once, print the rates, and return the exit status."""
    words = list(arguments)
    options = {"processes": len(os.sched_getaffinity(0)), "steps": 40}
    for name in options:
        if f"--{name}" in words:
            place = words.index(f"--{name}")
            options[name] = int(words[place + 1])
            del words[place : place + 2]
    if len(words) != 1:
        raise SystemExit("usage: python -m bench.ingest DATA [--processes N] [--steps N]")
    count = options["processes"]
    context = multiprocessing.get_context("spawn")
    with context.Pool(count) as pool:
        tasks = [(words[0], rank, count, options["steps"]) for rank in range(count)]
        results = pool.starmap(feed, tasks, chunksize=1)
    rate = sum(tokens / wall for tokens, wall, _ in results)
    cpu = sum(cpu for _, _, cpu in results) / sum(tokens for tokens, _, _ in results)
    lines = [
        f"{date.today()} {platform.processor() or platform.machine()}, {count} processes, Python "
        f"{platform.python_version()}",
        f"{rate:,.0f} tokens/s, {cpu * 1e6:.3f} CPU seconds a million tokens",
        f"{rate / GPU_TOKENS_PER_SECOND:.1f} GPUs' worth; a GPU takes {GPU_TOKENS_PER_SECOND * cpu:.3f} of a core",
    ]
    print("\n".join(lines))
    OUT.mkdir(parents=True, exist_ok=True)
    record = {"date": str(date.today()), "processes": count, "tokens_per_second": rate, "cpu_s_per_token": cpu}
    (OUT / "ingest.json").write_text(json.dumps(record, indent=1) + "\n")
    return 0


def feed(data: str, rank: int, world_size: int, steps: int) -> tuple[int, float, float]:
    """Make batches for `steps` steps as one worker. Return (tokens, seconds, CPU seconds of all threads).

    WARM_UP steps come before these steps and are not counted.
    """
    config = TrainerConfig.model_validate(
        {
            "data": data,
            "output": "unused",
            "batch": {"tokens": TOKENS * world_size, "lanes": world_size, "tokens_per_slot": TOKENS},
            "max_steps": 1_000_000,
        }
    )
    manifest = read_manifest(data)
    (phase,) = open_phases(resolve_phases(config), manifests=[manifest])
    stream = MicroBatchStream(phase.plan, data, rank=rank, world_size=world_size)
    tokens, begun, begun_cpu = 0, 0.0, 0.0
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            begun, begun_cpu = time.perf_counter(), time.process_time()
        (micro_batch,) = stream.next_step().micro_batches  # no all_reduce: other ranks' counts are not needed
        to_batch(micro_batch, shape=phase.shape.micro_batch, special=manifest.special, constant_shapes=True)
        tokens += micro_batch.num_tokens if micro_batch is not None and step >= WARM_UP else 0
    wall, cpu = time.perf_counter() - begun, time.process_time() - begun_cpu
    stream.close()
    return tokens, wall, cpu


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
