"""Fine-tunes a model on the same files by trainer.finetune and by transformers' Trainer; compares scores and seconds.

Usage: python -m bench.finetuning MODEL TASKS [options] [key=value ...]   (see --help)
Both start from the folder MODEL and have the same examples, batches, epochs, peak rate, schedule, decay and clipping.
Each draws the order of the examples, dropout and the first weights of the head by itself, so scores agree only within
the spread of seeds. transformers' side tokenizes, pads and trains by its own code; scikit-learn, scipy and seqeval
score it. Every run is a process, and its seconds are those of the whole process. A run whose result exists already is
not done again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.cards import name_card
from bench.evaluation import show
from bench.learning_ours import ROOT
from pipeline.settings import dump_yaml, load_tree, validate
from trainer.finetune import FinetuneConfig, StudyConfig, find_task
from trainer.finetune.study import find_tasks, single_config

TASKS = "sst2,cola,rte,stsb,wnut17"
KINDS = ("classification", "pair", "regression", "tagging")
"""Of tasks that bench.finetuning_transformers knows."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is missing, and print the table. Return the exit status."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    out = Path(options.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    lines = [
        "| task | metric | transformers | ours | seconds, transformers | seconds, ours |",
        "|---|---|---|---|---|---|",
    ]
    for label, configs in plan(options).items():
        found = {who: [run(who, config, folder=out / label / who) for config in configs] for who in ("theirs", "ours")}
        metric = find_task(configs[0].task, columns=configs[0].columns).metrics[0]
        scores = [show([each["value"] for each in found[who]]) for who in found]
        seconds = [f"{median(each['seconds'] for each in found[who]):.0f}" for who in found]
        lines.append(f"| {label} | {metric} | {' | '.join([*scores, *seconds])} |")
    settings = f"{' '.join(options.settings)} seeds={options.seeds}".strip()
    text = "\n".join([f"{name_card(options.device)}, `{settings}`:", "", *lines]) + "\n"
    (out / "table.md").write_text(text)
    print(text)
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.finetuning", description=__doc__)
    add = parser.add_argument
    add("model", help="folder of an export, or of a BERT that transformers saved with its tokenizer")
    add("tasks", help="folder of the tasks' files, as --data of trainer.finetune")
    add("--out", default=str(ROOT / "bench" / "out" / "finetuning"), help="folder of results and the table")
    add("--only", default=TASKS, help="the tasks, with commas")
    add("--seeds", type=int, default=3, help="runs of each task")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("settings", nargs="*", help="of trainer.finetune, as key=value: batch_size, epochs, max_length, optimizer....")
    return parser.parse_intermixed_args(arguments)


def plan(options: argparse.Namespace) -> dict[str, list[FinetuneConfig]]:
    """Return for each task found below options.tasks its runs, one for each seed."""
    given = {
        "model": options.model,
        "data": options.tasks,
        "task": options.only,
        "output": "",
        "device": options.device,
    }
    tree = {**given, "keep_model": False, **load_tree(None, overrides=options.settings)}
    study = validate(StudyConfig, tree, origin="bench.finetuning")
    runs = {}
    for label, (name, folder) in find_tasks(study).items():
        if find_task(name, columns=study.columns).kind not in KINDS:
            raise SystemExit(f"bench: --only {name}: transformers' side knows {', '.join(KINDS)} alone; leave it out")
        config = single_config(study).model_copy(update={"task": name, "data": folder})
        runs[label] = [config.model_copy(update={"seed": config.seed + seed}) for seed in range(options.seeds)]
    return runs


def run(who: str, config: FinetuneConfig, *, folder: Path) -> dict[str, float]:
    """Do one run in a process of its own, unless its result exists. Return `value`, a share of 1, and `seconds`.

    Raises CalledProcessError if the process fails.
    """
    result = folder / f"{config.seed}.json"
    if result.exists():
        done: dict[str, float] = json.loads(result.read_text())
        return done
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / str(config.seed)
    path = folder / f"{config.seed}.yaml"
    path.write_text(dump_yaml(config.model_copy(update={"output": str(output)})))
    module = (
        ["trainer.finetune", "--config", str(path)] if who == "ours" else ["bench.finetuning_transformers", str(path)]
    )
    begun = time.time()
    said = subprocess.run([sys.executable, "-m", *module], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    value = json.loads(said.stdout.splitlines()[-1])["value"]
    found = {"value": value, "seconds": time.time() - begun}
    result.write_text(json.dumps(found))
    print(f"{folder.parent.name}, {who}, seed {config.seed}: {value:.4f} in {found['seconds']:.0f} s", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
