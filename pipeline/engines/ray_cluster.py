"""A Dask cluster in actors of Ray: Ray brings the nodes and replaces what is lost, Beam's DaskRunner works on them.

The scheduler lives on the node of this process, each worker in an actor of its own that Ray starts again, elsewhere if
need be. All speak TLS with a key made for this one build. Nothing is left when the build ends, however it ends.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import ray
from distributed import Scheduler, Worker
from distributed.security import Security
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline.config import RayConfig
from pipeline.console import Say
from pipeline.engines.beam_worker import python_path
from pipeline.engines.cluster import DaskCluster
from pipeline.engines.dask_cluster import await_worker, connect
from pipeline.errors import PassingError
from pipeline.settings import ConfigError
from pipeline.units import count_of

_OBJECT_STORE_BYTES = 100 << 20
"""Of a Ray of our own; only actors use it."""
_SCHEDULER_START_S = 180.0
_ATTEMPTS = 3
"""Times that a graph is run: Ray starts a lost scheduler again at the same address."""
_AGAIN_S = 1.0


@contextmanager
def start_workers(config: RayConfig, *, workers: int | None, most: int, say: Say) -> Iterator[DaskCluster]:
    """A Dask cluster of `workers` actors (None: as many as there is room for), at most `most`; they end with the body.

    The body begins when the first worker is there; Ray starts the others as nodes come. Raises ConfigError for a Ray
    that does not answer or a number that cannot be chosen, PassingError where no worker starts in time.
    """
    each = resources_of(config)
    with _ray_session(each, workers=workers):
        number = min(workers or count_room(each), most)
        security = Security.temporary()
        host = ray.util.get_node_ip_address()
        address = f"tls://{host}:{_free_port(host)}"
        cluster = DaskCluster(
            address,
            name="the Ray cluster",
            workers=number,
            wait_s=config.worker_wait_s,
            security=security,
            attempts=_ATTEMPTS,
        )
        code = {"env_vars": {"PYTHONPATH": python_path()}}  # ours, whatever version is installed there
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        scheduler_class = ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=here, runtime_env=code)(
            DaskScheduler
        )
        custom = {name: amount for name, amount in each.items() if name != "CPU"}
        worker_class = ray.remote(num_cpus=each["CPU"], resources=custom, max_restarts=-1, runtime_env=code)(DaskWorker)
        actors: list[Any] = []
        try:
            actors.append(scheduler_class.remote(address, security))
            _await_scheduler(actors[0])
            actors += [worker_class.remote(address, security) for _ in range(number)]
            say(f"Ray: {count_of(number, 'worker')} of {_describe(each)}")
            with connect(cluster) as client:
                await_worker(
                    client, cluster=cluster, waiting_for=lambda: describe_waiting(each, number=number), say=say
                )
            yield cluster
        finally:
            for actor in reversed(actors):
                with suppress(Exception):  # a cluster that is lost has none of them
                    ray.kill(actor, no_restart=True)


def resources_of(config: RayConfig) -> dict[str, float]:
    """What a worker asks Ray for."""
    custom = {} if config.resource is None else {config.resource: config.cpus_per_worker}
    return {"CPU": config.cpus_per_worker, **custom}


def count_room(each: Mapping[str, float]) -> int:
    """Workers that the present nodes can hold. ConfigError where that is none."""
    total = ray.cluster_resources()
    room: int = min(math.floor(total.get(name, 0.0) / amount) for name, amount in each.items())
    if room < 1:
        raise ConfigError(
            f"workers is not set, and the Ray cluster has no room now for a worker of {_describe(each)} (it has "
            f"{_describe_all()}); set workers to the number that nodes should come for, or correct ray.resource"
        )
    return room


def describe_waiting(each: Mapping[str, float], *, number: int) -> str:
    """What is asked for, what the cluster has, and what of it is free."""
    free = ray.available_resources()
    nodes = sum(bool(node["Alive"]) for node in ray.nodes())
    shown = ", ".join(f"{free.get(name, 0.0):g} {name}" for name in each)
    return (
        f"{count_of(number, 'worker')} of {_describe(each)} asked for; the cluster has {_describe_all()} on "
        f"{count_of(nodes, 'node')}, "
        f"of which {shown} free; add nodes, let other jobs end, or lower workers"
    )


def _describe(each: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in each.items())


def _describe_all() -> str:
    total = {"CPU": 0.0, **ray.cluster_resources()}
    hidden = ("memory", "object_store_memory")
    return ", ".join(f"{total[name]:g} {name}" for name in sorted(total) if ":" not in name and name not in hidden)


@contextmanager
def _ray_session(each: Mapping[str, float], *, workers: int | None) -> Iterator[None]:
    """Connect to the cluster of RAY_ADDRESS, else start a Ray on this machine; disconnect, and end it, at the end."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    arguments: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    where = os.environ.get("RAY_ADDRESS")
    if not where:
        os.environ.setdefault("RAY_worker_niceness", "0")  # at Ray's 15 a busy machine leaves workers next to nothing
        cores = len(os.sched_getaffinity(0))
        arguments |= {
            "address": "local",
            "num_cpus": max(cores, math.ceil((workers or 1) * each["CPU"])),
            "resources": {name: (workers or cores) * amount for name, amount in each.items() if name != "CPU"},
            "object_store_memory": _OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Ray's own processes inherit this mask: what `timeout` or Slurm sends to all of a command is for this one alone.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        ray.init(**arguments)
    except Exception as error:  # Ray raises Exception itself here
        ray.shutdown()
        raise ConfigError(
            f"Ray ({where or 'on this machine'}) does not answer: {' '.join(str(error).split())}; run this on a "
            "node of the cluster (`ray job submit`), or unset RAY_ADDRESS to start one on this machine"
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():  # Ray has put its own in their place
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        ray.shutdown()


def _free_port(host: str) -> int:
    with socket.socket() as found:
        found.bind((host, 0))
        port: int = found.getsockname()[1]
        return port


def _await_scheduler(actor: Any) -> None:
    try:
        ray.get(actor.wait.remote(), timeout=_SCHEDULER_START_S)
    except ray.exceptions.RayError as error:
        raise PassingError(
            f"the Ray cluster: the actor of the Dask scheduler has not started in {_SCHEDULER_START_S:g} s: "
            f"{' '.join(str(error).split())}; see `ray status`"
        ) from error


class DaskScheduler:
    """The scheduler, in an actor."""

    def __init__(self, address: str, security: Security) -> None:
        self._ready = threading.Event()
        _serve(lambda: self._run(address, security=security))

    def wait(self) -> None:
        """Return when it listens."""
        self._ready.wait()

    async def _run(self, address: str, *, security: Security) -> None:
        host, port = address.removeprefix("tls://").rsplit(":", 1)
        async with Scheduler(
            host=host,
            port=int(port),
            protocol="tls",
            security=security,
            dashboard=False,
            dashboard_address=":0",
        ) as scheduler:
            self._ready.set()
            await scheduler.finished()


class DaskWorker:
    """A worker of one thread, in an actor: a new one whenever the scheduler was lost."""

    def __init__(self, address: str, security: Security) -> None:
        _serve(lambda: self._run(address, security=security))

    async def _run(self, address: str, *, security: Security) -> None:
        while True:
            with suppress(OSError):  # no scheduler yet, or again
                async with Worker(
                    address,
                    host=ray.util.get_node_ip_address(),
                    protocol="tls",
                    security=security,
                    nthreads=1,
                    memory_limit=0,  # Ray's own monitor ends actors where memory is short
                    dashboard=False,
                    dashboard_address=":0",
                ) as worker:
                    await worker.finished()
            await asyncio.sleep(_AGAIN_S)


def _serve(make: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run it in a thread; when it ends the process does, and Ray starts another."""

    def run() -> None:
        try:
            asyncio.run(make())
        finally:
            os._exit(1)

    threading.Thread(target=run, name="dask", daemon=True).start()
