"""The command: `python -m trainer.finetune --task T --model EXPORT --data DIR --output DIR key=value`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from pipeline.console import command, say_at_once
from pipeline.settings import ConfigError, describe, load_settings, refuse_flags, split_arguments
from pipeline.signals import StopRequest
from pipeline.storage import expand_path, locate
from trainer.finetune.config import StudyConfig
from trainer.finetune.report import choose_rows, make_rows, write_report
from trainer.finetune.scores import check_libraries
from trainer.finetune.start import finetune
from trainer.finetune.study import find_obstacles, find_tasks, plan_runs, run_all, single_config
from trainer.finetune.tasks import TASKS
from trainer.launch import run_to_the_end

PROGRAM = "python -m trainer.finetune"
HELP = f"""usage: {PROGRAM} --task TASK --model EXPORT --data DIR --output DIR [--grid] [--config FILE]
                                 [key.sub=value ...]

Trains an exported model on a task and evaluates it. The last line is JSON: task, metric, value.
Published tasks, in the files that their authors give out (also .gz, .bz2, .xz): {", ".join(TASKS)}.
Tasks of your own: classification, pair, regression, tagging, qa, choice, over train, dev and test files named
.csv, .tsv, .jsonl, .json or .parquet, with the columns that `columns` names.
--grid tries batch sizes, learning rates and epochs, each with each; seeds=5 runs each setting five times. Several tasks
(--task sst2,rte or --task all) are looked for in DIR and below. All of these write report.md, report.json and
scores.png to OUTPUT, beside the runs.
The same command continues where it was stopped.

Settings:
"""
_KEYS = ("task", "model", "data", "output")


@command(goes_on_from="the last whole epoch")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0 done, 1 a worker was lost, 2 refused, 128 + n stopped by signal n."""
    words = split_arguments(sys.argv[1:] if arguments is None else arguments, program=PROGRAM, keys=_KEYS)
    refuse_flags(words.flags, program=PROGRAM, known=[*(f"--{key}=" for key in _KEYS), "--grid"])
    if words.rest:
        raise ConfigError(f"{PROGRAM}: takes nothing after '--', found {' '.join(words.rest)}")
    if "--help" in words.flags:
        print(HELP + describe(StudyConfig))
        return 0
    config = load_settings(StudyConfig, file=words.file, overrides=words.overrides)
    config = config.model_copy(
        update={key: expand_path(getattr(config, key), key=key) for key in ("model", "data", "output")}
    )
    grid = "--grid" in words.flags

    def work(stop: StopRequest) -> str | None:
        if grid or config.seeds > 1 or config.task == "all" or "," in config.task:
            return study(config, grid=grid, stop=stop)
        result = finetune(single_config(config), say=say_at_once, stop=stop)
        return None if result is None else result.line()

    return run_to_the_end(work)


def study(config: StudyConfig, *, grid: bool, stop: StopRequest) -> str | None:
    """Train and report all runs of a study; return its last line, or None if `stop` came first."""
    check_libraries()
    tasks = find_tasks(config)
    obstacles = find_obstacles(tasks, config=config) if len(tasks) > 1 else {}
    left_out = [f"{label}: {reason}" for label, reason in obstacles.items()]
    for line in left_out:
        say_at_once(f"left out: {line}")
    tasks = {label: place for label, place in tasks.items() if label not in obstacles}
    findings = run_all(plan_runs(config, tasks=tasks, grid=grid), config=config, say=say_at_once, stop=stop)
    if findings is None:
        return None
    rows = make_rows(findings)
    say_at_once(write_report(locate(config.output), rows=rows, model=config.model, left_out=left_out))
    found = [
        {"task": row.label, "metric": row.metric, "value": row.value, "best": row.best, "setting": row.setting}
        for row in choose_rows(rows)
    ]
    return json.dumps(found[0] if len(found) == 1 else {"tasks": found}, allow_nan=False)
