"""Process identity: a process id and its start time, since ids are reused."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """Identity of a process on any machine."""

    host: str
    boot: str
    """Boot id of the host; empty if unknown."""
    pid_namespace: str
    """PID namespace: containers have their own."""
    pid: int
    started: int
    """Start time in kernel ticks since boot."""

    def is_gone(self) -> bool | None:
        """Whether the process has ended; None if it belongs to another machine, so that this host cannot tell."""
        if (self.host, self.boot, self.pid_namespace) != this_machine():
            return None
        return _start_of(self.pid) != self.started


def identify() -> Process:
    """This process."""
    return Process(*this_machine(), pid=os.getpid(), started=_start_of(os.getpid()) or 0)


def is_running(pid: int) -> bool:
    """Whether a process with this id runs on this machine; a zombie does not count."""
    return _start_of(pid) is not None


def this_machine() -> tuple[str, str, str]:
    """Host name, boot id and PID namespace of this machine."""
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/pid")
    return socket.gethostname(), boot, namespace


def _start_of(pid: int) -> int | None:
    """Start time in ticks since boot (0 if the system does not tell); None if the process has ended."""
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
