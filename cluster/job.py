"""Runs the command of a RayJob so that KubeRay treats its end rightly: `python -m cluster.job COMMAND ...`.

KubeRay starts every job again that has failed, up to its backoffLimit, and does not see the exit status (1.7.0,
checkBackoffLimitAndUpdateStatusIfNeeded). So a command that was refused (exit status 2) is stopped by Ray's request:
its job ends as STOPPED, which KubeRay does not start again. The output is also kept in a file, which outlives the pods.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from cluster.head import MARK
from trainer.launch import send_token

REFUSED = 2
"""Exit status of our commands for an error that the user can fix."""
STOP_TIMEOUT_S = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return its exit status, or that of its second run if the first was refused."""
    parser = argparse.ArgumentParser(prog="python -m cluster.job", description=__doc__)
    parser.add_argument("--logs", type=Path, help="folder for the file with the output; the file is named by the job")
    parser.add_argument("--dashboard", default="http://127.0.0.1:8265", help="address of Ray's dashboard")
    parser.add_argument(
        "--again-after",
        type=float,
        default=0.0,
        help="seconds after which a refused command is tried once more: the previous job of the same run may still be "
        "writing its checkpoint on a cluster that ends (default: 0, not at all)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    options = parser.parse_args(arguments)
    if not options.command:
        parser.error("give the command to run")
    # Whoever stops the job sends SIGTERM to all its processes. This one waits for the command, which writes a
    # checkpoint. A function, because the command would inherit SIG_IGN.
    terminated = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: terminated.set())
    id = find_job_id()
    log = open_log(options.logs, id)
    status = run(options.command, log=log)
    if status == REFUSED and options.again_after and not terminated.is_set():
        say(f"refused; the command is tried once more in {options.again_after:g} s", log)
        if not wait(terminated, options.again_after):
            status = run(options.command, log=log)
    if status == REFUSED and id is not None and not terminated.is_set():
        say(f"refused; {id} is stopped, so that it does not start again", log)
        stop(options.dashboard, id)
        wait(terminated, STOP_TIMEOUT_S)
    return status


def find_job_id() -> str | None:
    """Return the ID of the job that this process belongs to, or None if it belongs to none."""
    metadata = json.loads(os.environ.get(MARK) or "{}").get("metadata") or {}
    id = metadata.get("job_submission_id")
    return None if id is None else str(id)


def open_log(folder: Path | None, id: str | None) -> IO[bytes] | None:
    """Open the file for the output of job `id` in `folder`, to append to it. Return None if there is no folder, or if
    the file cannot be opened; the job runs without it."""
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return open(folder / f"{id or 'job'}.log", "ab", buffering=0)
    except OSError as error:
        print(f"warning: the output is not kept in a file: {error}", file=sys.stderr, flush=True)
        return None


def say(line: str, log: IO[bytes] | None) -> None:
    """Print a line, and write it to `log`."""
    copy(f"{line}\n".encode(), log)


def run(command: Sequence[str], *, log: IO[bytes] | None) -> int:
    """Run a command, and copy its output (both streams) to stdout and `log`. Return the exit status, which is 128 + n
    if signal n ended the command, and REFUSED if it cannot be started."""
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        say(f"error: {error}", log)
        return REFUSED
    with child:
        assert child.stdout is not None
        while part := os.read(child.stdout.fileno(), 65536):
            copy(part, log)
        status = child.wait()
    return status if status >= 0 else 128 - status


def copy(part: bytes, log: IO[bytes] | None) -> None:
    """Write bytes to stdout and to `log`. An error of `log`, such as a full disk, does not disturb the job."""
    sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()
    if log is not None:
        with contextlib.suppress(OSError):
            log.write(part)


def wait(event: threading.Event, seconds: float) -> bool:
    """Wait at most `seconds` until `event` is set. Return whether it is. A signal handler may set it meanwhile."""
    deadline = time.monotonic() + seconds
    while not event.is_set() and time.monotonic() < deadline:
        time.sleep(0.1)
    return event.is_set()


def stop(dashboard: str, id: str) -> None:
    """Ask Ray to stop the job `id`. If Ray does not answer, say so; then the job fails, and KubeRay starts it again."""
    send_token()
    from ray.exceptions import RayError
    from ray.job_submission import JobSubmissionClient

    try:
        JobSubmissionClient(dashboard).stop_job(id)
    except (OSError, RuntimeError, ValueError, RayError) as error:  # RayError: another token
        print(f"warning: {dashboard} does not stop {id}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
