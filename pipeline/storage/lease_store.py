"""The lease of a run on an object store, which has no locks, no renames, and to our client no conditional writes.

RUN/lease/NUMBER-TOKEN.json is a job's claim, which it alone writes: first as a candidate, then as the holder, anew
with every heartbeat. A candidate becomes the holder where a listing after its own write shows no other claim that may
live: stores list what was written, so of two at once one at least sees the other. Numbers rise from holder to holder;
a holder's claim fences all of lesser number. Cost: three small requests a heartbeat, 43,000 a day.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from pipeline.signals import Say, StopRequest
from pipeline.storage import files
from pipeline.storage.lease_holder import BEATS, Holder, LeaseError, identify, refusal

LEASE_FOLDER = "lease"
CONTEST_S = 0.2
"""Seconds between looks at candidates that write at the same time."""
CLAIM_BYTES = 1024
"""Every claim is as long: who reads one while it is written anew gets one or the other, never an end cut off."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one job has written."""

    number: int
    """One more than the greatest that its job saw."""
    beat: int
    """Heartbeats so far: who watches sees life where this changes."""
    holds: bool
    """It has the lease, or had it; otherwise it is a candidate."""
    holder: Holder

    @property
    def name(self) -> str:
        """Of its object."""
        return f"{self.number:08d}-{self.holder.token}.json"


def take(
    run: str,
    *,
    timeout_s: int,
    say: Say,
    stop: StopRequest,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Holder:
    """Take the lease. LeaseError where another job lives, KeyboardInterrupt where a signal comes while it waits."""
    mine = identify(timeout_s=timeout_s)
    silent: set[Claim] = set()
    while True:
        claims = _look(run)
        living = _living(claims, silent=silent)
        if living:
            silent |= _watch(run, living, silent=silent, say=say, stop=stop, clock=clock, sleep=sleep)
            continue
        number = 1 + max((claim.number for claim in claims), default=0)
        claim = Claim(number=number, beat=0, holds=False, holder=mine)
        if _contend(run, claim, silent=silent, clock=clock, sleep=sleep):
            for dead in claims:
                how = "is silent" if dead in silent else "is gone"
                say(f"taking over {run} from {dead.holder}, which {how}")
                files.delete(_path(run, dead))
            return mine


def check(run: str, *, token: str) -> None:
    """LeaseError where `token` is not (any more) that of the lease.

    No lock keeps it so: a job that freezes between this question and its answer's use can still write once. What it
    writes then is a whole checkpoint of the same run, which the holder's next commit removes or replaces.
    """
    claims = _look(run)
    if not any(claim.holder.token == token and claim.holds for claim in _reigning(claims)):
        others = [claim for claim in claims if claim.holder.token != token]
        whose = f"is held by {others[-1].holder}" if others else "was given up"
        raise LeaseError(f"this job has lost its lease on {run}, which {whose}")


def refuse_if_alive(run: str) -> None:
    """LeaseError where a process of this host has the lease; writes nothing, waits for nothing."""
    for claim in _reigning(_look(run)):
        if claim.holds and claim.holder.is_gone() is False:
            raise refusal(run, claim.holder)


def beat_once(run: str, *, token: str) -> bool:
    """Give a sign of life; False where the lease is another's."""
    mine = next((claim for claim in _reigning(_look(run)) if claim.holder.token == token), None)
    if mine is None:
        return False
    _write(run, replace(mine, beat=mine.beat + 1))
    return True


def release(run: str, *, token: str) -> None:
    """Give the lease back, if it is still ours."""
    with suppress(OSError):
        for claim in _look(run):
            if claim.holder.token == token:
                files.delete(_path(run, claim))


def _watch(
    run: str,
    living: list[Claim],
    *,
    silent: set[Claim],
    say: Say,
    stop: StopRequest,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> set[Claim]:
    """Wait until the claims change, or for their time-out: then they are returned as silent. LeaseError where one holds
    the lease and lives."""
    holding = next((claim for claim in living if claim.holds), None)
    if holding is not None and holding.holder.is_gone() is False:
        raise refusal(run, holding.holder)
    wait_s = max(claim.holder.timeout_s for claim in living)
    if holding is not None:
        say(f"{run} is held by {holding.holder}: waiting {wait_s} s for a sign of life before taking it over")
    deadline = clock() + wait_s
    while clock() < deadline and not stop:
        sleep(CONTEST_S if holding is None else min(1.0, wait_s / BEATS))
        now = _living(_look(run), silent=silent)
        if now == living:
            continue
        if holding is not None and any(c.holder == holding.holder and c.beat != holding.beat for c in now):
            raise refusal(run, holding.holder)
        return set()
    if stop:
        raise KeyboardInterrupt
    return set(living)


def _contend(
    run: str,
    claim: Claim,
    *,
    silent: set[Claim],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> bool:
    """Write the claim and hold the lease, or withdraw: before a holder, and before a candidate of smaller token."""
    _write(run, claim)
    deadline = clock() + claim.holder.timeout_s
    while True:
        rivals = [other for other in _living(_look(run), silent=silent) if other.holder.token != claim.holder.token]
        if not rivals:
            _write(run, replace(claim, holds=True))
            return True
        yields = any(other.holds or other.holder.token < claim.holder.token for other in rivals)
        if yields or clock() > deadline:
            files.delete(_path(run, claim))
            return False
        sleep(CONTEST_S)


def _living(claims: Iterable[Claim], *, silent: set[Claim]) -> list[Claim]:
    """Those that may be of a job that lives."""
    return [claim for claim in _reigning(claims) if claim not in silent and not claim.holder.is_gone()]


def _reigning(claims: Iterable[Claim]) -> list[Claim]:
    """Without those that a holder of greater number fences."""
    claims = list(claims)
    reign = max((claim.number for claim in claims if claim.holds), default=0)
    return [claim for claim in claims if claim.number >= reign]


def _look(run: str) -> list[Claim]:
    """All claims, by number."""
    claims = []
    for file in files.list_files(files.join(run, LEASE_FOLDER), below=False):
        with suppress(FileNotFoundError, ValueError, TypeError, KeyError):  # withdrawn meanwhile, or no claim
            tree = json.loads(files.read_bytes(files.join(run, LEASE_FOLDER, file.name)))
            claims.append(Claim(**{**tree, "holder": Holder(**tree["holder"])}))
    return sorted(claims, key=lambda claim: (claim.number, claim.holder.token))


def _write(run: str, claim: Claim) -> None:
    files.write_bytes(_path(run, claim), json.dumps(asdict(claim), indent=1).ljust(CLAIM_BYTES).encode())


def _path(run: str, claim: Claim) -> str:
    return files.join(run, LEASE_FOLDER, claim.name)
