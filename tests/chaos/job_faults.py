"""The command itself: ended, killed with or without its workers, given twice."""

from __future__ import annotations

import os
import signal
import time

from trainer.telemetry.metrics import read_json_lines

from .findings import Finding, judge
from .runs import Run, Stage


def ask_to_stop(stage: Stage) -> Finding:
    """SIGTERM, as schedulers send before they take a machine away: a checkpoint comes first, no step is done twice."""
    run, broken = stage.make_run("sigterm"), []
    command = run.start()
    run.wait_for_step(12)
    command.process.send_signal(signal.SIGTERM)
    status = command.wait()
    stopped = len(read_json_lines(run.output / "metrics.jsonl"))
    if status != 128 + signal.SIGTERM or run.newest_step() != stopped:
        broken.append(f"status {status}, checkpoint of step {run.newest_step()} after step {stopped}")
    since = time.monotonic()
    run.start()
    happened = f"status {status} with a checkpoint of step {stopped}; the same command went on from there"
    return judge(run, fault="SIGTERM", happened=happened, since=since, repeated=0, broken=broken)


def kill_the_command(stage: Stage) -> Finding:
    """SIGKILL of the command: its workers end too, the lease is taken over at once."""
    run = stage.make_run("kill-the-command")
    command = run.start()
    run.wait_for_step(12)
    command.process.kill()
    command.wait()
    return _resubmit(run, fault="SIGKILL of the command")


def kill_everything(stage: Stage) -> Finding:
    """SIGKILL of all processes at once, as a machine that loses power."""
    run = stage.make_run("kill-everything")
    command = run.start()
    run.wait_for_step(17)
    os.killpg(command.process.pid, signal.SIGKILL)
    run.end()
    command.wait()
    return _resubmit(run, fault="SIGKILL of everything")


def _resubmit(run: Run, *, fault: str) -> Finding:
    since = time.monotonic()
    run.start()
    run.finish()
    broken = [] if run.says(": taking over from .* is gone$") else ["nothing was said of the lease"]
    resumed = [line.text for line in run.lines if line.text.startswith("resumed at step ")]
    happened = (
        f"the same command took the lease over at once and {resumed[-1].split(' of ')[0] if resumed else 'began'}"
    )
    return judge(run, fault=fault, happened=happened, since=since, broken=broken)


def submit_twice(stage: Stage) -> Finding:
    """Two commands at the same moment: one trains, the other is refused."""
    run, broken = stage.make_run("submit-twice"), []
    since = time.monotonic()
    commands = [run.start(), run.start()]
    statuses = sorted(command.wait() for command in commands)
    if statuses != [0, 2] or not run.says("^error: output=.*another command works there"):
        broken.append(f"statuses {statuses}")
    run.commands.sort(key=lambda command: command.process.returncode != 0, reverse=True)
    return judge(
        run,
        fault="two submissions at once",
        happened="one was refused with status 2 and the other's process id; the other trained",
        since=since,
        repeated=0,
        broken=broken,
    )


def submit_again(stage: Stage) -> Finding:
    """A second command while the first one trains."""
    run, broken = stage.make_run("submit-again"), []
    since = time.monotonic()
    first = run.start()
    run.wait_for_step(3)
    worker = run.wait_for_worker(1)
    worker.send_signal(signal.SIGSTOP)  # so that the first is not through before the second has begun
    second = run.start()
    status = second.wait()
    worker.send_signal(signal.SIGCONT)
    if status != 2 or not run.says(f"^error: output=.*another command works there .process {first.process.pid} on"):
        broken.append(f"the second ended with status {status}")
    run.commands.reverse()
    return judge(
        run,
        fault="a second submission while the first trains",
        happened="refused with status 2 and the first one's process id; the first went on undisturbed",
        since=since,
        repeated=0,
        broken=broken,
    )


FAULTS = (ask_to_stop, kill_the_command, kill_everything, submit_twice, submit_again)
