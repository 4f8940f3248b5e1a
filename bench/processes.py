"""Runs a command and watches its process tree: CPU seconds, wall seconds, and the highest memory of each process.

A process's peak is the kernel's own high-water mark, read until it ends; what it grows in its last WATCH_S is missed.
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
    """What a command took, all its processes together; memory is resident memory in bytes."""

    cpu_s: float
    wall_s: float
    main_bytes: int
    """Highest of the process that was started."""
    worker_bytes: int
    """Highest of any process below it; 0 where there is none."""
    tree_bytes: int
    """Highest sum over the tree at one time."""
    workers: int
    """Processes below it."""

    @property
    def highest_bytes(self) -> int:
        """Highest of any process."""
        return max(self.main_bytes, self.worker_bytes)


def watch(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
    watch_s: float = WATCH_S,
) -> Cost:
    """Run a command to its end. Its last words are in the SystemExit where it fails."""
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
        cpu_s=max(waited, sum(cpu_s.values())),  # what nobody waited for is in the samples alone
        wall_s=time.monotonic() - started,
        main_bytes=main,
        worker_bytes=max(peaks.values(), default=0),
        tree_bytes=tree,
        workers=len(peaks),
    )


def _follow(
    root: psutil.Process, *, process: subprocess.Popen[bytes], watch_s: float
) -> tuple[dict[int, int], dict[int, float], int]:
    """Peak memory and CPU seconds of every process seen, and the highest sum of memory."""
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
    """The high-water mark of a process's resident memory; 0 where the system has no /proc."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 0


def reset_peak() -> None:
    """Let this process's high-water mark begin again at what is resident now (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def describe_machine() -> str:
    """Processor and number of cores that this process may use."""
    name = os.uname().machine
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {len(os.sched_getaffinity(0))} cores"
