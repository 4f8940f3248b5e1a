"""Judges pretraining by tasks: fine-tunes our BERT, transformers' BERT after the same minutes, and random weights.

Usage: python -m bench.evaluation DATA TASKS [options]   (see --help)
Both are trained on the rows of DATA, each with its recipe of bench/learning_recipes.py, whose learning rate is a
function of the time used. Ours is trained by trainer/run.py, stopped halfway and started again. Then all three are
fine-tuned by trainer.finetune with the same settings on the tasks whose files lie below TASKS. A part whose result
exists already is not done again. Cost on two H200 with the defaults: about 20 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from bench.cards import name_card
from bench.learning import visible_gpus
from bench.learning_ours import ROOT, Start, time_evaluations
from bench.learning_tasks import NEVER, TOKENS, Curve, Task, curve_path, derive_pairs, describe_run, write_curve
from bench.learning_transformers import save_model
from bench.transformers_bert import build_model, initial_state
from pipeline.dataset import read_manifest
from trainer.telemetry import EVALUATIONS_NAME, METRICS_NAME, read_json_lines

TASKS = "sst2,cola,rte,stsb,xquad-en,wnut17"
MODELS = {"random": "random weights", "transformers": "transformers", "ours": "ours"}
"""The models that are fine-tuned, each with its column's name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is missing, and print the tables. Return the exit status."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    out, data = Path(options.out), str(Path(options.data).resolve())
    out.mkdir(parents=True, exist_ok=True)
    card, gpus = name_card(options.device), visible_gpus(options.device)
    tasks = {who: make_task(who, data=data, options=options) for who in ("ours", "transformers")}
    pretrains = {"ours": pretrain_ours, "transformers": pretrain_transformers}

    def pretrain(number: int, who: str) -> None:
        task, environment = tasks[who], environment_of(gpus[number % len(gpus)])
        if curve_path(out, who).exists():
            print(f"{who}: is pretrained already", flush=True)
            return
        begun = time.time()
        print(f"{who}: begins on {card} {gpus[number % len(gpus)]}", flush=True)
        curve = pretrains[who](task, folder=out, environment=environment)
        write_curve(out, describe_run(task, card=card) | curve | {"name": who})
        print(f"{who}: pretrained in {time.time() - begun:.0f} s", flush=True)

    with ThreadPoolExecutor(min(2, len(gpus))) as pool:
        list(pool.map(pretrain, range(len(tasks)), tasks))
    write_random(tasks["transformers"], folder=out / "random")
    for model in MODELS:
        finetune(out / model, tasks=options.tasks, out=out / f"{model}-tasks", options=options)
    text = "\n".join(render(out, options=options)) + "\n"
    (out / "tables.md").write_text(text)
    print(text)
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.evaluation", description=__doc__)
    add = parser.add_argument
    add("data", help="a data set with rows up to 512")
    add("tasks", help="folder of the tasks' files, as --data of trainer.finetune")
    add("--out", default=str(ROOT / "bench" / "out" / "evaluation"), help="folder of models, results and tables")
    add("--minutes", type=float, default=12.0, help="of pretraining; compilation counts for ours, not for transformers")
    add("--max-steps", type=int, default=NEVER, help="of pretraining, if they end before the minutes")
    add("--size", default="base", help="of the model")
    add("--tokens", type=int, help="a step; the recipe's own if left out")
    add("--every-s", type=float, default=30.0, help="seconds between evaluations of transformers")
    add("--only", default=TASKS, help="the tasks, with commas")
    add("--seeds", type=int, default=3, help="runs of each task")
    add("--side-by-side", type=int, help="fine-tunings at the same time")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--precision", choices=("bf16", "fp32"), default="bf16", help="of pretraining")
    add("settings", nargs="*", help="of trainer.finetune, as key=value")
    options = parser.parse_intermixed_args(arguments)
    if options.seeds < 2 and "," not in options.only:
        parser.error("give at least two tasks or --seeds 2: trainer.finetune writes no report of one run")
    return options


def make_task(who: Any, *, data: str, options: argparse.Namespace) -> Task:
    """Return one of the two pretraining runs."""
    task = Task(
        "recipe",
        who,
        data,
        seed=1,
        size=options.size,
        device=options.device,
        precision=options.precision,
        recipe=f"evaluation-{who}",
        own_tokens=options.tokens is None,
        tokens=options.tokens or TOKENS,
        seconds=60 * options.minutes,
        every_s=options.every_s,
        max_steps=options.max_steps,
    )
    tokens = task.settings()["batch"]["tokens"]
    return task if who == "ours" else replace(task, pairs=derive_pairs(data, tokens=tokens))


def environment_of(gpu: str) -> dict[str, str]:
    """Return the environment of a process that may use one GPU."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": gpu}


def pretrain_ours(task: Task, *, folder: Path, environment: Mapping[str, str]) -> Curve:
    """Train by trainer/run.py in two halves, export the model to folder/ours, and return the curve."""
    run, config = folder / "run", folder / "run.yaml"
    config.write_text(yaml.safe_dump({**task.settings(), "output": str(run)}))
    with (folder / "ours.log").open("a") as log:
        command = [sys.executable, "trainer/run.py", "--config", str(config)]
        start = Start(command, run=run, environment=environment, log=log)
        start.go(seconds=task.seconds / 2, stop_at=task.max_steps // 2)
        stopped, began_s = read_json_lines(run / METRICS_NAME)[-1], start.first_s
        start.go()
    steps, evaluations = read_json_lines(run / METRICS_NAME), read_json_lines(run / EVALUATIONS_NAME)
    last = steps[-1]
    if last["hours"] < 0.99 * task.seconds / 3600 and last["step"] < task.max_steps:
        raise RuntimeError(f"trainer/run.py ended after {last['hours']:.2f} hours; see {folder / 'ours.log'}")
    subprocess.run([sys.executable, "-m", "trainer.export", str(run), str(folder / "ours")], cwd=ROOT, check=True)
    return {
        "mlm": [step["mlm_loss"] for step in steps],
        "nsp": [step["nsp_loss"] for step in steps],
        "stops": [stopped["step"]],
        "resumed_first_step_s": start.first_s,
        "tokens": sum(step["tokens"] for step in steps),
        **time_evaluations(steps, evaluations, began_s=began_s),
    }


def pretrain_transformers(task: Task, *, folder: Path, environment: Mapping[str, str]) -> Curve:
    """Train transformers in a new process, which saves its model to folder/transformers, and return the curve. Raises
    CalledProcessError if the process fails."""
    path = folder / "transformers.partial"
    words = [task.dump(), str(path), str(time.time()), str(folder / "transformers")]
    with (folder / "transformers.log").open("w") as log:
        command = [sys.executable, "-m", "bench.learning_transformers", *words]
        subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, check=True)
    curve: Curve = json.loads(path.read_text())
    return curve


def write_random(task: Task, *, folder: Path) -> None:
    """Write a model with the initial weights of transformers' run."""
    if folder.exists():
        return
    manifest, config = read_manifest(task.data), task.config().model
    state = initial_state(config, manifest=manifest, seed=task.seed)
    save_model(build_model(config, manifest=manifest, state=state, device="cpu"), data=task.data, folder=folder)


def finetune(model: Path, *, tasks: str, out: Path, options: argparse.Namespace) -> None:
    """Fine-tune a model on all tasks. Raises CalledProcessError if that fails."""
    words = ["--task", options.only, "--model", str(model), "--data", tasks, "--output", str(out)]
    settings = [f"seeds={options.seeds}", f"device={options.device}", *options.settings]
    if options.side_by_side:
        settings.append(f"side_by_side={options.side_by_side}")
    begun = time.time()
    subprocess.run([sys.executable, "-m", "trainer.finetune", *words, *settings], cwd=ROOT, check=True)
    print(f"{model.name}: fine-tuned in {time.time() - begun:.0f} s", flush=True)


def render(out: Path, *, options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of both tables: the pretraining runs, and the tasks."""
    curves = {who: json.loads(curve_path(out, who).read_text()) for who in ("transformers", "ours")}
    yield "| pretraining | card | minutes | steps | tokens | held-out masked-LM loss |"
    yield "|---|---|---|---|---|---|"
    for who, curve in curves.items():
        last = curve["evaluations"][-1]
        steps = len(curve.get("loss") or curve["mlm"])
        yield (
            f"| {who} | {curve['card']} | {curve['took_s'] / 60:.1f} | {steps:,} | {curve['tokens']:,} | "
            f"{last['mlm_loss']:.3f} at step {last['step']:,} |"
        )
    yield ""
    rows = {model: read_rows(out / f"{model}-tasks" / "report.json") for model in MODELS}
    yield f"| task | metric | guessing | {' | '.join(MODELS.values())} |"
    yield "|---|---|---|---|---|---|"
    for label, row in rows["ours"].items():
        guess = "" if row["majority"] is None else f"{100 * row['majority']:.1f}"
        cells = [show(rows[model][label]["values"]) for model in MODELS]
        yield f"| {label} | {row['metric']} | {guess} | {' | '.join(cells)} |"


def read_rows(path: Path) -> dict[str, Mapping[str, Any]]:
    """Return the rows of a report.json of trainer.finetune by their labels."""
    return {row["label"]: row for row in json.loads(path.read_text())["rows"]}


def show(values: Sequence[float]) -> str:
    """Return the median, the lowest and the highest of shares of 1, as percent."""
    low, middle, high = (f"{100 * value:.1f}" for value in (min(values), median(values), max(values)))
    return f"{middle} ({low} to {high})"


if __name__ == "__main__":
    sys.exit(main())
