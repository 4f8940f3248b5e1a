"""The identity of a process: a process id and a start time, because systems reuse ids."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """The identity of a process. The fields together tell it from every other process, on any machine and after a
    restart."""

    host: str
    boot: str
    """The boot id of the host, which changes when the host restarts. It is "" if unknown."""
    pid_namespace: str
    """The PID namespace. Each container has its own namespace. It is "" if unknown."""
    pid: int
    started: int
    """The start time of the process in kernel ticks since boot, or 0 if unknown."""

    def is_gone(self) -> bool | None:
        """Whether the process has ended, or None if it belongs to another machine or container, where this process
        cannot look."""
        if (self.host, self.boot, self.pid_namespace) != this_machine():
            return None
        return _start_of(self.pid) != self.started


def identify() -> Process:
    """Return the identity of this process."""
    return Process(*this_machine(), pid=os.getpid(), started=_start_of(os.getpid()) or 0)


def is_running(pid: int) -> bool:
    """Whether a process with this id runs on this machine. False for a zombie (it has ended but still has its id)."""
    return _start_of(pid) is not None


def this_machine() -> tuple[str, str, str]:
    """Return the host name, the boot id and the PID namespace of this process. The last two are "" if unknown."""
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/pid")
    return socket.gethostname(), boot, namespace


def _start_of(pid: int) -> int | None:
    """Return the start time of a process in kernel ticks since boot (0 if the system does not tell), or None if the
    process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        try:
            with suppress(PermissionError):  # another user's process, so it exists
                os.kill(pid, 0)
        except ProcessLookupError:
            return None
        return 0
    state, *rest = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])
