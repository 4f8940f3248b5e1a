"""Measures how fast BERT trains on a GPU host, and whether the loss falls: transformers, our engine, the whole product.

Usage: python -m bench.trainer DATA [--size large] [--workers 1] [--only PARTS], or --render FILE... (see --help)
A part is one measurement. Each part runs in a process of its own. After each part, its result is added to the file
NAME.json in the folder OUT (see --name and --out). DATA is a data set with rows of up to 512 tokens, for example from
bench/lengths.py. Cost: 20 to 140 s per part, most of it for compilation. On an H200, the default parts of BERT-Large
take about six minutes on one GPU, and three minutes on two GPUs (--workers 2 --only product).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from bench.cards import name_card
from bench.trainer_parts import RATE, TOKENS, WARM_UP, Setting
from bench.trainer_tables import NAMES, Result, describe, list_faults, read_results
from pipeline.dataset import read_manifest
from trainer.profiling import profile_run
from trainer.telemetry import METRICS_NAME, read_json_lines

ROOT = Path(__file__).resolve().parent.parent
UNBUFFERED = {**os.environ, "PYTHONUNBUFFERED": "1"}
STEPS, SETTLED = 90, 40
"""How many steps a run of the whole product has, and how many of them come before the timing begins."""
ACCUMULATED = 4
"""Micro-batches per step and worker in the part `accumulation`."""
DEFAULT = ("peak", "transformers", "transformers-compiled", "zero-1", "zero-2", "zero-3", "product")
EXTRA = ("plain", "accumulation", "parts", "attention")
"""Parts that run only if --only names them."""
MODULES = {"attention": ("bench.attention",)}
"""For parts that have a module of their own, the words after `python -m`. All other parts are in
bench.trainer_parts."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts one after another, or with --render write the page from earlier results. Return the exit status.

    The status is 1 if a part failed, if a loss did not fall, or if there are no results.
    """
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.render:
        results = read_results(map(Path, options.render))
        Path(options.page).write_text(describe(results))
    else:
        if options.device == "cuda" and not torch.cuda.is_available():
            raise SystemExit("bench.trainer: no CUDA device here; run it on a GPU host, or try it with --device cpu")
        results = run_parts(options)
    print(describe(results))
    faults = list_faults(results)
    for fault in faults:
        print(f"ERROR: {fault}", flush=True)
    return 1 if faults or not results else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.trainer", description=__doc__)
    add = parser.add_argument
    add("data", nargs="?", help="a data set with rows up to 512; not with --render")
    add("--size", default="large")
    add("--workers", default="1", help="GPUs of the whole product, several with commas")
    add("--only", help=f"parts, with commas, of {', '.join((*DEFAULT, *EXTRA))}; without: {', '.join(DEFAULT)}")
    add("--skip", default="", help="parts to leave out")
    add("--out", default=str(ROOT / "bench" / "out"), help="folder of the result file")
    add("--name", help="of the result file; without: trainer-SIZE-WORKERS-TIME")
    add("--render", nargs="+", metavar="FILE", help="write the page from result files, later ones over earlier ones")
    add("--page", default=str(ROOT / "bench" / "trainer.md"), help="file that --render writes")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--tokens", type=int, default=TOKENS, help="of a micro-batch")
    options = parser.parse_args(arguments)
    if (options.data is None) == (options.render is None):
        parser.error("give a data set, or --render FILE...")
    options.parts = options.only.split(",") if options.only else DEFAULT
    unknown = {*options.parts, *filter(None, options.skip.split(","))} - {*DEFAULT, *EXTRA}
    if unknown:
        parser.error(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join((*DEFAULT, *EXTRA))}")
    return options


def run_parts(options: argparse.Namespace) -> list[Result]:
    """Run the chosen parts and return their results. After each part, all results so far are written to the result
    file."""
    setting = Setting(str(Path(options.data).resolve()), options.size, options.device, options.tokens)
    now = datetime.now()
    shared = {
        "size": setting.size,
        "card": name_card(setting.device),
        "torch": torch.__version__,
        "date": str(now.date()),
        "data": describe_lengths(setting.data),
        "tokens": setting.tokens,
    }
    name = options.name or f"trainer-{setting.size}-{options.workers.replace(',', '-')}-{now:%Y%m%d-%H%M%S}"
    path = Path(options.out) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = [part for part in options.parts if part not in options.skip.split(",")]
    results: list[Result] = []
    for run in list_runs(parts, setting=setting, workers=[int(number) for number in options.workers.split(",")]):
        begun = time.perf_counter()
        result = {**shared, **run(), "took_s": time.perf_counter() - begun}
        results.append(result)
        print(json.dumps(result), flush=True)
        path.write_text(json.dumps({"results": results}, indent=1) + "\n")
    print(f"results: {path}", flush=True)
    return results


def list_runs(parts: Sequence[str], *, setting: Setting, workers: Sequence[int]) -> Iterator[partial[Result]]:
    """Yield a function for each measurement of the chosen parts, in order. Each function returns its result."""
    for name in ("peak", *NAMES):
        if name in parts:
            yield partial(run_part, name, setting=setting)
    for number in workers:
        if setting.device == "cuda" and number > torch.cuda.device_count():
            print(f"workers={number}: this host shows {torch.cuda.device_count()} GPUs; left out", flush=True)
            continue
        product = partial(run_product, setting=setting, workers=number)
        if "product" in parts:
            for stage in (1,) if number == 1 else (1, 2, 3):
                yield partial(product, zero_stage=stage, resumed=number == 1)
        if "accumulation" in parts:
            yield partial(product, zero_stage=1, micro_batches=ACCUMULATED)
    if "parts" in parts:
        yield partial(record_parts, setting)
    if "attention" in parts:
        yield partial(run_part, "attention", setting=setting)


def run_part(name: str, *, setting: Setting) -> Result:
    """Run one part in a new process, so that no memory or compilation is left over from other parts. Return its
    result."""
    words = [setting.data, setting.size, *([] if name in MODULES else [setting.device, str(setting.tokens)])]
    done = subprocess.run(
        [sys.executable, "-m", *MODULES.get(name, ("bench.trainer_parts", name)), *words],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        print(done.stdout[-3000:], flush=True)
        return {"part": name, "failed": f"exit status {done.returncode}"}
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


def run_product(
    *, setting: Setting, workers: int, zero_stage: int, micro_batches: int = 1, resumed: bool = False
) -> Result:
    """Train with trainer/run.py as users do, from Parquet to a checkpoint, and return the result.

    `micro_batches` is the number of micro-batches per step and worker, each of `setting.tokens` tokens. If `resumed`,
    the run is stopped after a few steps and started again by the same command. On GPUs it runs under Ray if Ray is
    installed.
    """
    launcher = "ray" if setting.device == "cuda" and find_spec("ray") else "processes"
    num_steps = STEPS if micro_batches == 1 else STEPS // 2
    settled = num_steps * SETTLED // STEPS
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    words = [
        f"data={setting.data}",
        f"output={folder / 'run'}",
        f"model.size={setting.size}",
        f"batch.tokens={setting.tokens * workers * micro_batches}",
        f"batch.lanes={workers * micro_batches}",
        f"batch.tokens_per_slot={setting.tokens}",
        f"max_steps={num_steps}",
        f"workers={workers}",
        f"zero_stage={zero_stage}",
        f"launcher={launcher}",
        f"device={setting.device}",
        "precision=bf16",
        f"optimizer.learning_rate={RATE}",
        "schedule.name=constant",
        f"schedule.warmup_steps={WARM_UP}",
        "checkpoint.every_steps=1000000",
        "logging.tracker=none",
    ]
    (folder / "empty.yaml").write_text("{}\n")
    command = [sys.executable, "trainer/run.py", "--config", str(folder / "empty.yaml"), *words]
    starts = [run_to_end(command, folder=folder, stop_after=stop_after) for stop_after in ((4, 0) if resumed else (0,))]
    steps = read_json_lines(folder / "run" / METRICS_NAME)
    shutil.rmtree(folder)
    named = {
        "part": f"product-{workers}-zero-{zero_stage}-{micro_batches}",
        "name": f"ours, whole product, {launcher}, {workers} GPU{'s' * (workers > 1)}, ZeRO-{zero_stage}"
        + f", {micro_batches} micro-batches a step" * (micro_batches > 1),
        "workers": workers,
    }
    if len(steps) < num_steps:
        return {**named, "failed": f"{len(steps)} of {num_steps} steps"}
    timed, last = steps[settled:], steps[-(num_steps // 10) :]
    seconds = sum(step["step_s"] for step in timed)
    memory = [step["peak_memory_gb"] for step in timed if step["peak_memory_gb"] is not None]
    return {
        **named,
        "tokens_per_second": sum(step["tokens"] for step in timed) / seconds / workers,
        "places_per_second": len(timed) * micro_batches * setting.tokens / seconds,
        "tflops": statistics.mean(step["tflops"] for step in timed),
        "step_ms": 1e3 * seconds / len(timed),
        "memory_gb": max(memory, default=None),
        "waiting": sum(step["data_wait_s"] for step in timed) / seconds,
        "first_step_s": starts[0],
        "resumed_step_s": starts[-1] if resumed else None,
        "loss_before": steps[0]["mlm_loss"],
        "loss_after": statistics.mean(math.nan if step["mlm_loss"] is None else step["mlm_loss"] for step in last),
    }


def run_to_end(command: Sequence[str], *, folder: Path, stop_after: int) -> float:
    """Run the command to its end. Return the seconds from its start until its first step was logged.

    If `stop_after` is not 0, the command is stopped by SIGTERM after this many steps, and then writes a checkpoint.
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
    """Return the number of lines of a file, or 0 if the file does not exist yet."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def record_parts(setting: Setting) -> Result:
    """Profile a step of the whole product, and return a table of the time that each kind of work takes."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        config = setting.config().model_copy(update={"output": str(folder / "run")})
        return {"part": "parts", "table": profile_run(config, folder=folder / "profile").table()}
    except Exception as error:
        return {"part": "parts", "failed": repr(error)}
    finally:
        shutil.rmtree(folder)


def describe_lengths(data: str) -> str:
    """Return a phrase with the mean and the maximum length of the data set's training rows, in tokens."""
    manifest = read_manifest(data)
    mean = manifest.num_tokens("train") / manifest.num_rows("train")
    return f"rows of {mean:.0f} tokens on average, at most {manifest.max_seq_length}"


if __name__ == "__main__":
    sys.exit(main())
