"""Ends the jobs of a cluster before its head ends, so that each leaves a checkpoint: `python -m cluster.head`.

This is the preStop hook of the head's pod. With `-- COMMAND`, it runs the command that starts the head, and ends the
jobs when it receives SIGTERM; `make local-cluster` starts its head in this way. Only jobs whose main process (driver)
runs on this machine are ended, which is where Ray starts drivers by default.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil

from pipeline.console import command, exit_with
from pipeline.signals import stop_on_signals
from pipeline.units import count_of

MARK = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The environment variable that Ray sets in the driver of a submitted job, and that the driver's processes inherit (Ray
2.60, dashboard/modules/job/job_supervisor.py)."""
SHELLS = ("sh", "dash", "bash")
POLL_S = 0.5
REPORT_S = 5.0
"""Seconds that the head stays up after the last job, so that the job's end is read there. KubeRay asks every 3 s
(1.7.0, RayJobDefaultRequeueDuration)."""


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """End the jobs, or run the head and end its jobs at SIGTERM. Return the exit status: the command's, or without a
    command 0, or 1 if a job did not end in time."""
    parser = argparse.ArgumentParser(prog="python -m cluster.head", description=__doc__)
    parser.add_argument("--seconds", type=float, default=90, help="longest wait for the jobs' ends (default: 90)")
    parser.add_argument("--port", type=int, help="port of the head; needed only if this machine has several clusters")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and the command that starts the head")
    options = parser.parse_args(arguments)
    if not options.command:
        return 0 if end_jobs(options.port, seconds=options.seconds) else 1
    child = subprocess.Popen(options.command[1:] if options.command[0] == "--" else options.command)
    with stop_on_signals() as stop:
        while not stop and child.poll() is None:
            time.sleep(POLL_S)
        if child.poll() is None:
            end_jobs(options.port, seconds=options.seconds)
            child.terminate()
    status = child.wait()
    return status if status >= 0 else 128 - status


def end_jobs(port: int | None, *, seconds: float) -> bool:
    """Send SIGTERM to all jobs of the cluster, and wait at most `seconds` until they have ended. Return whether they
    have. A job that starts in this time is ended too.

    Ray's own request to stop a job is not used, because a job that was stopped on request counts as complete. A job
    that ends by SIGTERM has failed, so KubeRay starts it again (`backoffLimit`), and it continues from its checkpoint.
    `port` is the port of the head. If it is None, the jobs of all clusters on this machine are ended.
    """
    deadline = time.monotonic() + seconds
    told: set[psutil.Process] = set()
    while True:
        left = list_job_processes(port)
        parents = {process.pid for process in told}
        fresh = [process for process in left if process not in told and _terminate(process, unless=parents)]
        if fresh:
            print(f"told {count_of(len(fresh), 'process', plural='processes')} of jobs to end", flush=True)
        told.update(left)
        if not left or time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    if left:
        print(f"error: after {seconds:g} s, jobs still run: {_describe(left)}", file=sys.stderr)
    elif told:
        print("all jobs have ended", flush=True)
        time.sleep(min(REPORT_S, max(0.0, deadline - time.monotonic())))
    return not left


def list_job_processes(port: int | None) -> list[psutil.Process]:
    """Return the living processes of submitted jobs on this machine: the drivers and the processes that they started.
    If `port` is given, return only the processes of jobs on the cluster whose head has this port."""
    found = []
    for process in psutil.process_iter():
        try:
            variables = process.environ()
            living = process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):  # the process has ended, or belongs to another user
            continue
        # Ray writes the head's address there, by whichever of its addresses.
        if living and MARK in variables and (port is None or variables.get("RAY_ADDRESS", "").endswith(f":{port}")):
            found.append(process)
    return found


def _terminate(process: psutil.Process, *, unless: set[int]) -> bool:
    """Send SIGTERM to a process, unless its parent is among the process ids `unless`: it was started by a job that is
    already ending. Return whether the signal was sent.

    A shell that waits for the driver gets no signal. If it ended first, Ray would kill the driver at once.
    """
    try:
        if process.ppid() in unless or process.name() in SHELLS:
            return False
        process.send_signal(signal.SIGTERM)
    except psutil.Error:  # the process has ended
        return False
    return True


def _describe(processes: Sequence[psutil.Process]) -> str:
    names = []
    for process in processes:
        try:
            names.append(f"{process.pid} ({' '.join(process.cmdline())[:80]})")
        except psutil.Error:  # the process has just ended
            continue
    return ", ".join(names)


if __name__ == "__main__":
    exit_with(main())
