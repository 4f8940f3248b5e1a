"""Whether a process still lives: by its id and the moment it began, since ids are used again."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A process of any machine, as others can know it."""

    host: str
    boot: str
    """Which start of the host's kernel; empty if the system does not say."""
    pid_namespace: str
    """In which the process id counts: containers have their own."""
    pid: int
    started: int
    """When the process began, in the kernel's ticks since boot."""

    def is_gone(self) -> bool | None:
        """Whether it has ended; None if it runs elsewhere, so that this host cannot tell."""
        if (self.host, self.boot, self.pid_namespace) != this_machine():
            return None
        return _start_of(self.pid) != self.started


def identify() -> Process:
    """This process."""
    return Process(*this_machine(), pid=os.getpid(), started=_start_of(os.getpid()) or 0)


def is_running(pid: int) -> bool:
    """Whether a process of this machine has that id; one that has ended but is not yet reaped (a zombie) does not
    run."""
    return _start_of(pid) is not None


def this_machine() -> tuple[str, str, str]:
    """Host, start of its kernel, and the space in which process ids count."""
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/pid")
    return socket.gethostname(), boot, namespace


def _start_of(pid: int) -> int | None:
    """When a process began, in ticks since boot (0 if the system does not say); None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            return 0
        return 0
    state, *rest = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])
