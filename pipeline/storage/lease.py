"""The lease on a run directory: one job at a time trains in it.

RUN/lease.json names the holder: host, process and its start, a token, and by its time of change the last heartbeat. A
job whose process is gone from this host is succeeded at once, one on another host after a silence of its time-out,
measured on the waiting job's own clock. Who lost the lease commits nothing more: token and rename are under one lock.
For a run on an object store each function here does what pipeline/storage/lease_store.py says.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from pipeline.signals import Say, StopRequest
from pipeline.storage import lease_store
from pipeline.storage.durable import sync
from pipeline.storage.folders import make_durable_folder
from pipeline.storage.lease_holder import BEATS, Holder, LeaseError, identify, refusal
from pipeline.storage.locations import Location, locate, naming

__all__ = [
    "LEASE_NAME",
    "LOCK_NAME",
    "LeaseError",
    "beat_once",
    "belongs_to_lease",
    "held",
    "hold",
    "refuse_if_alive",
    "release",
    "take",
]

LEASE_NAME = "lease.json"
LOCK_NAME = ".lease.lock"
_PARTIAL = f".{LEASE_NAME}."


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
    folder = locate(folder)
    if isinstance(folder, Path):
        make_durable_folder(folder)
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

    On a store, which has no locks, it is asked right before the block alone (lease_store.check). Without a token
    nothing is asked: for those who work on a run directory of their own.
    """
    folder = locate(folder)
    if token is None:
        yield
        return
    if not isinstance(folder, Path):
        lease_store.check(folder, token=token)
        yield
        return
    with _locked(folder):
        seen = _look(folder)
        if seen is None or seen.holder.token != token:
            whose = "was given up" if seen is None else f"is held by {seen.holder}"
            raise LeaseError(f"this job has lost its lease on {folder}, which {whose}")
        yield


def refuse_if_alive(folder: str | Path) -> None:
    """LeaseError where a process of this host has the lease; writes nothing, waits for nothing."""
    folder = locate(folder)
    if not isinstance(folder, Path):
        lease_store.refuse_if_alive(folder)
        return
    seen = _look(folder)
    if seen is not None and seen.holder.is_gone() is False:
        raise refusal(folder, seen.holder)


def take(
    folder: Location,
    *,
    timeout_s: int,
    say: Say,
    stop: StopRequest,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Holder:
    """Take the lease; what `hold` does first. KeyboardInterrupt where a signal comes while it waits."""
    if not isinstance(folder, Path):
        return lease_store.take(folder, timeout_s=timeout_s, say=say, stop=stop, clock=clock, sleep=sleep)
    mine = identify(timeout_s=timeout_s)
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
            raise refusal(folder, seen.holder)
        wait_s = seen.holder.timeout_s
        say(f"{folder} is held by {seen.holder}: waiting {wait_s} s for a sign of life before taking it over")
        deadline = clock() + wait_s
        while clock() < deadline and not stop:
            sleep(min(1.0, wait_s / BEATS))
            now = _look(folder)
            if now is None or now.holder != seen.holder:
                break
            if now.beat != seen.beat:
                raise refusal(folder, seen.holder)
        if stop:
            raise KeyboardInterrupt
        silent = seen


def beat_once(folder: Location, *, token: str) -> bool:
    """Give a sign of life (a change of the file's time: it needs no space); False where the lease is another's."""
    if not isinstance(folder, Path):
        return lease_store.beat_once(folder, token=token)
    with _locked(folder):
        seen = _look(folder)
        if seen is None or seen.holder.token != token:
            return False
        os.utime(folder / LEASE_NAME)
        return True


def belongs_to_lease(name: str) -> bool:
    """Whether a file of a run directory is of the lease, or of a job that was killed while it took it."""
    return name in (LEASE_NAME, LOCK_NAME) or name.startswith(_PARTIAL)


def release(folder: Location, *, token: str) -> None:
    """Give the lease back, if it is still ours."""
    if not isinstance(folder, Path):
        lease_store.release(folder, token=token)
        return
    with suppress(OSError), _locked(folder):
        seen = _look(folder)
        if seen is not None and seen.holder.token == token:
            (folder / LEASE_NAME).unlink()


def _look(folder: Path) -> _Sighting | None:
    """The lease as it is; None where there is none (or one that a power cut left empty)."""
    try:
        with open(folder / LEASE_NAME, encoding="utf-8") as stream:  # opening asks a network file system anew
            return _Sighting(Holder(**json.load(stream)), os.fstat(stream.fileno()).st_mtime_ns)
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _write(folder: Path, holder: Holder) -> None:
    temporary = folder / f"{_PARTIAL}{holder.token}"
    try:
        with naming(temporary), open(temporary, "w", encoding="utf-8") as stream:
            json.dump(asdict(holder), stream, indent=1)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, folder / LEASE_NAME)
        sync(folder)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time; where the file system has no locks, only the renames themselves are safe."""
    with open(folder / LOCK_NAME, "a", encoding="ascii") as stream:
        with suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield  # closing unlocks
