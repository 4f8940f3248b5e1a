"""The command: `python -m trainer.ablate --config LADDER --tasks DIR --output DIR key=value`."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.console import command, say_at_once
from pipeline.dataset import read_manifest
from pipeline.settings import ConfigError, describe, load_settings, refuse_flags, split_arguments, to_tree, validate
from pipeline.signals import StopRequest
from pipeline.storage import expand_path, locate
from trainer.ablate.config import AblationConfig, Rung, merge
from trainer.ablate.report import Row, TaskScore, write_report
from trainer.config import TrainerConfig, read_run_config
from trainer.data import open_phases, resolve_phases
from trainer.export import export, read_export_mark
from trainer.finetune import JSON_NAME, StudyConfig, check_study, study
from trainer.launch import check, resolve_paths, run_to_the_end, train
from trainer.telemetry import EVALUATIONS_NAME, read_last_lines

PROGRAM = "python -m trainer.ablate"
_MOST_STEPS = 1_000_000
"""Upper limit of a run that ends by time."""
HELP = f"""usage: {PROGRAM} --config LADDER --tasks DIR --output DIR [key.sub=value ...]

Pretrains each model of a ladder (such as trainer/configs/ablations/sample.yaml) on one budget, exports it, fine-tunes
it on the tasks whose files are in DIR or below (a single task: in DIR itself), and writes report.md and report.json to
OUTPUT. The last line is JSON.
Losses are compared only between models with the same objective and data set. The same command continues where it was
stopped; what is finished is not done again.

Settings:
"""


@command(goes_on_from="the last checkpoint")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0 done, 1 a worker was lost, 2 refused, 128 + n stopped by signal n."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    given = [re.sub(r"^--tasks(?=$|=)", "--data", word) for word in given]
    words = split_arguments(given, program=PROGRAM, keys=("data", "output"))
    refuse_flags(words.flags, program=PROGRAM, known=["--data=", "--output="])
    if words.rest:
        raise ConfigError(f"{PROGRAM}: takes nothing after '--', found {' '.join(words.rest)}")
    if "--help" in words.flags:
        print(HELP + describe(AblationConfig))
        return 0
    config = load_settings(AblationConfig, file=words.file, overrides=words.overrides)
    output = os.path.abspath(expand_path(config.output, key="output", local_only=True))
    config = config.model_copy(update={"data": expand_path(config.data, key="data"), "output": output})
    check_ladder(config)

    def work(stop: StopRequest) -> str | None:
        rows = run_ladder(config, stop=stop)
        if rows is None:
            return None
        say_at_once(write_report(locate(config.output), rows=rows))
        return json.dumps({"ladder": [row.record() for row in rows]}, allow_nan=False)

    return run_to_the_end(work)


def check_ladder(config: AblationConfig) -> None:
    """Check all rungs before the first hour is spent, and write nothing. Raises ValueError that names what is wrong."""
    for name, rung in config.chosen:
        source = rung.weights_of or name
        study, pretraining = plan_study(config, name=name), plan_pretraining(config, name=source)
        check_lengths(study, pretraining=pretraining)
        refuse_other_budget(pretraining, model=locate_model(config, name=source))
        try:
            check(pretraining)
        except ValueError as error:
            raise ConfigError(f"ladder.{source}: {error}") from error
    check_study(plan_study(config, name=config.chosen[0][0]))  # all rungs have the same tasks


def locate_model(config: AblationConfig, *, name: str) -> str:
    """Return the folder of a rung's exported model."""
    return storage.join(config.output, name, "model")


def refuse_other_budget(pretraining: TrainerConfig, *, model: str) -> None:
    """Raise ConfigError if `model` was exported after a pretraining of another length, whose scores would stand beside
    the losses of this one."""
    saved = read_run_config(locate(pretraining.output))
    if saved is None or read_export_mark(locate(model)) is None:
        return
    for key in ("max_steps", "max_hours"):
        before, now = getattr(saved, key), getattr(pretraining, key)
        if before != now:
            raise ConfigError(
                f"budget: gives {key}={now}, but {model} was pretrained with {key}={before}; give another output, or "
                f"the budget from before"
            )


def run_ladder(config: AblationConfig, *, stop: StopRequest) -> list[Row] | None:
    """Run what is left of the ladder, and return a row for each rung; None if `stop` came first."""
    rows = []
    for number, (name, rung) in enumerate(config.chosen, 1):
        say_at_once(f"[{number} of {len(config.chosen)}] {name}")
        source = rung.weights_of or name
        run, pretraining = storage.join(config.output, source, "pretrain"), plan_pretraining(config, name=source)
        if train(check(pretraining), stop=stop, say=say_at_once) != 0:
            return None
        model = locate_model(config, name=source)
        if read_export_mark(locate(model)) is None:
            export(run, out=model)
        if study(plan_study(config, name=name), grid=False, stop=stop) is None:
            return None
        rows.append(read_row(config, name=name, rung=rung, pretraining=pretraining))
    return rows


def plan_pretraining(config: AblationConfig, *, name: str) -> TrainerConfig:
    """Return the settings of a rung's pretraining. Raises ConfigError that names the rung."""
    tree = merge(config.base, config.ladder[name].pretrain)
    tree["output"] = storage.join(config.output, name, "pretrain")
    if "data" not in tree:
        raise ConfigError("base.data is missing: give the data set to pretrain on")
    budget, origin = config.budget, f"ladder.{name}.pretrain over base"
    steps = _MOST_STEPS if budget.steps is None else budget.steps
    hours = None if budget.minutes is None else budget.minutes / 60
    planned = validate(TrainerConfig, {**tree, "max_steps": steps, "max_hours": hours}, origin=origin)
    planned = resolve_paths(planned, base_of=lambda key: Path.cwd())
    if budget.tokens is None:
        return planned
    (opened,) = open_phases(resolve_phases(planned), manifests=[read_manifest(planned.data)])
    steps = math.ceil(budget.tokens / opened.shape.tokens_mean)
    return validate(TrainerConfig, {**to_tree(planned), "max_steps": steps}, origin=origin)


def plan_study(config: AblationConfig, *, name: str) -> StudyConfig:
    """Return the settings of a rung's fine-tunings. Raises ConfigError that names the rung."""
    rung = config.ladder[name]
    own = {
        "task": ",".join(config.tasks),
        "model": locate_model(config, name=rung.weights_of or name),
        "data": config.data,
        "output": storage.join(config.output, name, "tasks"),
    }
    tree = merge(merge(config.finetune, rung.finetune), own)
    return validate(StudyConfig, tree, origin=f"ladder.{name}.finetune over finetune")


def check_lengths(study: StudyConfig, *, pretraining: TrainerConfig) -> None:
    """Raise ConfigError if `study` has rows longer than those of the pretraining, whose export takes no longer ones."""
    paths = [phase.config.data for phase in resolve_phases(pretraining)]
    longest = max(read_manifest(path).max_seq_length for path in paths)
    if study.max_length is not None and study.max_length > longest:
        raise ConfigError(
            f"finetune.max_length={study.max_length}: the rows of {', '.join(dict.fromkeys(paths))} have at most "
            f"{longest} tokens, and no model of the ladder takes longer ones; lower it, or build the data set with "
            f"max_seq_length={study.max_length}"
        )


def read_row(config: AblationConfig, *, name: str, rung: Rung, pretraining: TrainerConfig) -> Row:
    """Return what a finished rung found."""
    run = locate(pretraining.output)
    mark = read_export_mark(locate(locate_model(config, name=rung.weights_of or name)))
    assert mark is not None
    _, steps = mark
    held_out = (read_last_lines(locate(run, EVALUATIONS_NAME), through=steps) or [{}])[-1]
    found: list[dict[str, Any]] = json.loads(
        storage.read_bytes(locate(config.output, name, "tasks", JSON_NAME)),
    )["rows"]
    scores = [TaskScore(each["label"], each["metric"], tuple(each["values"]), each["majority"]) for each in found]
    return Row(
        name=name,
        objective=pretraining.model.objective,
        data_hash=str(held_out.get("data_hash", "")),
        weights_of=rung.weights_of,
        steps=steps,
        loss=held_out.get("mlm_loss"),
        unigram=held_out.get("unigram_loss"),
        nsp_accuracy=held_out.get("nsp_accuracy"),
        scores=tuple(scores),
    )
