"""Faults of workers, nodes, head and driver on a cluster of local Ray nodes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import psutil

from trainer.telemetry.metrics import read_json_lines

from .findings import END_S, Finding, find_remains, judge
from .ray_cluster import CPUS_PER_WORKER, Cluster
from .runs import EVERY_STEPS, WAIT_S, ChaosError, Run, Stage, kill
from .worker_faults import tell_restart

SETTINGS = ("launcher=ray", f"cpus_per_worker={CPUS_PER_WORKER}", "start_timeout_s=300", "collective_timeout_s=600")


def kill_ray_worker_in_a_step(stage: Stage) -> Finding:
    """SIGKILL of a worker's process in a step."""
    with Cluster(stage) as cluster:
        run = begin(stage, cluster, name="ray-kill-in-a-step")
        run.wait_for_step(12)
        since = kill(worker_of(cluster, 1))
        run.finish()
        return conclude(run, cluster, fault="Ray: SIGKILL of a worker in a step", since=since)


def kill_ray_worker_in_a_save(stage: Stage) -> Finding:
    """SIGKILL of a worker's process while a checkpoint is written."""
    with Cluster(stage) as cluster:
        run = begin(stage, cluster, name="ray-kill-in-a-save")
        run.wait_for_step(8)
        victim = worker_of(cluster, 0)
        for _ in range(20):
            folder = run.wait_for_save(after=run.newest_step())
            victim.send_signal(signal.SIGSTOP)
            if folder.exists():
                break
            victim.send_signal(signal.SIGCONT)
        since = kill(victim)
        run.finish()
        return conclude(run, cluster, fault="Ray: SIGKILL of a worker during a save", since=since)


def kill_ray_worker_in_the_start(stage: Stage) -> Finding:
    """SIGKILL of a worker's process before it trains."""
    with Cluster(stage) as cluster:
        run = begin(stage, cluster, name="ray-kill-in-the-start")
        since = kill(worker_of(cluster, 0))
        run.finish()
        return conclude(run, cluster, fault="Ray: SIGKILL of a worker during start", since=since)


def kill_a_raylet(stage: Stage) -> Finding:
    """SIGKILL of a raylet: a fixed number of workers waits for another node and goes on there."""
    with Cluster(stage) as cluster:
        run = begin(stage, cluster, name="ray-kill-a-raylet")
        run.wait_for_step(12)
        since = cluster.kill_node(cluster.workers()[1][0])
        run.wait_for("starting the workers again", since=since)
        cluster.add_node()
        run.finish()
        return conclude(run, cluster, fault="Ray: SIGKILL of a raylet; another node joins", since=since)


def shrink_and_grow(stage: Stage) -> Finding:
    """SIGKILL of a raylet with min_workers=1: on with one worker, and with two again once there is a node."""
    with Cluster(stage) as cluster:
        run = begin(stage, cluster, "min_workers=1", "resize_interval_s=2", name="ray-elastic")
        run.wait_for_step(12)
        since = cluster.kill_node(cluster.workers()[1][0])
        line = run.wait_for("1 worker on cpu", since=since)
        run.wait_for_step(14, since=line.time)
        with frozen(worker_of(cluster, 0)):
            cluster.add_node()
            run.wait_for("there is room for 2 workers instead of 1", since=line.time)
        run.finish()
        broken = [] if run.says("resumed at .* 2 workers on cpu") else ["it did not grow again"]
        fault = "Ray: SIGKILL of a raylet, min_workers=1; another node joins later"
        return conclude(run, cluster, fault=fault, since=since, compare="rounding", broken=broken)


def give_notice(stage: Stage) -> Finding:
    """A node is to be pre-empted: a checkpoint before it goes, no step is done twice, on with another node."""
    with Cluster(stage) as cluster:
        run = begin(stage, cluster, name="ray-notice")
        run.wait_for_step(12)
        home, process = cluster.workers()[1]
        with frozen(process):
            cluster.add_node()
            since = cluster.drain_node(home, seconds=60)
            run.wait_for("will go away in", since=since)
        run.wait_for("starting the workers again from step", since=since)
        run.wait_for("^resumed at step", since=since)
        broken = [f"a worker is on {home}" for name, _ in cluster.workers() if name == home]
        run.finish()
        fault = "Ray: notice that a node will be pre-empted"
        return conclude(run, cluster, fault=fault, since=since, repeated=0, broken=broken)


def lose_the_head(stage: Stage) -> Finding:
    """SIGKILL of the head and all nodes: the command ends, and given again on a new cluster it goes on."""
    with Cluster(stage) as lost:
        run = begin(stage, lost, name="ray-head-lost")
        run.wait_for_step(17)
        lost.kill_head()
        status = run.finish()
    broken = [] if status == 1 else [f"status {status}: {run.lines[-1].text}"]
    with Cluster(stage) as cluster:
        since = time.monotonic()
        begin_again(run, cluster)
        run.finish()
        happened = "status 1; the same command on a new cluster went on from the last checkpoint"
        return conclude(run, cluster, fault="Ray: head lost", since=since, happened=happened, broken=broken)


def stop_the_driver(stage: Stage) -> Finding:
    """SIGTERM to the driver, as `ray job stop` sends: a checkpoint first."""
    with Cluster(stage) as cluster:
        run = begin(stage, cluster, name="ray-sigterm")
        run.wait_for_step(12)
        run.commands[-1].process.send_signal(signal.SIGTERM)
        status = run.finish()
        stopped = len(read_json_lines(run.output / "metrics.jsonl"))
        broken = []
        if status != 128 + signal.SIGTERM or run.newest_step() != stopped:
            broken.append(f"status {status}, checkpoint of step {run.newest_step()} after step {stopped}")
        since = time.monotonic()
        begin_again(run, cluster)
        run.finish()
        happened = f"status {status} with a checkpoint of step {stopped}; the same command went on from there"
        fault = "Ray: SIGTERM to the driver"
        return conclude(run, cluster, fault=fault, since=since, happened=happened, repeated=0, broken=broken)


def kill_the_driver(stage: Stage) -> Finding:
    """SIGKILL of the driver: its workers end, and the same command goes on."""
    with Cluster(stage) as cluster:
        run = begin(stage, cluster, name="ray-kill-the-driver")
        run.wait_for_step(12)
        run.commands[-1].process.kill()
        run.finish()
        since = time.monotonic()
        broken = wait_for_no_worker(cluster)
        begin_again(run, cluster)
        run.finish()
        happened = "its workers ended; the same command went on from the last checkpoint"
        fault = "Ray: SIGKILL of the driver"
        return conclude(run, cluster, fault=fault, since=since, happened=happened, broken=broken)


def kill_the_driver_of_its_own_ray(stage: Stage) -> Finding:
    """SIGKILL of a command that has started Ray itself: Ray and the workers end with it."""
    _ = stage.reference
    run = stage.make_run("ray-own-kill-the-driver")
    run.start("launcher=ray")
    run.wait_for_step(12)
    run.commands[-1].process.kill()
    run.finish()
    broken = find_remains(run)
    broken.remove("the lease was not given back")
    since = time.monotonic()
    run.start("launcher=ray")
    run.finish()
    happened = "Ray and its workers ended; the same command went on from the last checkpoint"
    fault = "Ray without a cluster: SIGKILL of the command"
    return judge(run, fault=fault, happened=happened, since=since, broken=broken)


def begin(stage: Stage, cluster: Cluster, *settings: str, name: str) -> Run:
    """Give the command on a cluster of two nodes."""
    _ = stage.reference
    run = stage.make_run(name)
    begin_again(run, cluster, *settings)
    return run


def begin_again(run: Run, cluster: Cluster, *settings: str) -> None:
    """Give the run's command on a cluster, which gets two nodes where it has none."""
    while len(cluster.nodes) < 2:
        cluster.add_node()
    run.start(*SETTINGS, *settings, **cluster.driver_environment)


def conclude(
    run: Run,
    cluster: Cluster,
    *,
    fault: str,
    since: float,
    happened: str | None = None,
    compare: Literal["bits", "rounding"] = "bits",
    repeated: int = 2 * EVERY_STEPS,
    broken: list[str] | None = None,
) -> Finding:
    """Judge a run that has ended; no worker may be left on the cluster."""
    found = [*(broken or []), *wait_for_no_worker(cluster)]
    if happened is None:
        happened, missing = tell_restart(run)
        found += missing
    return judge(
        run,
        fault=fault,
        happened=happened,
        since=since,
        compare=compare,
        repeated=repeated,
        broken=found,
    )


def worker_of(cluster: Cluster, index: int) -> psutil.Process:
    """The process of a worker, as soon as it is there."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = cluster.workers()
        if len(found) > index:
            return found[index][1]
        time.sleep(0.05)
    raise ChaosError("no worker was started")


def wait_for_no_worker(cluster: Cluster) -> list[str]:
    """What is left of the workers after a while."""
    deadline = time.monotonic() + END_S
    while (left := cluster.workers()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return [f"worker process {process.pid} is left on {name}" for name, process in left]


@contextmanager
def frozen(process: psutil.Process) -> Iterator[None]:
    """A process does not get on inside the block: what takes seconds happens between two of its steps."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


FAULTS = (
    kill_ray_worker_in_a_step,
    kill_ray_worker_in_a_save,
    kill_ray_worker_in_the_start,
    kill_a_raylet,
    shrink_and_grow,
    give_notice,
    lose_the_head,
    stop_the_driver,
    kill_the_driver,
    kill_the_driver_of_its_own_ray,
)
