"""Several fine-tunings: a grid of settings, seeds, and tasks. A study continues with the runs that are left.

One run at a time is trained in this process; several at a time are processes, each with one of the GPUs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path

import torch

from pipeline import storage
from pipeline.console import Say
from pipeline.settings import ConfigError, dump_yaml
from pipeline.signals import StopRequest
from pipeline.storage import locate
from trainer.finetune.config import FinetuneConfig, StudyConfig
from trainer.finetune.examples import TaskDataError
from trainer.finetune.features import TextEncoder, list_texts
from trainer.finetune.result import Result
from trainer.finetune.scores import check_libraries
from trainer.finetune.splits import read_splits
from trainer.finetune.start import finetune, resolve_device
from trainer.finetune.state import read_result
from trainer.finetune.tables import COMPRESSED
from trainer.finetune.tasks import TASKS, Task, find_task

MOST_UNKNOWN = 0.5
"""A task is left out if more of its pieces than this are [UNK] to the model: it is of a language that the model has
not seen."""
_TRIED = 200
"""Examples that are looked at for this."""
_POLL_S = 0.2
LOG_NAME = "log.txt"
CONFIG_NAME = "finetune.yaml"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a study."""

    label: str
    """Its task; if several folders hold files of one task, also the folder's name."""
    setting: str
    """What the grid varies, such as `batch 32, rate 5e-05, 3 epochs`; equal for runs that differ in their seed."""
    config: FinetuneConfig


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one run."""

    run: Run
    result: Result


def find_tasks(config: StudyConfig) -> dict[str, tuple[str, str]]:
    """Return the tasks of a study by label: the task's name and the folder of its files.

    A single task has its files in `data` itself. Raises ConfigError or TaskDataError if a task that is named is not
    found, or none is.
    """
    names = [name.strip() for name in config.task.split(",")]
    if len(names) == 1 and names != ["all"]:
        find_task(names[0], columns=config.columns)
        return {names[0]: (names[0], config.data)}
    for name in names:
        if name != "all" and name not in TASKS:
            raise ConfigError(f"task={config.task}: {name} is no published task; known: all, {', '.join(TASKS)}")
    folders: dict[str, list[str]] = {}
    for file in storage.list_files(locate(config.data)):
        below, _, name = file.name.rpartition("/")
        folders.setdefault(storage.join(config.data, *below.split("/")) if below else config.data, []).append(name)
    found: dict[str, list[str]] = {}
    for folder, files in sorted(folders.items()):
        for name, task in TASKS.items():
            if (names == ["all"] or name in names) and is_present(task, folder=folder, files=files):
                found.setdefault(name, []).append(folder)
    missing = [name for name in names if name != "all" and name not in found]
    if missing or not found:
        raise TaskDataError(
            f"{config.data}: holds no files of {', '.join(missing) or 'any task'}; put them into a folder below it, "
            f"those of GLUE into folders with the tasks' names (CoLA, SST-2)"
        )
    labels = {}
    for name in (name for name in TASKS if name in found):
        for folder in found[name]:
            below = folder.removeprefix(config.data).strip("/").replace("/", "-")
            labels[name if len(found[name]) == 1 else f"{name}-{below}"] = (name, folder)
    return labels


def check_study(config: StudyConfig) -> None:
    """Raise ValueError if a task of a study is unknown or has no files, if a single task has files that cannot be read,
    or if a library of the metrics is missing."""
    check_libraries()
    tasks = find_tasks(config)
    for name, folder in tasks.values() if len(tasks) == 1 else ():
        own = single_config(config.model_copy(update={"task": name, "data": folder}))
        read_splits(find_task(name, columns=config.columns), config=own, say=lambda line: None)


def is_present(task: Task, *, folder: str, files: Sequence[str]) -> bool:
    """Return whether the files named `files` in `folder` hold a task: its own files, not only those it shares."""
    if task.own_folder and _plain(storage.base_name(folder)) != _plain(task.name):
        return False
    own = {pattern for split in ("train", "dev", "all") for pattern in task.files.get(split, ())}
    if not task.own_folder:
        own -= {each for other in TASKS.values() if other.name != task.name for each in chain(*other.files.values())}
        own |= set(task.files.get("train", ())) if task.name == "squad" else set()  # XQuAD trains on SQuAD's questions
    return any(fnmatch(name, pattern + end) for name in files for pattern in own for end in ("", *COMPRESSED))


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def find_obstacles(tasks: Mapping[str, tuple[str, str]], *, config: StudyConfig) -> dict[str, str]:
    """Return why tasks cannot be trained, by label: their files are damaged or too few, or in an unknown language."""
    encoder = TextEncoder(config.model, max_length=512)
    found = {}
    for label, (name, folder) in tasks.items():
        own = config.model_copy(update={"task": name, "data": folder})
        try:
            splits = read_splits(find_task(name, columns=config.columns), config=own, say=lambda line: None)
        except TaskDataError as error:
            found[label] = str(error)
            continue
        texts = [text for example in splits.train[:_TRIED] for text in list_texts(example)]
        share = encoder.unknown_share(texts)
        if share > MOST_UNKNOWN:
            found[label] = f"{share:.0%} of its pieces are [UNK] in the vocabulary of {config.model}"
    return found


def single_config(config: StudyConfig) -> FinetuneConfig:
    """Return the settings of one run without those of a study."""
    study = set(StudyConfig.model_fields) - set(FinetuneConfig.model_fields)
    return FinetuneConfig.model_validate(config.model_dump(exclude=study))


def plan_runs(config: StudyConfig, *, tasks: Mapping[str, tuple[str, str]], grid: bool) -> list[Run]:
    """Return all runs of a study, task by task: every setting with every seed."""
    tree = single_config(config).model_dump()
    given = config.grid if grid else None
    runs = []
    for label, (name, folder) in tasks.items():
        for batch_size in given.batch_sizes if given else (config.batch_size,):
            for rate in given.learning_rates if given else (config.optimizer.learning_rate,):
                for epochs in given.epochs if given else (config.epochs,):
                    for seed in range(config.seed, config.seed + config.seeds):
                        place = f"batch{batch_size}-rate{rate:g}-epochs{epochs:g}"
                        own = {
                            "task": name,
                            "data": folder,
                            "batch_size": batch_size,
                            "epochs": epochs,
                            "seed": seed,
                            "optimizer": {**tree["optimizer"], "learning_rate": rate},
                            "output": storage.join(config.output, label, place, f"seed{seed}"),
                            "keep_model": config.keep_model and "keep_model" in config.model_fields_set,
                        }
                        setting = f"batch {batch_size}, rate {rate:g}, {epochs:g} epochs"
                        runs.append(Run(label, setting, FinetuneConfig.model_validate({**tree, **own})))
    return runs


def run_all(runs: Sequence[Run], *, config: StudyConfig, say: Say, stop: StopRequest) -> list[Finding] | None:
    """Train all runs that are not done; None if `stop` came first. Raises ValueError at the first run that fails; what
    is done stays done."""
    if config.launcher != "none" and (config.side_by_side or 1) > 1:
        raise ConfigError(
            f"side_by_side={config.side_by_side} with launcher={config.launcher}: runs of several workers go one after "
            f"another; leave one of them out"
        )
    alone = config.launcher == "none" and resolve_device(config).device == "cuda"
    gpus = torch.cuda.device_count() if alone else 0
    together = min(config.side_by_side or max(1, gpus), len(runs))
    if together > 1:
        refuse_url(config.output)
        return _run_processes(runs, together=together, gpus=gpus, say=say, stop=stop)
    findings = []
    for number, run in enumerate(runs, 1):
        name = f"{run.label}, {run.setting}, seed {run.config.seed}"
        say(f"[{number} of {len(runs)}] {name}")
        result = finetune(run.config, say=say, stop=stop)
        if result is None:
            return None
        findings.append(Finding(run, result))
    return findings


def refuse_url(output: str) -> None:
    """Raise ConfigError if `output` is a URL, where runs side by side cannot write their logs."""
    if storage.is_url(output):
        raise ConfigError(f"output={output}: runs side by side need a local folder; give one, or side_by_side=1")


def _run_processes(
    runs: Sequence[Run], *, together: int, gpus: int, say: Say, stop: StopRequest
) -> list[Finding] | None:
    """The lines of each run go to log.txt in its folder."""
    waiting = list(runs)
    places = list(range(together))
    running: dict[int, tuple[Run, subprocess.Popen[bytes]]] = {}
    done: list[Finding] = []
    failed: Run | None = None
    stopping = False
    try:
        while running or (waiting and not stop and failed is None):
            while waiting and len(running) < together and not stop and failed is None:
                place = next(each for each in places if each not in running)
                run = waiting.pop(0)
                running[place] = (run, _start(run, gpu=place % gpus if gpus else None))
            for place, (run, process) in list(running.items()):
                if process.poll() is None:
                    continue
                del running[place]
                tree = read_result(locate(run.config.output), config=run.config) if process.returncode == 0 else None
                if tree is not None:
                    done.append(Finding(run, Result.of(tree["result"])))
                    value = done[-1].result.value
                    say(f"[{len(done)} of {len(runs)}] {run.label}, {run.setting}, seed {run.config.seed}: {value:.4f}")
                elif not stop and failed is None:
                    failed = run
            if (stop or failed is not None) and not stopping:
                stopping = True
                for _, process in running.values():
                    process.terminate()  # a run writes its state at SIGTERM
            time.sleep(_POLL_S)
    finally:
        for _, process in running.values():
            process.kill()
            process.wait()
    if failed is not None:
        log = Path(failed.config.output) / LOG_NAME
        raise ValueError(f"{failed.label}, {failed.setting}, seed {failed.config.seed}: {_last_line(log)} (see {log})")
    order = {run.config.output: number for number, run in enumerate(runs)}
    return None if len(done) < len(runs) else sorted(done, key=lambda found: order[found.run.config.output])


def _start(run: Run, *, gpu: int | None) -> subprocess.Popen[bytes]:
    folder = Path(run.config.output)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_NAME).write_text(dump_yaml(run.config), encoding="utf-8")
    environment = dict(os.environ)
    if gpu is not None:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        environment["CUDA_VISIBLE_DEVICES"] = seen[gpu] if gpu < len(seen) and seen[gpu] else str(gpu)
    words = [sys.executable, "-m", "trainer.finetune", "--config", str(folder / CONFIG_NAME)]
    with (folder / LOG_NAME).open("ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "ended without a word")
