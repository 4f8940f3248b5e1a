"""Pretrain BERT: `python trainer/run.py --config FILE key.sub=value ...`, also `python -m trainer.run`.

The same command continues an interrupted run, and says so when all is done.
"""

from __future__ import annotations

import os.path
import sys

if not __package__:
    # Run as a script, Python puts trainer/ first on the path. The repository belongs there: it is also what
    # Ray's workers import from, in a submitted job the uploaded copy.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pipeline.console import Say, command, say_at_once
from pipeline.settings import ConfigError, describe, refuse_flags, split_arguments
from pipeline.signals import StopRequest, stop_on_signals
from pipeline.storage import hold
from trainer.checkpoint import list_checkpoints
from trainer.config import TrainerConfig
from trainer.launch import (
    SAMPLE_CONFIG,
    WorkerError,
    check,
    check_fresh,
    dry_run,
    processes,
    read_config,
    run_attempts,
    write_config,
)
from trainer.telemetry import EVALUATIONS_NAME, METRICS_NAME, Evaluation, RunFiles, draw_curve, read_last_lines
from trainer.train import Outcome

REPOSITORY = Path(__file__).resolve().parent.parent
PROGRAM = "trainer/run.py"
HELP = f"""usage: python {PROGRAM} [--config FILE] [--fresh] [--dry-run] [key.sub=value ...]

Pretrains BERT on a data set that pipeline/run.py built. Without --config: {SAMPLE_CONFIG}.
The same command continues an interrupted run from its last checkpoint; with --fresh an output that holds a run is
refused. Ctrl-C or SIGTERM: the step in hand is
finished, a checkpoint written, and the exit status is 130 or 143; a second signal ends the run at once.
--dry-run makes all checks, shows steps, tokens, room, memory and machines, and with --tokens-per-second=N and --price=P
(of one worker, and of its hour) time and price; it starts and writes nothing.
Workers that are lost are started again from the last checkpoint (max_restarts).
Ray: the cluster that RAY_ADDRESS names (set inside a submitted job), otherwise one of its own on this machine.

Settings:
"""


@command(goes_on_from="the last checkpoint")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 done, 2 refused, 1 failed, 128 + n stopped by signal n."""
    try:
        words = split_arguments(sys.argv[1:] if arguments is None else arguments, program=PROGRAM)
        refuse_flags(words.flags, program=PROGRAM, known=["--fresh", *dry_run.FLAGS])
        options = dry_run.read_options(words.flags, program=PROGRAM)
        if words.rest:
            raise ConfigError(f"{PROGRAM}: takes nothing after '--', found {' '.join(words.rest)}")
        if "--help" in words.flags:
            print(HELP + describe(TrainerConfig))
            return 0
        if words.file is None:
            print(f"no --config given: using {REPOSITORY / SAMPLE_CONFIG}", flush=True)
        config = read_config(words, repository=REPOSITORY)
        if "--fresh" in words.flags:
            check_fresh(config)
        if dry_run.FLAG in words.flags:
            checked = check(config)
            for line in (*checked.lines, *dry_run.describe_run(checked.config, options)):
                say_at_once(line)
            return 0
        with stop_on_signals() as stop:
            return train(config, stop=stop, say=say_at_once)
    except WorkerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def train(config: TrainerConfig, *, stop: StopRequest, say: Say) -> int:
    """Check, launch, and tell what came of it; returns the exit status."""
    checked = check(config)
    config = checked.config
    for line in checked.lines:
        say(line)
    if not checked.done:
        outcome = launch(config, stop=stop, say=say)
        if not outcome.finished:
            say(f"stopped at step {outcome.last_step} of {config.max_steps}; the same command goes on from there")
            return 128 + (stop.signal_number or 0)
    show_results(config, say=say, done_before=checked.done)
    return 0


def launch(config: TrainerConfig, *, stop: StopRequest, say: Say) -> Outcome:
    """Run the workers under the configured launcher. Makes the run directory once the machine can hold them.

    LeaseError where another job trains in it.
    """
    lease = partial(hold, config.output, timeout_s=config.lease_timeout_s, say=say, stop=stop)
    if config.launcher == "processes":
        settled = processes.resolve_device(config)
        with lease() as token:
            write_config(config)
            attempt = partial(processes.run_in_processes, settled, stop=stop, say=say, lease_token=token)
            return run_attempts(attempt, config=config, stop=stop, say=say)
    from trainer.launch import elastic, ray_train  # absent where the loop runs without it

    with ray_train.ray_session(config) as settled:
        stop.listen()
        with lease() as token:
            write_config(config)
            each = ray_train.resources_of(settled)
            watch = elastic.GroupWatch(settled, each=each, wishes=elastic.Wishes(each))
            attempt = partial(ray_train.run_on_ray, settled, stop=stop, say=say, lease_token=token, watch=watch)
            return run_attempts(attempt, config=config, stop=stop, say=say)


def show_results(config: TrainerConfig, *, say: Say, done_before: bool) -> None:
    """Draw the curve and say where everything is."""
    files = RunFiles(config.output, working_folder=config.working_folder)
    files.bring([METRICS_NAME, EVALUATIONS_NAME])
    steps = read_last_lines(files.folder / METRICS_NAME)
    evaluations = read_last_lines(files.folder / EVALUATIONS_NAME)
    if done_before:
        say(f"all {config.max_steps} steps are done; nothing to train")
        for line in Evaluation.of(evaluations[-1]).lines() if evaluations else ():
            say(line)
    if steps:
        say(f"loss curve: {files.send_file(draw_curve(files.folder).name)}")
    newest = list_checkpoints(files.run)[-1]
    tracker = "" if config.logging.tracker == "none" else f", {config.logging.tracker}/"
    say(f"run directory: {files.run} (metrics.jsonl{tracker}, config.yaml); newest checkpoint: {newest}")


if __name__ == "__main__":
    sys.exit(main())
