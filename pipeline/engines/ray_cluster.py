"""Starts a Dask cluster in Ray actors. Ray provides nodes and replaces lost ones; Beam's DaskRunner runs the graph.

The scheduler runs on the node of this process. Each worker is an actor that Ray restarts, on another node if necessary.
All connections use TLS with a key made for this build. Nothing remains when the build ends, however it ends.
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
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import ray
from distributed import Scheduler, Worker
from distributed.security import Security
from ray._private import auto_init_hook
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline.config import RayConfig
from pipeline.console import Say
from pipeline.engines.beam_worker import python_path
from pipeline.engines.cluster import DaskCluster
from pipeline.engines.dask_cluster import await_worker, connect
from pipeline.errors import PassingError
from pipeline.ray_loopback import listening_here_only
from pipeline.settings import ConfigError
from pipeline.units import count_of

_OBJECT_STORE_BYTES = 100 << 20
"""Size of the object store of a local Ray. It is small, because only actors are used."""
_SCHEDULER_START_S = 180.0
_ATTEMPTS = 3
"""The most times that a graph is run. A retry can succeed, because Ray restarts a lost scheduler at the same
address."""
_NO_DASHBOARD = "127.0.0.1:0"  # Dask answers HTTP requests about tasks here even without a dashboard
_AGAIN_S = 1.0


@contextmanager
def start_workers(config: RayConfig, *, workers: int | None, most: int, say: Say) -> Iterator[DaskCluster]:
    """Yield a Dask cluster whose workers are Ray actors. The actors end when the `with` block ends.

    `workers` is the number of actors. If it is None, as many actors are started as fit on the present nodes. There are
    never more than `most` actors. The block begins once the first worker is connected; Ray starts the other workers as
    nodes become available. Raises ConfigError if Ray does not answer or no worker fits. Raises PassingError if no
    worker starts in time.
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
        code = {"env_vars": {"PYTHONPATH": python_path()}}  # this code, whatever version is installed on a node
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": here, "runtime_env": code}
        scheduler_class = ray.remote(**options)(DaskScheduler)
        custom = {name: amount for name, amount in each.items() if name != "CPU"}
        worker_class = ray.remote(num_cpus=each["CPU"], resources=custom, max_restarts=-1, runtime_env=code)(DaskWorker)
        actors: list[Any] = []
        try:
            actors.append(scheduler_class.remote(address, security))
            _await_scheduler(actors[0])
            actors += [worker_class.remote(address, security) for _ in range(number)]
            say(f"Ray: {count_of(number, 'worker')} of {_describe(each)}")
            waiting_for = partial(describe_waiting, each, number=number)
            with connect(cluster) as client:
                await_worker(client, cluster=cluster, waiting_for=waiting_for, say=say)
            yield cluster
        finally:
            for actor in reversed(actors):
                with suppress(Exception):  # a lost cluster has no actors
                    ray.kill(actor, no_restart=True)


def resources_of(config: RayConfig) -> dict[str, float]:
    """Return a dict that maps the name of a resource to the amount that each worker requests from Ray."""
    custom = {} if config.resource is None else {config.resource: config.cpus_per_worker}
    return {"CPU": config.cpus_per_worker, **custom}


def count_room(each: Mapping[str, float]) -> int:
    """Return how many workers fit on the present nodes. `each` has the resources that one worker requests (see
    resources_of). Raises ConfigError if no worker fits."""
    total = ray.cluster_resources()
    room: int = min(math.floor(total.get(name, 0.0) / amount) for name, amount in each.items())
    if room < 1:
        raise ConfigError(
            f"workers is not set, and the Ray cluster has no room now for a worker of {_describe(each)} (it has "
            f"{_describe_all()}); set workers, so that nodes are started for them, or correct ray.resource"
        )
    return room


def describe_waiting(each: Mapping[str, float], *, number: int) -> str:
    """Return a text for the user who waits until workers start. The text says what the workers request, what the
    cluster has, and how much of this is free. `each` has the resources that one worker requests, and `number` says how
    many workers were requested."""
    free = ray.available_resources()
    nodes = sum(bool(node["Alive"]) for node in ray.nodes())
    shown = ", ".join(f"{free.get(name, 0.0):g} {name}" for name in each)
    return (
        f"{count_of(number, 'worker')} of {_describe(each)} requested; the cluster has {_describe_all()} on "
        f"{count_of(nodes, 'node')}, of which {shown} are free; add nodes, let other jobs end, or lower workers"
    )


def _describe(each: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in each.items())


def _describe_all() -> str:
    total = {"CPU": 0.0, **ray.cluster_resources()}
    hidden = ("memory", "object_store_memory")
    return ", ".join(f"{total[name]:g} {name}" for name in sorted(total) if ":" not in name and name not in hidden)


@contextmanager
def _ray_session(each: Mapping[str, float], *, workers: int | None) -> Iterator[None]:
    """Connect to the cluster at RAY_ADDRESS, or start Ray on this machine if RAY_ADDRESS is not set. A local Ray gets
    the resources for all workers. `workers` is the number of workers, and `each` has the resources that one worker
    requests. After the block, disconnect from the cluster, or stop the local Ray."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    auto_init_hook.enable_auto_connect = False  # else a thread that calls Ray after ray.shutdown starts another Ray
    arguments: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    where = os.environ.get("RAY_ADDRESS")
    if not where:
        os.environ.setdefault("RAY_worker_niceness", "0")  # at Ray's default of 15 a busy machine starves workers
        cores = len(os.sched_getaffinity(0))
        arguments |= {
            "address": "local",
            "num_cpus": max(cores, math.ceil((workers or 1) * each["CPU"])),
            "resources": {name: (workers or cores) * amount for name, amount in each.items() if name != "CPU"},
            "object_store_memory": _OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Ray's processes inherit this mask. So a SIGTERM that `timeout` or Slurm sends to all stops only this process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with nullcontext() if where else listening_here_only():
            ray.init(**arguments)
    except Exception as error:  # Ray raises a plain Exception here
        ray.shutdown()
        raise ConfigError(
            f"Ray ({where or 'on this machine'}) does not answer: {' '.join(str(error).split())}; run this on a "
            "node of the cluster (`ray job submit`), or unset RAY_ADDRESS to start Ray on this machine"
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():  # Ray has replaced the handlers
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
    """A Ray actor that runs the Dask scheduler."""

    def __init__(self, address: str, security: Security) -> None:
        self._ready = threading.Event()
        _serve(lambda: self._run(address, security=security))

    def wait(self) -> None:
        """Return once the scheduler listens."""
        self._ready.wait()

    async def _run(self, address: str, *, security: Security) -> None:
        host, port = address.removeprefix("tls://").rsplit(":", 1)
        async with Scheduler(
            host=host,
            port=int(port),
            protocol="tls",
            security=security,
            dashboard=False,
            dashboard_address=_NO_DASHBOARD,
        ) as scheduler:
            self._ready.set()
            await scheduler.finished()


class DaskWorker:
    """A Ray actor that runs a Dask worker of one thread. If the scheduler is lost, the worker starts again and waits
    for a new scheduler."""

    def __init__(self, address: str, security: Security) -> None:
        _serve(lambda: self._run(address, security=security))

    async def _run(self, address: str, *, security: Security) -> None:
        while True:
            with suppress(OSError):  # there is no scheduler yet, or no longer
                async with Worker(
                    address,
                    host=ray.util.get_node_ip_address(),
                    protocol="tls",
                    security=security,
                    nthreads=1,
                    memory_limit=0,  # Ray's own monitor ends actors if memory is short
                    dashboard=False,
                    dashboard_address=_NO_DASHBOARD,
                ) as worker:
                    await worker.finished()
            await asyncio.sleep(_AGAIN_S)


def _serve(make: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Start a thread that runs the coroutine that `make` returns. When the coroutine ends, the process exits and Ray
    restarts the actor."""

    def run() -> None:
        try:
            asyncio.run(make())
        finally:
            os._exit(1)

    threading.Thread(target=run, name="dask", daemon=True).start()
