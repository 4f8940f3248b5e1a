"""Who holds the lease on a run directory, and whether that process still lives."""

from __future__ import annotations

import os
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.storage.locations import Location

BEATS = 10
"""Heartbeats in a time-out."""


class LeaseError(ValueError):
    """Another job has the run directory."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a lease."""

    token: str
    host: str
    boot: str
    """Which start of the host's kernel; empty where the system does not say."""
    pid_namespace: str
    """In which the process id counts: containers have their own."""
    pid: int
    started: int
    """When the process began, in the kernel's ticks since boot: process ids are used again."""
    since: str
    """When the lease was taken; for people."""
    timeout_s: int
    """Silence after which others take over."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"

    def is_gone(self) -> bool | None:
        """Whether its process has ended; None where it runs elsewhere, so that this host cannot tell."""
        if (self.host, self.boot, self.pid_namespace) != _place():
            return None
        return _start_of(self.pid) != self.started


def identify(*, timeout_s: int) -> Holder:
    """This process, with a new token."""
    host, boot, namespace = _place()
    return Holder(
        token=secrets.token_hex(16),
        host=host,
        boot=boot,
        pid_namespace=namespace,
        pid=os.getpid(),
        started=_start_of(os.getpid()) or 0,
        since=time.strftime("%Y-%m-%d %H:%M:%S %z"),
        timeout_s=timeout_s,
    )


def refusal(folder: Location, holder: Holder) -> LeaseError:
    """The error for a job that comes second."""
    return LeaseError(
        f"output={folder}: another job trains in it ({holder}); wait for its end, stop it, or give another output"
    )


def _place() -> tuple[str, str, str]:
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/pid")
    return socket.gethostname(), boot, namespace


def _start_of(pid: int) -> int | None:
    """When a process began, in ticks since boot (0 where the system does not say); None where it has ended."""
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
