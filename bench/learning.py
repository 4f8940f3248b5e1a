"""Compares how our product and transformers learn (with equal steps, after a resume, and in equal time), and how
recipes learn in equal time.

Usage: python -m bench.learning DATA [options], or --render FOLDER (see --help)
Each run writes a curve (its losses) to a file. A run whose curve exists already is not repeated, and a run that fails
does not stop other runs. Cost on an H200: about 2 to 5 minutes for each run of equal steps, and `--minutes` or
`--recipe-minutes` plus a minute of start-up for each run that ends by time.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import torch

from bench.cards import name_card
from bench.learning_ours import ROOT, train_ours
from bench.learning_report import make_report, write_report
from bench.learning_tasks import (
    STEPS,
    TIMED,
    TOKENS,
    Curve,
    Task,
    curve_path,
    derive_pairs,
    describe_run,
    list_tasks,
    read_curves,
    write_curve,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the runs that have no curve yet, or with --render write docs/LEARNING.md. Return the exit status.

    The status is 1 if a run failed or a comparison came out against us. With --render, it is also 1 if a comparison
    could not be judged.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parse(given)
    if options.render:
        curves = read_curves(Path(options.render))
        if not curves:
            raise SystemExit(
                f"bench.learning: {options.render} holds no curve; run python -m bench.learning DATA first"
            )
        report = make_report(curves)
        write_report(report, curves=curves, docs=Path(options.docs))
    else:
        folder = Path(options.out)
        folder.mkdir(parents=True, exist_ok=True)
        data = options.data
        command = shlex.join(Path(word).name if word in (data, options.out) else word for word in given)
        failed = run_missing(choose_tasks(options), folder=folder, options=options, command=command)
        report = make_report(read_curves(folder))
    print(report.text)
    for line in report.failed if not options.render else (*report.failed, *report.incomplete):
        print(f"FAILED: {line}", flush=True)
    if options.render:
        return 1 if report.failed or report.incomplete else 0
    for name in failed:
        print(f"FAILED: {name} left no curve: see {folder / name}.log; the same command runs it again", flush=True)
    return 1 if failed or report.failed else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line.

    If the value of --every-steps, --pairs or --launcher is None, choose_tasks and list_tasks choose it.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.learning", description=__doc__)
    add = parser.add_argument
    add("data", nargs="?", help="a data set with rows up to 512; not with --render")
    add("--out", default=str(ROOT / "bench" / "out" / "learning"), help="folder of the curves")
    add("--render", metavar="FOLDER", help="write LEARNING.md and its pictures from the curves of FOLDER")
    add("--docs", default=str(ROOT / "docs"), help="folder that --render writes to")
    add("--only", default="", help="beginnings of the names of the runs, with commas: steps-ours, resume, time-large")
    add("--jobs", type=int, default=1, help="runs of equal steps at once, dealt over the GPUs that are visible")
    add("--size", default="small", help="of equal steps and the resumed run")
    add("--sizes", default="base,large", help="of equal time")
    add("--minutes", type=float, default=3.0, help="of equal time")
    add("--every-s", type=float, default=30.0, help="of equal time: seconds between evaluations of transformers")
    add("--every-steps", type=int, help="of equal time: steps between evaluations of ours")
    add("--pairs", type=int, help="of equal time: pairs a step of transformers; as many passes as come nearest to ours")
    add("--recipe-size", default="base", help="of the recipes")
    add("--recipe-minutes", type=float, default=10.0, help="of each recipe")
    add("--recipe-tokens", choices=("own", "equal"), default="own", help="a step of a recipe; equal: --tokens")
    add("--steps", type=int, default=STEPS, help="of equal steps")
    add("--tokens", type=int, default=TOKENS, help="a step")
    add("--dropout", type=float, default=0.1)
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--precision", choices=("bf16", "fp32"), default="bf16")
    add("--launcher", choices=("ray", "processes"), help="of equal time; ray where it is installed")
    options = parser.parse_args(arguments)
    if (options.data is None) == (options.render is None):
        parser.error("give a data set, or --render FOLDER")
    return options


def choose_tasks(options: argparse.Namespace) -> list[Task]:
    """Return the runs that the options ask for. Raises SystemExit if there are none."""
    shared = ("steps", "tokens", "dropout", "device", "precision", "every_s")
    data = str(Path(options.data).resolve())
    tasks = list_tasks(
        data,
        pairs=options.pairs or derive_pairs(data, tokens=options.tokens),
        sizes=options.sizes.split(","),
        size=options.size,
        minutes=options.minutes,
        every_steps=options.every_steps,
        recipe_size=options.recipe_size,
        recipe_minutes=options.recipe_minutes,
        own_tokens=options.recipe_tokens == "own",
        launcher=options.launcher or ("ray" if find_spec("ray") else "processes"),
        **{name: getattr(options, name) for name in shared},
    )
    chosen = [task for task in tasks if task.name.startswith(tuple(options.only.split(",")))]
    if not chosen:
        raise SystemExit(f"bench.learning: --only {options.only} names no run; see --help")
    return chosen


def run_missing(tasks: Sequence[Task], *, folder: Path, options: argparse.Namespace, command: str) -> list[str]:
    """Do the runs of `tasks` that have no curve in `folder`. Return the names of the runs that failed.

    Runs of equal steps share GPUs. A run that ends by time has a GPU to itself, because its speed counts.
    """
    card = name_card(options.device)
    missing = [task for task in tasks if not has_curve(task, folder=folder)]
    failed: list[str] = []
    for timed in (False, True):
        gpus: queue.Queue[str] = queue.Queue()
        visible = visible_gpus(options.device)
        for job in range(len(visible) if timed else options.jobs):
            gpus.put(visible[job % len(visible)])
        run = partial(run_task, gpus=gpus, folder=folder, card=card, command=f"python -m bench.learning {command}")
        chosen = [task for task in missing if (task.part in TIMED) == timed]
        with ThreadPoolExecutor(gpus.qsize()) as pool:
            done = list(pool.map(run, chosen))
        failed += [task.name for task, well in zip(chosen, done, strict=True) if not well]
    return failed


def visible_gpus(device: str) -> list[str]:
    """Return the GPUs that this process may use, one by one, as CUDA_VISIBLE_DEVICES names them."""
    if device != "cuda":
        return [""]
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(number) for number in range(torch.cuda.device_count())]


def has_curve(task: Task, *, folder: Path) -> bool:
    """Return whether the run's curve exists. Raises SystemExit if the curve was made with other settings."""
    path = curve_path(folder, task.name)
    if not path.exists():
        return False
    found, expected = json.loads(path.read_text()), json.loads(json.dumps(describe_run(task, card="")))
    for key in ("settings", "data", "seconds", "pairs"):
        if found[key] != expected[key]:
            raise SystemExit(
                f"bench.learning: {path} has {key}={found[key]}, this command {expected[key]}; give another --out or "
                f"remove the file"
            )
    print(f"{task.name}: already in {folder}", flush=True)
    return True


def run_task(task: Task, *, gpus: queue.Queue[str], folder: Path, card: str, command: str) -> bool:
    """Do a run on the next free GPU and write its curve. Return whether this succeeded.

    If the run failed, its output stays in NAME.log.
    """
    gpu, begun, log_path = gpus.get(), time.time(), folder / f"{task.name}.log"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": gpu}
    print(f"{task.name}: begins on {card} {gpu}", flush=True)
    described = {**describe_run(task, card=card), "command": command}
    try:
        with log_path.open("w") as log:
            if task.who == "ours":
                curve = train_ours(task, environment=environment, log=log)
            else:
                curve = train_transformers(task, environment=environment, log=log)
        write_curve(folder, described | curve)
    except Exception as error:
        tail = log_path.read_text(errors="replace")[-3000:] if log_path.exists() else ""
        print(f"{task.name}: failed after {time.time() - begun:.0f} s: {error!r}\n{tail}", flush=True)
        return False
    finally:
        gpus.put(gpu)
    log_path.unlink()
    print(f"{task.name}: done in {time.time() - begun:.0f} s", flush=True)
    return True


def train_transformers(task: Task, *, environment: Mapping[str, str], log: IO[str]) -> Curve:
    """Do a run of transformers in a new process, and return its curve. Raises CalledProcessError if the process
    fails."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = Path(folder) / "curve.json"
        arguments = [task.dump(), str(path), str(time.time())]
        command = [sys.executable, "-m", "bench.learning_transformers", *arguments]
        subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, check=True)
        curve: Curve = json.loads(path.read_text())
        return curve


if __name__ == "__main__":
    sys.exit(main())
