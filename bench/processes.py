"""Runs a command and measures its processes: CPU seconds, wall seconds, and the highest memory of each process.

The highest memory of a process is read from the kernel, which records it, every WATCH_S seconds. What a process
allocates after the last reading is missed.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
WATCH_S = 0.05


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a command over all its processes. Memory is resident memory in bytes."""

    cpu_s: float
    wall_s: float
    main_bytes: int
    """The highest memory of the process that was started."""
    worker_bytes: int
    """The highest memory of any child process, or 0 if there is no child process."""
    tree_bytes: int
    """The highest sum of the memory of all processes at one time."""
    workers: int
    """How many child processes there were, with their own children."""

    @property
    def highest_bytes(self) -> int:
        """The highest memory of any process, in bytes."""
        return max(self.main_bytes, self.worker_bytes)


def watch(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
    watch_s: float = WATCH_S,
) -> Cost:
    """Run a command to its end in the folder `folder`, and return its cost.

    `environment` is added to this process's environment. `watch_s` is the time between two measurements, in seconds.
    Raises SystemExit with the end of the command's standard error if the command fails.
    """
    started, before = time.monotonic(), os.times()
    with tempfile.TemporaryFile("w+", errors="replace") as words:  # a pipe that nobody reads would fill
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=words,
            cwd=folder,
            env=None if environment is None else {**os.environ, **environment},
        )
        peaks, cpu_s, tree = _follow(psutil.Process(process.pid), process=process, watch_s=watch_s)
        if process.returncode:
            words.seek(0)
            said = words.read()[-2000:]
            raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}:\n{said}")
    after = os.times()
    waited = after.children_user + after.children_system - before.children_user - before.children_system
    main = peaks.pop(process.pid, 0)
    return Cost(
        cpu_s=max(waited, sum(cpu_s.values())),  # only the samples have processes that nobody waited for
        wall_s=time.monotonic() - started,
        main_bytes=main,
        worker_bytes=max(peaks.values(), default=0),
        tree_bytes=tree,
        workers=len(peaks),
    )


def _follow(
    root: psutil.Process, *, process: subprocess.Popen[bytes], watch_s: float
) -> tuple[dict[int, int], dict[int, float], int]:
    """Measure a process and all processes below it, every `watch_s` seconds until it ends.

    Returns (highest memory of each process in bytes by process id, CPU seconds of each process by process id, highest
    sum of the memory of all processes at one time).
    """
    peaks: dict[int, int] = {}
    cpu_s: dict[int, float] = {}
    tree = 0
    while process.poll() is None:
        now = 0
        with suppress(psutil.NoSuchProcess):
            for each in [root, *root.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):  # it has just ended
                    resident = each.memory_info().rss
                    used = each.cpu_times()
                    now += resident
                    peaks[each.pid] = max(peaks.get(each.pid, 0), resident, peak_bytes(each.pid))
                    cpu_s[each.pid] = used.user + used.system
        tree = max(tree, now)
        time.sleep(watch_s)
    return peaks, cpu_s, tree


def peak_bytes(process: int | str = "self") -> int:
    """Return the highest resident memory that a process has had, in bytes, or 0 if the system has no /proc."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 0


def reset_peak() -> None:
    """Forget the highest memory of this process, so that peak_bytes counts from now on (Linux only)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def describe_machine() -> str:
    """Return the processor's name and the number of cores that this process may use."""
    name = os.uname().machine
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {len(os.sched_getaffinity(0))} cores"
