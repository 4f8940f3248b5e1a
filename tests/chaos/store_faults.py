"""A run on an object store: a store that errs, is slow, cuts off or is away; a host that is lost, or wakes up again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from faulty_store import Fault, FaultyStore
from object_store import environment_of, make_bucket, run_server
from pipeline import storage
from pipeline.storage import LEASE_FOLDER

from .findings import Finding, judge
from .runs import MAX_STEPS, ChaosError, Command, Run, Stage

LEASE_S = 5
"""Silence after which a job on another host takes over."""
AWAY_S = 15.0


@dataclass
class StoredRun:
    """A run on a store, whose commands reach that through a server that can fail."""

    run: Run
    store: FaultyStore

    def start(self, *settings: str, host: str = "a") -> Command:
        """Give the command on a host, whose disk is a folder of its own."""
        environment = environment_of(self.store.endpoint)
        return self.run.start(
            f"working_folder={self.disk(host)}", f"lease_timeout_s={LEASE_S}", *settings, **environment
        )

    def disk(self, host: str) -> Path:
        """A host's own disk."""
        return self.run.output.parent / f"disk-{host}"

    def seem_elsewhere(self) -> None:
        """Let the claim of the job that has the lease say that it is on another host, as it would be on a cluster."""
        folder = f"{self.run.target}/{LEASE_FOLDER}"
        for file in storage.list_files(folder):
            claim = json.loads(storage.read_bytes(f"{folder}/{file.name}"))
            claim["holder"]["host"] = "elsewhere"
            storage.write_bytes(f"{folder}/{file.name}", json.dumps(claim).ljust(file.size).encode())


@contextmanager
def stored_run(stage: Stage, *, name: str) -> Iterator[StoredRun]:
    """A new run on a server of its own; inside the block this process reaches that too, and without faults."""
    _ = stage.reference
    before = dict(os.environ)
    with run_server() as server:
        os.environ.update(environment_of(server))
        store = FaultyStore(server)
        try:
            yield StoredRun(stage.make_run(name, target=f"{make_bucket(server)}/runs/{name}"), store)
        finally:
            store.close()
            os.environ.clear()
            os.environ.update(before)


def answer_503(stage: Stage) -> Finding:
    """The store answers a fourth of the requests with 503 Slow Down, from the first to the last."""
    return _err_always(stage, "busy", fault="store: 503 for a fourth of the requests")


def be_slow(stage: Stage) -> Finding:
    """The store thinks for 0.3 s about every request."""
    return _err_always(stage, "slow", every=1, fault="store: 0.3 s for every request")


def cut_off(stage: Stage) -> Finding:
    """A fourth of the requests, or their answers, break off in the middle."""
    return _err_always(stage, "cut off", fault="store: a fourth of the requests cut off")


def _err_always(stage: Stage, kind: Fault, *, fault: str, every: int = 4) -> Finding:
    with stored_run(stage, name=f"store-{kind.replace(' ', '-')}") as stored, stored.store.struck_by(kind, every=every):
        since = time.monotonic()
        stored.start()
        stored.run.finish()
        broken = [] if stored.store.struck > 20 else [f"{stored.store.struck} requests were struck"]
        if stored.run.says("starting the workers again"):
            broken.append("the workers were started again")
        happened = f"{stored.store.struck} of {stored.store.requests} requests struck; the run took no notice"
        stored.store.fault = "none"
        return judge(stored.run, fault=fault, happened=happened, since=since, repeated=0, broken=broken)


def go_away(stage: Stage) -> Finding:
    """The store is away for 15 s, also in a save: training waits for it and goes on."""
    with stored_run(stage, name="store-away") as stored:
        run = stored.run
        stored.start()
        run.wait_for_step(12)
        since = time.monotonic()
        with stored.store.struck_by("away"):
            time.sleep(AWAY_S)
        run.finish()
        broken = [] if stored.store.struck else ["no request was made meanwhile"]
        if run.says("starting the workers again"):
            broken.append("the workers were started again")
        happened = f"{stored.store.struck} requests found nobody; training waited and went on"
        return judge(
            run, fault=f"store: away for {AWAY_S:.0f} s", happened=happened, since=since, repeated=0, broken=broken
        )


def stay_away(stage: Stage) -> Finding:
    """The store is away for longer than collective_timeout_s: the run ends, and the same command goes on."""
    with stored_run(stage, name="store-gone") as stored:
        run, broken = stored.run, []
        stored.start("collective_timeout_s=20")
        run.wait_for_step(12)
        with stored.store.struck_by("away"):
            status = run.finish()
        error = next((line.text for line in run.lines if line.text.startswith("error: ")), run.lines[-1].text)
        if status != 2 or "cannot be reached" not in error:
            broken.append(f"status {status}: {error}")
        since = time.monotonic()
        stored.start()
        happened = "status 2, the store named; when it was back, the same command went on"
        return judge(run, fault="store: away for good in a save", happened=happened, since=since, broken=broken)


def lose_the_host(stage: Stage) -> Finding:
    """SIGKILL of everything, and the disk is lost too: the same command on another host waits and goes on."""
    return _lose_the_host(stage, fault="store: host and disk lost")


def lose_the_host_under_ray(stage: Stage) -> Finding:
    """The same with the workers under Ray."""
    return _lose_the_host(stage, "launcher=ray", fault="store: host and disk lost, under Ray")


def _lose_the_host(stage: Stage, *settings: str, fault: str) -> Finding:
    with stored_run(stage, name=f"store-host-lost{'-ray' * bool(settings)}") as stored:
        run = stored.run
        command = stored.start(*settings)
        run.wait_for_step(17)
        os.killpg(command.process.pid, signal.SIGKILL)
        run.end()
        command.wait()
        shutil.rmtree(stored.disk("a"))
        stored.seem_elsewhere()
        since = time.monotonic()
        stored.start(*settings, host="b")
        run.finish()
        broken = (
            [] if run.says("^output=s3://.*: taking over from .* is silent$") else ["nothing was said of the lease"]
        )
        resumed = [line.text for line in run.lines if line.text.startswith("resumed at step ")]
        happened = (
            f"the same command on another host took over after {LEASE_S} s of silence and "
            f"{resumed[-1].split(' of ')[0] if resumed else 'began'}"
        )
        return judge(run, fault=fault, happened=happened, since=since, broken=broken)


def wake_up_late(stage: Stage) -> Finding:
    """A whole job freezes, another host takes over, the first wakes up: it commits nothing and stops."""
    with stored_run(stage, name="store-fenced") as stored:
        run, broken = stored.run, []
        first = stored.start()
        run.wait_for_step(12)
        sleepers = [psutil.Process(first.process.pid), *run.workers()]
        for process in sleepers:
            process.send_signal(signal.SIGSTOP)
        stored.seem_elsewhere()
        since = time.monotonic()
        second = stored.start(host="b")
        line = run.wait_for("^output=s3://.*: taking over from .* is silent$", since=since)
        run.wait_for("^resumed at step", since=line.time)
        for process in sleepers:
            process.send_signal(signal.SIGCONT)
        status = first.wait()
        said = [line.text for line in run.lines if line.command == first.number]
        if status not in (2, 128 + signal.SIGTERM) or not any("lease" in text for text in said):
            broken.append(f"the first ended with status {status}: {said[-1]}")
        run.commands = [first, second]
        happened = f"another host took over; the first woke up, was refused its commits and ended with status {status}"
        finding = judge(
            run, fault="store: a frozen job wakes up after another host took over", happened=happened, since=since,
            repeated=4 * 5, broken=broken,
        )  # fmt: skip
        if second.process.returncode != 0:
            raise ChaosError("\n".join(each.text for each in run.lines[-20:]))
        return finding


def freeze_the_driver_on_a_store(stage: Stage) -> Finding:
    """The command freezes and its workers go on; another host takes over: the workers can commit nothing any more."""
    with stored_run(stage, name="store-driver-frozen") as stored:
        run, broken = stored.run, []
        first = stored.start()
        run.wait_for_step(12)
        worker = run.wait_for_worker(1)
        for process in (worker, psutil.Process(first.process.pid)):
            process.send_signal(signal.SIGSTOP)
        stored.seem_elsewhere()
        since = time.monotonic()
        second = stored.start(host="b")
        run.wait_for("^output=s3://.*: taking over from .* is silent$", since=since)
        worker.send_signal(signal.SIGCONT)  # not before, or they may be through
        status = second.wait()
        if status != 0:
            broken.append(f"the second ended with status {status}")
        first.process.send_signal(signal.SIGCONT)
        status = first.wait()
        said = [line.text for line in run.lines if line.command == first.number]
        if status == 0 or not any("lease" in text for text in said):
            broken.append(f"the first ended with status {status}: {said[-1]}")
        run.commands = [first, second]
        happened = f"another host took over; the commits of the workers were refused, and the first ended with {status}"
        fault = "store: the command freezes, its workers go on, another host takes over"
        return judge(run, fault=fault, happened=happened, since=since, repeated=MAX_STEPS, broken=broken)


FAULTS = (
    answer_503,
    be_slow,
    cut_off,
    go_away,
    stay_away,
    lose_the_host,
    lose_the_host_under_ray,
    wake_up_late,
    freeze_the_driver_on_a_store,
)
