"""The command: `python -m trainer.finetune --task T --model EXPORT --data DIR --output DIR key=value`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pipeline.console import command, say_at_once
from pipeline.settings import ConfigError, describe, load_settings, refuse_flags, split_arguments
from pipeline.signals import stop_on_signals
from pipeline.storage import expand_path
from trainer.finetune.config import FinetuneConfig
from trainer.finetune.loop import finetune
from trainer.finetune.tasks import TASKS

PROGRAM = "python -m trainer.finetune"
HELP = f"""usage: {PROGRAM} --task TASK --model EXPORT --data DIR --output DIR [--config FILE] [key.sub=value ...]

Trains an exported model on a task, and evaluates it. The last line is JSON: task, metric, value.
Published tasks, in the files that their authors give out (also .gz, .bz2, .xz): {", ".join(TASKS)}.
Tasks of your own: classification, pair, regression, tagging, qa, choice, over train, dev and test files named
.csv, .tsv, .jsonl, .json or .parquet, with columns as `columns` names them.
The same command goes on where it was stopped, after a whole epoch.

Settings:
"""
_KEYS = ("task", "model", "data", "output")


@command(goes_on_from="the last whole epoch")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 done, 2 refused, 128 + n stopped by signal n."""
    words = split_arguments(sys.argv[1:] if arguments is None else arguments, program=PROGRAM, keys=_KEYS)
    refuse_flags(words.flags, program=PROGRAM, known=[f"--{key}=" for key in _KEYS])
    if words.rest:
        raise ConfigError(f"{PROGRAM}: takes nothing after '--', found {' '.join(words.rest)}")
    if "--help" in words.flags:
        print(HELP + describe(FinetuneConfig))
        return 0
    config = load_settings(FinetuneConfig, file=words.file, overrides=words.overrides)
    paths = {key: expand_path(getattr(config, key), key=key) for key in ("model", "data", "output")}
    with stop_on_signals() as stop:
        result = finetune(config.model_copy(update=paths), say=say_at_once, stop=stop)
    if result is None:
        assert stop.signal_number is not None
        say_at_once("stopped; the same command goes on from here")
        return 128 + stop.signal_number
    print(result.line(), flush=True)
    return 0
