"""How fast BERT trains on this GPU host: transformers, our model, our engine and the whole product on the same rows.

Usage: python -m bench.trainer DATA [--size large] [--workers 1,2] [--skip PART,...] [--name trainer]
(`make bench-trainer DATA=...`). DATA: a data set with rows up to 512, such as bench/lengths.py makes.
Writes bench/NAME.md and bench/out/NAME.json.
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
import time
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bench import attention
from bench.trainer_parts import TOKENS, make_config
from pipeline.manifest import read_manifest
from trainer.metrics import METRICS_NAME, read_json_lines
from trainer.profiling import profile_run

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "bench" / "out"
UNBUFFERED = {**os.environ, "PYTHONUNBUFFERED": "1"}
STEPS, SETTLED = 90, 40
"""Steps of a whole run, and how many go by before it is timed."""
NAMES = {
    "transformers": "transformers, sdpa, padded, eager",
    "transformers-compiled": "transformers, sdpa, padded, compiled",
    "plain": "ours, plain torch",
    "zero-1": "ours, engine, ZeRO-1",
    "zero-2": "ours, engine, ZeRO-2",
    "zero-3": "ours, engine, ZeRO-3, not compiled",
}
MODULES = {"attention": ("bench.attention",)}
"""Parts that are modules of their own."""


def main(arguments: Sequence[str]) -> int:
    """Run the parts one after another; returns the exit status."""
    options, data = parse(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("bench.trainer: no CUDA device here; run it on a GPU host")
    skipped = options["skip"].split(",")
    table = Table(data, options)
    for name in ("peak", *NAMES):
        if name not in skipped:
            table.add(run_part(name, data=data, size=options["size"]))
    for workers in map(int, options["workers"].split(",")):
        if workers > torch.cuda.device_count():
            print(f"workers={workers}: this host shows {torch.cuda.device_count()} GPUs; left out", flush=True)
            continue
        product = partial(run_product, data, size=options["size"], workers=workers)
        for stage in (1,) if workers == 1 else (1, 2, 3):
            table.add(product(zero_stage=stage, resumed=workers == 1))
        if "accumulation" not in skipped:
            table.add(product(zero_stage=1, micro_batches=4))
    if "parts" not in skipped:
        table.end(record_parts(data, size=options["size"]))
    if "attention" not in skipped:
        table.end(attention.describe(run_part("attention", data=data, size=options["size"])))
    print(table.text)
    return 0


class Table:
    """The results so far, on disk after each of them."""

    def __init__(self, data: str, options: Mapping[str, str]) -> None:
        self._data, self._options = data, options
        self._results: list[dict[str, Any]] = []
        self.text = ""

    def add(self, result: dict[str, Any]) -> None:
        """One more row."""
        self._results.append(result)
        self.text = describe(self._results, data=self._data, size=self._options["size"])
        self._write()

    def end(self, parts: str) -> None:
        """What stands below the table."""
        self.text += parts
        self._write()

    def _write(self) -> None:
        OUT.mkdir(parents=True, exist_ok=True)
        whole = {"date": str(date.today()), "results": self._results}
        (OUT / f"{self._options['name']}.json").write_text(json.dumps(whole, indent=1) + "\n")
        (ROOT / "bench" / f"{self._options['name']}.md").write_text(self.text)


def parse(arguments: Sequence[str]) -> tuple[dict[str, str], str]:
    """The options and DATA."""
    options = {"size": "large", "workers": "1", "skip": "", "name": "trainer"}
    rest = list(arguments)
    data = [word for word in rest if not word.startswith("--") and not rest[rest.index(word) - 1].startswith("--")]
    for name in options:
        if f"--{name}" in rest:
            options[name] = rest[rest.index(f"--{name}") + 1]
    if len(data) != 1:
        raise SystemExit(
            "usage: python -m bench.trainer DATA [--size large] [--workers 1,2] [--skip PART,...] [--name trainer]"
        )
    return options, str(Path(data[0]).resolve())


def run_part(name: str, *, data: str, size: str) -> dict[str, Any]:
    """One part in a process of its own, so that no memory or compilation is left over from another."""
    done = subprocess.run(
        [sys.executable, "-m", *MODULES.get(name, ("bench.trainer_parts", name)), data, size],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        print(f"{name}: failed with exit status {done.returncode}", flush=True)
        return {"part": name, "failed": done.returncode}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(result), flush=True)
    return result


def run_product(
    data: str, *, size: str, workers: int, zero_stage: int, micro_batches: int = 1, resumed: bool = False
) -> dict[str, Any]:
    """trainer/run.py as users start it, under Ray where it is installed, from Parquet to a checkpoint.

    micro_batches: of TOKENS places, a step and worker. resumed: it is stopped and started again by the same command.
    """
    launcher = "ray" if find_spec("ray") else "processes"
    num_steps, settled = STEPS // micro_batches, SETTLED // micro_batches
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    words = [
        f"data={data}",
        f"output={folder / 'run'}",
        f"model.size={size}",
        f"batch.tokens={TOKENS * workers * micro_batches}",
        f"batch.lanes={workers * micro_batches}",
        f"batch.tokens_per_slot={TOKENS}",
        f"max_steps={num_steps}",
        f"workers={workers}",
        f"zero_stage={zero_stage}",
        f"launcher={launcher}",
        "device=cuda",
        "precision=bf16",
        "schedule.warmup_steps=10",
        "checkpoint.every_steps=1000000",
    ]
    (folder / "empty.yaml").write_text("{}\n")
    command = [sys.executable, "trainer/run.py", "--config", str(folder / "empty.yaml"), *words]
    starts = [run_to_end(command, folder=folder, stop_after=stop_after) for stop_after in ((4, 0) if resumed else (0,))]
    steps = read_json_lines(folder / "run" / METRICS_NAME)
    shutil.rmtree(folder)
    name = f"product-{workers}-zero-{zero_stage}-{micro_batches}"
    if len(steps) < num_steps:
        return {"part": name, "failed": "see above"}
    timed = steps[settled:]
    seconds = sum(step["step_s"] for step in timed)
    result = {
        "part": name,
        "name": f"ours, whole product, {launcher}, {workers} GPU{'s' * (workers > 1)}, ZeRO-{zero_stage}"
        + f", {micro_batches} micro-batches a step" * (micro_batches > 1),
        "workers": workers,
        "tokens_per_second": sum(step["tokens"] for step in timed) / seconds / workers,
        "places_per_second": len(timed) * micro_batches * TOKENS / seconds,
        "tflops": statistics.mean(step["tflops"] for step in timed),
        "step_ms": 1e3 * seconds / len(timed),
        "memory_gb": max(step["peak_memory_gb"] for step in timed),
        "waiting": sum(step["data_wait_s"] for step in timed) / seconds,
        "first_step_s": starts[0],
        "resumed_step_s": starts[-1] if resumed else None,
    }
    print(json.dumps(result), flush=True)
    return result


def run_to_end(command: Sequence[str], *, folder: Path, stop_after: int) -> float:
    """Run the command to its end; returns the seconds until its first step was logged.

    stop_after: SIGTERM after so many steps, upon which it writes a checkpoint; 0 lets it run.
    """
    metrics, log = folder / "run" / METRICS_NAME, folder / "log.txt"
    before = count_lines(metrics)
    begun, first = time.perf_counter(), math.nan
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env=UNBUFFERED)
    while process.poll() is None:
        made = count_lines(metrics) - before
        if made > 0 and math.isnan(first):
            first = time.perf_counter() - begun
        if 0 < stop_after <= made:
            process.terminate()
            process.wait()
        time.sleep(0.05)
    if process.returncode != 0:
        print(log.read_text()[-3000:], flush=True)
    return first


def count_lines(path: Path) -> int:
    """Lines of a file that may not exist yet."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


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
        f"bf16 peak of the card {peak:.0f} TFLOP/s. Rates are a GPU's. First step: seconds from the start of the "
        "process until it is logged; resumed: the same, for the command given again after a stop.",
        "",
        "| what | real tokens/s | to transformers, eager | places/s | TFLOP/s | of the peak | ms a step | memory, GB | "
        "first step, s | resumed, s | waiting for data |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        if result["part"] == "peak":
            continue
        name = result.get("name") or NAMES[result["part"]]
        if "failed" in result:
            lines.append(f"| {name} | failed | | | | | | | | | |")
            continue
        lines.append(
            f"| {name} | {result['tokens_per_second']:,.0f} | {result['tokens_per_second'] / base:.2f} | "
            f"{result['places_per_second']:,.0f} | {result['tflops']:.0f} | {result['tflops'] / peak:.1%} | "
            f"{result['step_ms']:.1f} | {_shown(result, 'memory_gb', '.0f')} | "
            f"{_shown(result, 'first_step_s', '.0f')} | {_shown(result, 'resumed_step_s', '.0f')} | "
            f"{_shown(result, 'waiting', '.2%')} |"
        )
    return "\n".join(lines) + "\n"


def read_lengths(data: str) -> str:
    """Mean length of the data set's training rows."""
    manifest = read_manifest(data)
    mean = manifest.num_tokens("train") / manifest.num_rows("train")
    return f"rows of {mean:.0f} tokens on average, at most {manifest.max_seq_length}"


def _shown(result: dict[str, Any], key: str, form: str) -> str:
    return "" if result.get(key) is None else format(result[key], form)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
