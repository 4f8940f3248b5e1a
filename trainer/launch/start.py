"""Train a checked run: take the lease (the lock on the run directory), run the workers, show the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pipeline.console import Say
from pipeline.signals import StopRequest
from pipeline.storage import hold
from trainer.checkpoint import Checkpoints, find_checkpoints, step_of
from trainer.config import TrainerConfig
from trainer.launch import processes
from trainer.launch.preflight import CheckResult
from trainer.launch.restarts import run_attempts
from trainer.launch.run_directory import write_config
from trainer.telemetry import EVALUATIONS_NAME, METRICS_NAME, Evaluation, RunFiles, draw_curve, read_last_lines
from trainer.train import Outcome


def train(checked: CheckResult, *, stop: StopRequest, say: Say) -> int:
    """Train the run that passed the checks, and show its results. Return the exit status: 0, or 128 + n if signal n
    stopped it.

    If all steps are done already, only the results are shown. `say` shows a line to the user.
    """
    config, checkpoints = checked.config, checked.checkpoints
    for line in checked.lines:
        say(line)
    if not checked.done:
        outcome = launch(config, checkpoints=checkpoints, stop=stop, say=say)
        if not outcome.finished:
            say(f"stopped at step {outcome.last_step} of {config.max_steps}; the same command continues from there")
            return 128 + (stop.signal_number or 0)
        checkpoints = find_checkpoints(config.output)
    show_results(config, checkpoints=checkpoints, say=say, done_before=checked.done)
    return 0


def launch(config: TrainerConfig, *, checkpoints: Checkpoints, stop: StopRequest, say: Say) -> Outcome:
    """Run the workers under the configured launcher, and return their outcome.

    The run directory is made only once it is known that the machine or cluster can hold the workers. `checkpoints`
    lists the checkpoints that the run already has. Raises LeaseError if another job trains in the run directory.
    """
    lease = partial(hold, config.output, timeout_s=config.lease_timeout_s, say=say, stop=stop)
    if config.launcher == "processes":
        resolved = processes.resolve_device(config)
        with lease() as token:
            write_config(config)
            attempt = partial(processes.run_in_processes, resolved, stop=stop, say=say, lease_token=token)
            return run_attempts(attempt, config=config, checkpoints=checkpoints, stop=stop, say=say)
    from trainer.launch import elastic, ray_train  # Ray is not installed everywhere

    with ray_train.ray_session(config) as resolved:
        stop.listen()
        with lease() as token:
            write_config(config)
            per_worker = ray_train.resources_of(resolved)
            watch = elastic.GroupWatch(resolved, per_worker=per_worker, pending=elastic.PendingPlacements(per_worker))
            attempt = partial(ray_train.run_on_ray, resolved, stop=stop, say=say, lease_token=token, watch=watch)
            return run_attempts(attempt, config=config, checkpoints=checkpoints, stop=stop, say=say)


def _describe_last(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the last of `evaluations`, the records of the run's log."""
    try:
        return list(Evaluation.of(evaluations[-1]).lines()) if evaluations else []
    except (TypeError, KeyError):  # a damaged record, or a loss that is not finite
        return [f"{EVALUATIONS_NAME}: a number is missing in the last record, so it is not shown"]


def show_results(config: TrainerConfig, *, checkpoints: Checkpoints, say: Say, done_before: bool) -> None:
    """Draw the loss curve, and say where the run's files are.

    If `done_before`, all steps were done before this command, so the last evaluation is shown again.
    """
    files = RunFiles(config.output, working_folder=config.working_folder)
    files.fetch_logs([METRICS_NAME, EVALUATIONS_NAME])
    steps = read_last_lines(files.folder / METRICS_NAME)
    evaluations = read_last_lines(files.folder / EVALUATIONS_NAME)
    if done_before:
        all_done = step_of(checkpoints.folders[-1]) >= config.max_steps
        what = f"all {config.max_steps} steps are done" if all_done else f"max_hours={config.max_hours} are used"
        say(f"{what}; nothing to train")
        for line in _describe_last(evaluations):
            say(line)
    if steps:
        say(f"loss curve: {files.make_file_durable(draw_curve(files.folder).name)}")
    tracker = "" if config.logging.tracker == "none" else f", {config.logging.tracker}/"
    newest = checkpoints.folders[-1]
    say(f"run directory: {files.run} (metrics.jsonl{tracker}, config.yaml); newest checkpoint: {newest}")
