"""How fast BERT trains on this GPU host: transformers, our model, our engine and the whole product on the same rows.

Usage: python -m bench.trainer DATA [--size large] [--workers 1,2] [--skip PART,...]   (`make bench-trainer DATA=...`)
DATA: a data set with rows up to 512, such as bench/lengths.py makes. Writes bench/trainer.md, bench/out/trainer.json.
Cost: about a minute a part, most of it compilation.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bench.trainer_parts import PARTS, TOKENS, make_config
from pipeline.manifest import read_manifest
from trainer.metrics import METRICS_NAME, read_json_lines
from trainer.profiling import profile_run

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "bench" / "out"
STEPS, SETTLED = 90, 40
"""Steps of a whole run, and how many go by before it is timed."""
NAMES = {
    "transformers": "transformers, sdpa, padded, eager",
    "transformers-compiled": "transformers, sdpa, padded, compiled",
    "plain": "ours, plain torch",
    "zero-1": "ours, engine, ZeRO-1",
    "zero-2": "ours, engine, ZeRO-2",
}


def main(arguments: Sequence[str]) -> int:
    """Run the parts one after another; returns the exit status."""
    options, data = parse(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("bench.trainer: no CUDA device here; run it on a GPU host")
    skipped = options["skip"].split(",")
    results = [run_part(name, data=data, size=options["size"]) for name in PARTS if name not in skipped]
    for workers in map(int, options["workers"].split(",")):
        if workers > torch.cuda.device_count():
            print(f"workers={workers}: this host shows {torch.cuda.device_count()} GPUs; left out", flush=True)
            continue
        for stage in (1,) if workers == 1 else (1, 2, 3):
            results.append(run_product(data, size=options["size"], workers=workers, zero_stage=stage))
    parts = "" if "parts" in skipped else record_parts(data, size=options["size"])
    text = describe(results, data=data, size=options["size"]) + parts
    print(text)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "trainer.json").write_text(json.dumps({"date": str(date.today()), "results": results}, indent=1) + "\n")
    (ROOT / "bench" / "trainer.md").write_text(text)
    return 0


def parse(arguments: Sequence[str]) -> tuple[dict[str, str], str]:
    """The options and DATA."""
    options = {"size": "large", "workers": "1", "skip": ""}
    rest = list(arguments)
    data = [word for word in rest if not word.startswith("--") and not rest[rest.index(word) - 1].startswith("--")]
    for name in options:
        if f"--{name}" in rest:
            options[name] = rest[rest.index(f"--{name}") + 1]
    if len(data) != 1:
        raise SystemExit("usage: python -m bench.trainer DATA [--size large] [--workers 1,2] [--skip PART,...]")
    return options, str(Path(data[0]).resolve())


def run_part(name: str, *, data: str, size: str) -> dict[str, Any]:
    """One part in a process of its own, so that no memory or compilation is left over from another."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.trainer_parts", name, data, size],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        print(f"{name}: failed with exit status {done.returncode}", flush=True)
        return {"part": name, "failed": done.returncode}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(result), flush=True)
    return result


def run_product(data: str, *, size: str, workers: int, zero_stage: int) -> dict[str, Any]:
    """trainer/run.py as users start it, under Ray where it is installed, from Parquet to a checkpoint."""
    launcher = "ray" if find_spec("ray") else "processes"
    config = make_config(data, size, zero_stage=zero_stage, workers=workers)
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    words = [
        f"data={data}",
        f"output={folder / 'run'}",
        f"model.size={size}",
        f"batch.tokens={config.batch.tokens}",
        f"batch.lanes={config.batch.lanes}",
        f"batch.tokens_per_slot={config.batch.tokens_per_slot}",
        f"max_steps={STEPS}",
        f"workers={workers}",
        f"zero_stage={zero_stage}",
        f"launcher={launcher}",
        "device=cuda",
        "precision=bf16",
        "schedule.warmup_steps=10",
        "checkpoint.every_steps=1000000",
    ]
    (folder / "empty.yaml").write_text("{}\n")
    done = subprocess.run(
        [sys.executable, "trainer/run.py", "--config", str(folder / "empty.yaml"), *words],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    steps = read_json_lines(folder / "run" / METRICS_NAME)
    shutil.rmtree(folder)
    name = f"product-{workers}-zero-{zero_stage}"
    if done.returncode != 0 or len(steps) < STEPS:
        print(done.stdout[-3000:], flush=True)
        return {"part": name, "failed": done.returncode}
    timed = steps[SETTLED:]
    seconds = sum(step["step_s"] for step in timed)
    result = {
        "part": name,
        "name": f"ours, whole product, {launcher}, {workers} GPU{'s' * (workers > 1)}, ZeRO-{zero_stage}",
        "workers": workers,
        "tokens_per_second": sum(step["tokens"] for step in timed) / seconds / workers,
        "places_per_second": len(timed) * TOKENS / seconds,
        "tflops": statistics.mean(step["tflops"] for step in timed),
        "step_ms": 1e3 * seconds / len(timed),
        "waiting": sum(step["data_wait_s"] for step in timed) / seconds,
    }
    print(json.dumps(result), flush=True)
    return result


def record_parts(data: str, *, size: str) -> str:
    """What a step of the whole product consists of."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    config = make_config(data, size).model_copy(update={"output": str(folder / "run")})
    parts = profile_run(config, folder=folder / "profile")
    shutil.rmtree(folder)
    return f"\n## A step of the product while it is recorded\n\n{parts.table()}"


def describe(results: Sequence[dict[str, Any]], *, data: str, size: str) -> str:
    """The table, with the card and the day."""
    lengths = read_lengths(data)
    found = {result["part"]: result for result in results}
    peak = found.get("peak", {}).get("tflops", math.nan)
    base = found.get("transformers", {}).get("tokens_per_second", math.nan)
    lines = [
        f"# BERT {size} on {torch.cuda.get_device_name()}, {date.today()}",
        "",
        f"torch {torch.__version__}; {lengths}; {TOKENS:,} token places a micro-batch; dropout 0.1; bf16; measured "
        f"bf16 peak of the card {peak:.0f} TFLOP/s. Rates are a GPU's.",
        "",
        "| what | real tokens/s | to transformers, eager | places/s | TFLOP/s | of the peak | ms a step | memory, GB | "
        "first step, s | waiting for data |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        if result["part"] == "peak":
            continue
        name = result.get("name") or NAMES[result["part"]]
        if "failed" in result:
            lines.append(f"| {name} | failed | | | | | | | | |")
            continue
        lines.append(
            f"| {name} | {result['tokens_per_second']:,.0f} | {result['tokens_per_second'] / base:.2f} | "
            f"{result['places_per_second']:,.0f} | {result['tflops']:.0f} | {result['tflops'] / peak:.1%} | "
            f"{result['step_ms']:.1f} | {_shown(result, 'memory_gb', '.0f')} | "
            f"{_shown(result, 'first_step_s', '.0f')} | {_shown(result, 'waiting', '.2%')} |"
        )
    return "\n".join(lines) + "\n"


def read_lengths(data: str) -> str:
    """Mean length of the data set's training rows."""
    manifest = read_manifest(data)
    mean = manifest.num_tokens("train") / manifest.num_rows("train")
    return f"rows of {mean:.0f} tokens on average, at most {manifest.max_seq_length}"


def _shown(result: dict[str, Any], key: str, form: str) -> str:
    return format(result[key], form) if key in result else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
