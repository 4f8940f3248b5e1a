"""The lease on a run directory: one job at a time trains in it.

RUN/lease.json names the holder: host, process and its start, a token, and by its time of change the last heartbeat. A
job whose process is gone from this host is succeeded at once, one on another host after a silence of its time-out,
measured on the waiting job's own clock. Who lost the lease commits nothing more: token and rename are under one lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from trainer.launch import Say, StopRequest

LEASE_NAME = "lease.json"
LOCK_NAME = ".lease.lock"
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


class _Sighting(NamedTuple):
    holder: Holder
    beat: int
    """Time of the last heartbeat, ns, on the clock of the file system."""


@contextmanager
def hold(folder: str | Path, *, timeout_s: int, say: Say, stop: StopRequest) -> Iterator[str]:
    """Take the lease, keep it alive inside the block, give it back; yields its token. Makes the folder.

    Waits, and says so, for a sign of life from a holder on another host; raises LeaseError where another job lives.
    A lease that is lost on the way turns into a request to stop.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    holder = take(folder, timeout_s=timeout_s, say=say, stop=stop)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(timeout_s / BEATS):
            try:
                if not beat_once(folder, token=holder.token):
                    say(f"the lease on {folder} was taken by another job; this one stops")
                    stop.signal_number = stop.signal_number or signal.SIGTERM
                    return
            except OSError as error:
                say(f"no heartbeat of the lease on {folder}: {error}; another job may take it over")

    thread = threading.Thread(target=beat, name="lease", daemon=True)
    thread.start()
    try:
        yield holder.token
    finally:
        ended.set()
        thread.join()
        release(folder, token=holder.token)


@contextmanager
def held(folder: str | Path, *, token: str | None) -> Iterator[None]:
    """Nobody takes the lease over inside the block. LeaseError where `token` is not (any more) that of the lease.

    Without a token nothing is asked: for those who work on a run directory of their own.
    """
    if token is None:
        yield
        return
    with _locked(Path(folder)):
        seen = _look(Path(folder))
        if seen is None or seen.holder.token != token:
            whose = "was given up" if seen is None else f"is held by {seen.holder}"
            raise LeaseError(f"this job has lost its lease on {folder}, which {whose}")
        yield


def refuse_if_alive(folder: str | Path) -> None:
    """LeaseError where a process of this host has the lease; writes nothing, waits for nothing."""
    seen = _look(Path(folder))
    if seen is not None and seen.holder.is_gone() is False:
        raise _refusal(Path(folder), seen.holder)


def take(
    folder: Path,
    *,
    timeout_s: int,
    say: Say,
    stop: StopRequest,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Holder:
    """Take the lease; what `hold` does first. KeyboardInterrupt where a signal comes while it waits."""
    mine = _myself(timeout_s)
    silent: _Sighting | None = None
    while True:
        with _locked(folder):
            seen = _look(folder)
            gone = seen is None or seen == silent or seen.holder.is_gone()
            if gone:
                _write(folder, mine)
        if gone:
            if seen is not None:
                say(f"taking over {folder} from {seen.holder}, which {'is silent' if seen == silent else 'is gone'}")
            return mine
        assert seen is not None
        if gone is False:
            raise _refusal(folder, seen.holder)
        wait_s = seen.holder.timeout_s
        say(f"{folder} is held by {seen.holder}: waiting {wait_s} s for a sign of life before taking it over")
        deadline = clock() + wait_s
        while clock() < deadline and not stop:
            sleep(min(1.0, wait_s / BEATS))
            now = _look(folder)
            if now is None or now.holder != seen.holder:
                break
            if now.beat != seen.beat:
                raise _refusal(folder, seen.holder)
        if stop:
            raise KeyboardInterrupt
        silent = seen


def beat_once(folder: Path, *, token: str) -> bool:
    """Give a sign of life (a change of the file's time: it needs no space); False where the lease is another's."""
    with _locked(folder):
        seen = _look(folder)
        if seen is None or seen.holder.token != token:
            return False
        os.utime(folder / LEASE_NAME)
        return True


def release(folder: Path, *, token: str) -> None:
    """Give the lease back, if it is still ours."""
    with suppress(OSError), _locked(folder):
        seen = _look(folder)
        if seen is not None and seen.holder.token == token:
            (folder / LEASE_NAME).unlink()


def _refusal(folder: Path, holder: Holder) -> LeaseError:
    return LeaseError(
        f"output={folder}: another job trains in it ({holder}); wait for its end, stop it, or give another output"
    )


def _look(folder: Path) -> _Sighting | None:
    """The lease as it is; None where there is none (or one that a power cut left empty)."""
    try:
        with open(folder / LEASE_NAME, encoding="utf-8") as stream:  # opening asks a network file system anew
            return _Sighting(Holder(**json.load(stream)), os.fstat(stream.fileno()).st_mtime_ns)
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _write(folder: Path, holder: Holder) -> None:
    temporary = folder / f".{LEASE_NAME}.{holder.token}"
    with open(temporary, "w", encoding="utf-8") as stream:
        json.dump(asdict(holder), stream, indent=1)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, folder / LEASE_NAME)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time; where the file system has no locks, only the renames themselves are safe."""
    with open(folder / LOCK_NAME, "a", encoding="ascii") as stream:
        with suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield  # closing unlocks


def _myself(timeout_s: int) -> Holder:
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
