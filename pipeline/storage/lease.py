"""The lease on an output: one command at a time builds a data set, or trains, in a folder or on a store.

FOLDER/lease/NUMBER-TOKEN.json is the claim of one command. Only that command writes it, first as a candidate and then
as the holder of the lease, and renews it with every heartbeat. A candidate writes its claim and then lists all claims.
It becomes the holder if the listing shows no other claim whose command may be alive. Because a listing shows every
earlier write, at least one of two concurrent candidates sees the other. Numbers increase from holder to holder, and a
holder's claim fences (makes invalid) all claims with smaller numbers.

Invariant: at most one command has the lease and may commit. If the holder's process is gone from this machine, the next
command takes over at once. If the holder runs elsewhere (or in another container), the next command takes over after
the holder sent no heartbeat for its time-out. The waiting command measures this on its own clock: clocks of other
machines and times of a store are never trusted. A command that lost the lease notices at its next heartbeat, and `held`
refuses it. The protocol needs no locks, renames or conditional writes. In a folder a lock file (flock) still guards
each step, so nobody can take over inside `held`. On a store, or a file system without locks, `held` checks only right
before its block: a command that freezes in between can write once more.

Cost: in a folder a heartbeat changes a file's time (no space needed). On a store a heartbeat is three small requests,
which makes 43,000 a day at a time-out of 60 s. Earlier releases used RUN/lease.json, a lock on a build's folder, or
OUT/_tmp/holders on a store. This release ignores these, so end every command of an earlier release before this release
works on the same output. Files in OUT/_tmp are removed with that folder; RUN/lease.json stays and does no harm.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path

from pipeline.errors import PassingError
from pipeline.processes import identify as identify_process
from pipeline.signals import StopRequest
from pipeline.storage import files
from pipeline.storage.claims import Claim, Holder, read_claim
from pipeline.storage.clients import StrPath
from pipeline.storage.durable import make_durable_folder, naming
from pipeline.storage.files import Location, locate

LEASE_FOLDER = "lease"
BEATS = 10
"""Number of heartbeats within one time-out."""
CONTEST_S = 0.2
"""Seconds between two checks of the claims while candidates compete."""
CLAIM_BYTES = 1024
"""Size of every claim file. Because it is fixed, a reader during a rewrite gets the old or the new claim, never a
truncated one."""
_MOST_CLAIM_BYTES = 1 << 16  # a claim has 300
_LOCK = ".lock"


class LeaseError(PassingError):
    """Another command uses the output, or has taken over the lease on it."""


@contextmanager
def hold(
    folder: StrPath,
    *,
    timeout_s: int,
    say: Callable[[str], object],
    stop: StopRequest | None = None,
    note_loss: Callable[[], object] = lambda: None,
    name: str = "",
) -> Iterator[str]:
    """Take the lease on `folder` (only its holder may write there), keep it alive inside the block and give it back.
    Yield the lease's token, a text that `held` checks. The folder is created if it is missing.

    If a command on another machine, or in another container, has the lease, call `say` with a message and wait for a
    sign of life from that command. Raises LeaseError if a command that has the lease is alive. `name` is the output's
    name in messages (default: output=FOLDER). If the lease is lost inside the block, a separate thread reports the loss
    with `say`, sets `stop` and calls `note_loss`.
    """
    folder, name = locate(folder), _name(folder, name)
    holder = take(folder, timeout_s=timeout_s, say=say, stop=stop, name=name)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(timeout_s / BEATS):
            try:
                if beat_once(folder, token=holder.token):
                    continue
                gone = "the folder was deleted or moved"
                why = gone if _is_gone(folder) else "another command took over the lease"
                say(f"{name}: {why}; this one stops")
                if stop is not None:
                    stop.signal_number = stop.signal_number or signal.SIGTERM
                note_loss()
                return
            except OSError as error:
                say(f"{name}: cannot renew the lease ({error}); another command may take it over")

    thread = threading.Thread(target=beat, name="lease", daemon=True)
    thread.start()
    try:
        yield holder.token
    finally:
        ended.set()
        thread.join()
        release(folder, token=holder.token)


@contextmanager
def held(folder: StrPath, *, token: str | None, name: str = "") -> Iterator[None]:
    """Run the block only if `token` has the lease on `folder`, and raise LeaseError otherwise. In a local folder,
    nobody can take over the lease while the block runs. On a store, the token is checked only once, right before the
    block.

    If `token` is None, nothing is checked; this is for callers whose folder nobody else uses. `name` is the output's
    name in messages.
    """
    if token is None:
        yield
        return
    folder, name = locate(folder), _name(folder, name)
    with _locked(folder):
        claims = _look(folder)
        if not any(claim.holder.token == token and claim.holds for claim in _reigning(claims)):
            others = [claim for claim in claims if claim.holder.token != token]
            whose = f"is held by {others[-1].holder}" if others else "was given up, or the folder was deleted or moved"
            raise LeaseError(
                f"{name}: this command lost its lease while it was frozen or disconnected; it {whose}; wait "
                "until no other command works there, then run this one again"
            )
        yield


def refuse_if_alive(folder: StrPath) -> None:
    """Raise LeaseError if a live process of this machine has the lease on `folder`. This function only looks: it writes
    nothing and does not wait."""
    folder = locate(folder)
    for claim in _reigning(_look(folder)):
        if claim.holds and claim.holder.is_gone() is False:
            raise _refusal(_name(folder, ""), claim.holder)


def take(
    folder: StrPath,
    *,
    timeout_s: int,
    say: Callable[[str], object],
    stop: StopRequest | None = None,
    name: str = "",
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Holder:
    """Take the lease on `folder`, and return this process as the lease's holder. The function `hold` begins with this
    step. Raises LeaseError if another command has the lease and is alive, and KeyboardInterrupt if `stop` receives a
    signal during the wait for that command."""
    folder, name = locate(folder), _name(folder, name)
    mine = identify(timeout_s=timeout_s)
    silent: set[Claim] = set()
    while True:
        with _locked(folder, make=True):
            claims = _look(folder)
            living = _living(claims, silent=silent)
            number = 1 + max((claim.number for claim in claims), default=0)
            claim = Claim(number=number, beat=0, holds=False, holder=mine)
            taken = not living and _contend(folder, claim, silent=silent, clock=clock, sleep=sleep)
            for dead in claims if taken else ():
                say(f"{name}: taking over from {dead.holder}, which is {'silent' if dead in silent else 'gone'}")
                files.delete(_path(folder, dead))
        if taken:
            return mine
        if living:
            silent |= _watch(folder, living, silent=silent, say=say, stop=stop, name=name, clock=clock, sleep=sleep)


def _is_gone(folder: Location) -> bool:
    """Whether a local folder, whose lease this process took, was deleted or moved since."""
    return isinstance(folder, Path) and not (folder / LEASE_FOLDER).exists()


def beat_once(folder: StrPath, *, token: str) -> bool:
    """Send a heartbeat: change the claim of `token` (the file that holds the lease), so that others see a sign of life.
    Return True, or False if another command has taken over the lease."""
    folder = locate(folder)
    with _locked(folder):
        mine = next((claim for claim in _reigning(_look(folder)) if claim.holder.token == token), None)
        if mine is None:
            return False
        if isinstance(folder, Path):
            os.utime(_path(folder, mine))
        else:
            _write(folder, replace(mine, beat=mine.beat + 1))
        return True


def release(folder: StrPath, *, token: str) -> None:
    """Give the lease back: delete the claim of `token` (the file that holds the lease). In a local folder, also remove
    FOLDER/lease if it has no other claims."""
    folder = locate(folder)
    with suppress(OSError), _locked(folder):
        claims = _look(folder)
        for claim in claims:
            if claim.holder.token == token:
                files.delete(_path(folder, claim))
        if isinstance(folder, Path) and all(claim.holder.token == token for claim in claims):
            (folder / LEASE_FOLDER / _LOCK).unlink()
            (folder / LEASE_FOLDER).rmdir()


def identify(*, timeout_s: int) -> Holder:
    """Return this process as a Holder with a new token. Other commands may take over its lease if it sends no heartbeat
    for `timeout_s` seconds."""
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    return Holder(**asdict(identify_process()), token=secrets.token_hex(16), since=since, timeout_s=timeout_s)


def _name(folder: Location, name: str) -> str:
    return name or f"output={folder}"


def _refusal(name: str, holder: Holder) -> LeaseError:
    return LeaseError(
        f"{name}: another command works there ({holder}); wait until it ends, stop it, or give another output"
    )


def _watch(
    folder: Location,
    living: list[Claim],
    *,
    silent: set[Claim],
    say: Callable[[str], object],
    stop: StopRequest | None,
    name: str,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> set[Claim]:
    """Watch the claims in `folder` (the files of commands that have the lease or want it). If they change, return an
    empty set.

    `living` has the claims whose commands may be alive. If nothing changes for the longest time-out of these claims,
    their commands are silent, and `living` is returned as a set. Claims in `silent` were found silent before and are
    ignored. Raises LeaseError if the command that has the lease proves to be alive.
    """
    holding = next((claim for claim in living if claim.holds), None)
    if holding is not None and holding.holder.is_gone() is False:
        raise _refusal(name, holding.holder)
    wait_s = max(claim.holder.timeout_s for claim in living)
    if holding is not None:
        say(f"{name}: held by {holding.holder}; waiting {wait_s} s for a sign of life before taking it over")
    deadline = clock() + wait_s
    while clock() < deadline and not stop:
        sleep(CONTEST_S if holding is None else min(1.0, wait_s / BEATS))
        now = _living(_look(folder), silent=silent)
        if now == living:
            continue
        if holding is not None and any(c.holder == holding.holder and c.beat != holding.beat for c in now):
            raise _refusal(name, holding.holder)
        return set()
    if stop:
        stop.interrupt()
    return set(living)


def _contend(
    folder: Location, claim: Claim, *, silent: set[Claim], clock: Callable[[], float], sleep: Callable[[float], None]
) -> bool:
    """Write `claim` (the file that asks for the lease), try to take the lease, and return whether it was taken.
    Withdraw `claim` and return False in three cases. Another command has the lease, or another command that asks for it
    has a smaller token, or other commands still ask for it after the time-out. The claims in `silent` are ignored."""
    taken = False
    try:
        _write(folder, claim)
        deadline = clock() + claim.holder.timeout_s
        while True:
            others = _living(_look(folder), silent=silent)
            rivals = [other for other in others if other.holder.token != claim.holder.token]
            if not rivals:
                _write(folder, replace(claim, holds=True))
                taken = True
                return True
            yields = any(other.holds or other.holder.token < claim.holder.token for other in rivals)
            if yields or clock() > deadline:
                return False
            sleep(CONTEST_S)
    finally:
        if not taken:
            with suppress(OSError):
                files.delete(_path(folder, claim))


def _living(claims: Iterable[Claim], *, silent: set[Claim]) -> list[Claim]:
    """Return the claims whose commands may be alive. A claim is the file of a command that has the lease or wants it.

    A claim is left out in three cases: a later holder of the lease has made the claim invalid, the claim is in
    `silent`, or the claim's process is known to be gone.
    """
    return [claim for claim in _reigning(claims) if claim not in silent and not claim.holder.is_gone()]


def _reigning(claims: Iterable[Claim]) -> list[Claim]:
    """Return the valid claims. A claim is the numbered file of a command that has the lease or wants it. If a command
    has got the lease, all claims with smaller numbers are invalid."""
    claims = list(claims)
    reign = max((claim.number for claim in claims if claim.holds), default=0)
    return [claim for claim in claims if claim.number >= reign]


def _look(folder: Location) -> list[Claim]:
    """Return all claims in a folder (files of commands that have the lease or want it), sorted by number."""
    claims = []
    for file in files.list_files(locate(folder, LEASE_FOLDER), below=False):
        if file.size > _MOST_CLAIM_BYTES:
            continue
        with suppress(FileNotFoundError, ValueError, TypeError, KeyError):  # was withdrawn just now, or is no claim
            claims.append(read_claim(locate(folder, LEASE_FOLDER, file.name)))
    return sorted(claims, key=lambda claim: (claim.number, claim.holder.token))


def _write(folder: Location, claim: Claim) -> None:
    path = _path(folder, claim)
    with naming(path) if isinstance(path, Path) else nullcontext():
        files.write_bytes(path, json.dumps(asdict(claim), indent=1).ljust(CLAIM_BYTES).encode())


def _path(folder: Location, claim: Claim) -> Location:
    return locate(folder, LEASE_FOLDER, claim.name)


@contextmanager
def _locked(folder: Location, *, make: bool = False) -> Iterator[None]:
    """Let one process at a time run the block, which takes, renews or gives back the lease. On a store, or a file
    system without locks, the block runs without a lock.

    `make` creates the lock file if it is missing. Without `make`, a missing lock file means that nobody has a lease, so
    the block runs without a lock too.
    """
    if not isinstance(folder, Path):
        yield
        return
    path = folder / LEASE_FOLDER / _LOCK
    while True:
        if make:
            make_durable_folder(path.parent)
        try:
            stream = open(path, "ab" if make else "r+b")  # noqa: SIM115 (closed below)
        except FileNotFoundError:
            if make:
                continue  # the previous holder has just removed it
            yield
            return
        with stream:
            with suppress(OSError):
                fcntl.flock(stream, fcntl.LOCK_EX)
            if _stands(path, as_descriptor=stream.fileno()):
                yield  # closing unlocks
                return


def _stands(path: Path, *, as_descriptor: int) -> bool:
    """Return whether `path` still names the open file with the descriptor `as_descriptor`. The answer is False if
    another process has removed the file, as the holder of a lease does when it gives the lease back."""
    try:
        return os.path.samestat(path.stat(), os.fstat(as_descriptor))
    except FileNotFoundError:
        return False
