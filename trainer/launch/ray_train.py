"""Run the workers under Ray Train, on the cluster at RAY_ADDRESS (set in a submitted job) or on a local Ray.

If CPUs or GPUs are missing, Ray waits for them silently. So before it starts anything, this module checks that the
logical CPUs and GPUs suffice for the workers and for reading data. A group of workers (all workers of one start)
writes a checkpoint and ends if a node will go away or there is room for more workers (elastic.py). Then restarts.py
starts the next group.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
import ray.train
import ray.train.torch
from ray._private import auto_init_hook
from ray.exceptions import RayActorError, RayError
from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
from ray.train.torch import TorchTrainer

from pipeline import storage
from pipeline.console import Say
from pipeline.ray_loopback import listening_here_only
from pipeline.settings import ConfigError
from pipeline.signals import StopRequest
from trainer.config import TrainerConfig
from trainer.launch import elastic
from trainer.launch.elastic import GroupWatch
from trainer.launch.failures import CONTINUE_HINT, ClusterError, WorkerError, WorkerFailure, raise_first
from trainer.launch.ray_link import MailboxLink, start_mailbox
from trainer.launch.ray_loopback import torch_config
from trainer.telemetry import prometheus
from trainer.train import Outcome, WorkerPlace, backend_of, work

RAY_FOLDER = ".ray"
"""Folder in the run directory for Ray Train's own files."""
START_ATTEMPTS = 3
WAITING_LINE_S = 60.0
"""Seconds without a line from the workers after which the user is told what Ray waits for."""
POLL_S = 0.2
"""Longest delay, in seconds, until a signal to the driver is passed on to the workers."""
NODE_CHECK_S = 1.0
"""Seconds between checks of the nodes on which the workers run."""
NEVER_S = 1e9
RAY_DEFAULTS = {
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Maps environment variables to the values that they get if the user has not set them. With these values, Ray prints
little, notices ended workers quickly, and leaves nodes that will go away to GroupWatch (elastic.py)."""


@contextmanager
def ray_session(config: TrainerConfig) -> Iterator[TrainerConfig]:
    """Connect to Ray in the `with` block, and yield the config with `device: auto` resolved to cuda or cpu.

    Raises ConfigError if Ray cannot hold the run. The message names what is needed and available, and what to change.
    """
    cluster = bool(os.environ.get("RAY_ADDRESS"))
    auto_init_hook.enable_auto_connect = False  # else a thread that calls Ray after ray.shutdown starts another Ray
    if cluster:
        join_cluster(config)
    else:
        _set_ray_defaults(config)
        os.environ.setdefault("RAY_worker_niceness", "0")  # with Ray's default, 15, workers starve on a busy machine
        # `timeout`, Slurm and systemd send SIGTERM to all processes of a command. Ray's processes inherit this mask and
        # survive, so that the workers can finish their step; ray.shutdown ends them.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            with listening_here_only():
                connect(
                    attempts=START_ATTEMPTS,
                    address="local",
                    num_cpus=max(len(os.sched_getaffinity(0)), math.ceil(cpus_needed(config, workers=config.workers))),
                    object_store_memory=object_store_bytes(config),
                    include_dashboard=False,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        yield check_resources(config, cluster_resources(), cluster=cluster)
    finally:
        ray.shutdown()


def join_cluster(config: TrainerConfig) -> None:
    """Connect to the cluster at RAY_ADDRESS, unless this process is connected already.

    The connection stays open, because Ray deletes a job's working directory when the job's driver disconnects. Raises
    ClusterError with Ray's reason if connecting fails.
    """
    if not ray.is_initialized():
        _set_ray_defaults(config)
        connect(attempts=1)


def _set_ray_defaults(config: TrainerConfig) -> None:
    for name, value in RAY_DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(config.start_timeout_s))


def connect(*, attempts: int, **arguments: Any) -> None:
    """Call ray.init with `arguments`. If it fails, try again. `attempts` is the largest number of calls.

    Ray gives its processes 30 s to start. On a busy machine this may be too short, and then another attempt helps.
    Raises ClusterError with Ray's reason if all attempts fail.
    """
    for attempt in range(1, attempts + 1):
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, configure_logging=True, **arguments)
            return
        except Exception as error:  # Ray raises plain Exception here
            ray.shutdown()
            if attempt == attempts:
                where = os.environ.get("RAY_ADDRESS") or "on this machine"
                raise ClusterError(f"Ray ({where}) does not answer: {error}") from error


def cpus_needed(config: TrainerConfig, *, workers: int) -> float:
    """Return how many logical CPUs a run on CPUs needs, both for its workers and for reading data (INGEST_CPUS)."""
    return workers * config.cpus_per_worker + elastic.INGEST_CPUS


def object_store_bytes(config: TrainerConfig) -> int:
    """Return the bytes of a local Ray's object store: twice the data that workers read ahead, plus 256 MiB for Ray."""
    return (2 * config.workers * config.ingest.object_store_mb + 256) * 2**20


def check_resources(config: TrainerConfig, resources: Mapping[str, float], *, cluster: bool) -> TrainerConfig:
    """Check that Ray can hold the workers, and return the config with `device: auto` resolved to cuda or cpu.

    `resources` maps each logical resource to its amount after an autoscaler has started as many nodes as it may.
    `cluster` says whether Ray is a cluster, for the error messages. If min_workers is set, room for that many workers
    is enough. Raises ConfigError if there will never be enough room. Without this check, Ray would wait silently.
    """
    name, least = ("workers", config.workers) if config.min_workers is None else ("min_workers", config.min_workers)
    cpus, gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
    device = config.device if config.device != "auto" else ("cuda" if gpus >= 1 else "cpu")
    where = "the Ray cluster" if cluster else "Ray on this machine"
    if device == "cuda" and gpus < least:
        raise ConfigError(
            f"{name}={least} need {least} GPUs, {where} has {gpus:g}; lower {name}, add GPU nodes, or set device=cpu"
        )
    if device == "cpu" and cpus < cpus_needed(config, workers=least):
        raise ConfigError(
            f"{name}={least} at cpus_per_worker={config.cpus_per_worker:g} and {elastic.INGEST_CPUS:g} for ingest "
            f"need {cpus_needed(config, workers=least):g} logical CPUs, {where} has {cpus:g}; lower {name} or "
            f"cpus_per_worker, or add nodes"
        )
    return config.model_copy(update={"device": device})


def run_on_ray(
    config: TrainerConfig,
    *,
    say: Say,
    stop: StopRequest,
    lease_token: str | None = None,
    watch: GroupWatch | None = None,
) -> Outcome:
    """Run a group of workers (all workers of one start) to its end, and return the outcome. Call inside a ray_session.

    `watch` may end the group early. One GroupWatch serves all groups of a command. If `watch` is None, this group gets
    a GroupWatch of its own. Raises ConfigError for bad input, and WorkerError for any other failure. The WorkerError
    names the worker, if a worker caused the failure.
    """
    watch = watch or GroupWatch(config, per_worker=resources_of(config))
    system, folder = (None, config.output)
    if storage.is_url(config.output):
        system, folder = storage.open_filesystem(config.output)
    with raise_cluster_error_if_lost():
        mailbox = start_mailbox()
        try:
            trainer = TorchTrainer(
                _train,
                train_loop_config={"config": config, "mailbox": mailbox, "lease_token": lease_token},
                scaling_config=scaling_config(config),
                torch_config=torch_config(backend=backend_of(config), timeout_s=config.collective_timeout_s),
                # Ray's own files go into the run directory, because Ray checks that every node sees that folder.
                # restarts.py handles failures. Ray must not, because it would also retry bad input, and wait forever.
                run_config=RunConfig(
                    name=RAY_FOLDER,
                    storage_path=folder,
                    storage_filesystem=system,
                    failure_config=FailureConfig(max_failures=0, max_preemption_failures=0, controller_failure_limit=0),
                ),
            )
            watch.end_group()
            start_ray_data_actors_here()
            if watch.groups:
                prometheus.RestartCount(config.output).add()
            watch.groups += 1
            fit = _FitThread(trainer)
            fit.start()
            worker_nodes = serve_workers(fit, mailbox=mailbox, config=config, watch=watch, say=say, stop=stop)
            if fit.error is not None:
                failures = ray.get(mailbox.failures.remote())
                if config.min_workers is not None:
                    elastic.wait_for_node_list(set(worker_nodes))
                raise_first([failure for failure in failures if failure.by_input])
                raise_lost(fit.error)
                raise_first(failures)
                cause = getattr(fit.error, "controller_failure", fit.error)
                raise WorkerError(f"Ray Train ended the run: {' '.join(str(cause).split())}") from fit.error
        finally:
            ray.kill(mailbox)
    assert isinstance(fit.outcome, Outcome)
    return fit.outcome


def start_ray_data_actors_here() -> None:
    """Start Ray Data's two long-lived actors on the driver's node.

    Otherwise the first worker that reads data would start these actors on a GPU node. Because the actors outlive the
    job, the GPU node would never count as idle and never be removed.
    """
    from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator as coordinator
    from ray.data._internal.stats import get_or_create_stats_actor

    coordinator.get_or_create_autoscaling_coordinator()
    get_or_create_stats_actor()


def resources_of(config: TrainerConfig) -> dict[str, float]:
    """Return the logical resources that one worker requests: one GPU, or as many CPUs as cpus_per_worker says."""
    return {"GPU": 1} if config.device == "cuda" else {"CPU": config.cpus_per_worker}


def scaling_config(config: TrainerConfig) -> ScalingConfig:
    """Return the settings that tell Ray Train how many workers to start now, and with which resources.

    The settings switch off Ray Train's own resizing, because it stops the workers without a checkpoint. GroupWatch
    decides when to change the number of workers instead.
    """
    workers: int | tuple[int, int] = config.workers
    if config.min_workers is not None:
        max_workers = elastic.next_group_size(
            elastic.look_at_nodes(), least=config.min_workers, most=config.workers, per_worker=resources_of(config)
        )
        workers = (config.min_workers, max_workers)
    return ScalingConfig(
        num_workers=workers,
        use_gpu=config.device == "cuda",
        resources_per_worker=resources_of(config),
        elastic_resize_monitor_interval_s=NEVER_S,
    )


def serve_workers(
    fit: _FitThread, *, mailbox: Any, config: TrainerConfig, watch: GroupWatch, say: Say, stop: StopRequest
) -> tuple[str, ...]:
    """Show the workers' lines, say what Ray waits for, and pass on the user's request to stop, until `fit` ends.

    `fit` is the thread in which Ray Train runs. If `watch` finds a reason to end the group of workers early, the
    workers are asked to write a checkpoint and stop. Returns the node id of each worker that started. Raises
    ClusterError if no worker starts within start_timeout_s and a margin. If the number of workers is fixed, Ray itself
    raises an error earlier.
    """
    stop_sent = has_started = False
    worker_nodes: tuple[str, ...] = ()
    began = time.monotonic()
    next_waiting_line, next_node_check = began + WAITING_LINE_S, began + NODE_CHECK_S
    lines = mailbox.next_lines.remote()
    while fit.is_alive():
        ready, _ = ray.wait([lines], timeout=POLL_S)
        if ready:
            has_started = True
            for line in ray.get(lines):
                say(line)
            lines = mailbox.next_lines.remote()
        if time.monotonic() > next_node_check:
            next_node_check = time.monotonic() + NODE_CHECK_S
            worker_nodes, world_size = ray.get(mailbox.group.remote())
            reason = None if stop_sent else watch.reason_to_pause(worker_nodes, world_size=world_size)
            if reason is not None:
                say(f"{reason}; the workers write a checkpoint")
                stop_sent = True
                mailbox.request_stop.remote()
            if not worker_nodes and time.monotonic() > began + config.start_timeout_s + WAITING_LINE_S:
                raise ClusterError(
                    f"Ray started no worker in start_timeout_s={config.start_timeout_s}: "
                    f"{describe_waiting(config, ray.available_resources())}{CONTINUE_HINT}"
                )
        if stop and not stop_sent:
            stop_sent = True
            mailbox.request_stop.remote()
        if not has_started and time.monotonic() > next_waiting_line:
            next_waiting_line = time.monotonic() + WAITING_LINE_S
            say(describe_waiting(config, ray.available_resources()))
    mailbox.flush.remote()
    for line in ray.get(lines):
        say(line)
    worker_nodes, _ = ray.get(mailbox.group.remote())
    return worker_nodes


def raise_lost(error: Exception) -> None:
    """Raise a WorkerError that names the lost workers, if `error` is Ray's report of lost workers. Otherwise do
    nothing."""
    failures = error.worker_failures if isinstance(error, WorkerGroupError) else {}
    causes = {rank: getattr(failure, "health_check_failure", failure) for rank, failure in failures.items()}
    lost = {rank: cause for rank, cause in causes.items() if isinstance(cause, RayActorError)}
    if lost:
        who = f"worker{'s' * (len(lost) > 1)} {', '.join(map(str, sorted(lost)))} {'were' if len(lost) > 1 else 'was'}"
        reason = " ".join(str(lost[min(lost)]).split())
        raise WorkerError(f"{who} lost: {reason}{CONTINUE_HINT}") from error


@contextmanager
def raise_cluster_error_if_lost() -> Iterator[None]:
    """Raise ClusterError if the `with` block raises a RayError, which means that Ray or the driver's node was lost."""
    try:
        yield
    except RayError as error:
        reason = " ".join(str(error).split())
        raise ClusterError(f"the connection to Ray was lost: {reason}{CONTINUE_HINT}") from error


def describe_waiting(config: TrainerConfig, free: Mapping[str, float]) -> str:
    """Return a line that says what Ray waits for. `free` maps a resource to its unused amount."""
    ((resource, amount),) = resources_of(config).items()
    number = config.workers if config.min_workers is None else f"{config.min_workers} to {config.workers}"
    needed = f"{number} workers of {amount:g} {resource} each"
    return f"waiting for Ray to start {needed}: {free.get(resource, 0.0):g} {resource} free now"


class _FitThread(threading.Thread):
    """Runs TorchTrainer.fit() in a thread, while the main thread handles signals and shows the workers' lines.

    If fit() ran in the main thread, Ray would handle SIGINT itself and abort the workers in the middle of a step.
    """

    def __init__(self, trainer: TorchTrainer) -> None:
        super().__init__(name="fit", daemon=True)
        self._trainer = trainer
        self.outcome: object = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.outcome = self._trainer.fit().return_value
        except Exception as error:
            self.error = error


def _train(task: Mapping[str, Any]) -> Outcome:
    context = ray.train.get_context()
    place = WorkerPlace(
        context.get_world_rank(), context.get_world_size(), context.get_local_rank(), context.get_local_world_size()
    )
    mailbox, config = task["mailbox"], task["config"]
    mailbox.join.remote(ray.get_runtime_context().get_node_id(), place.world_size)
    try:
        outcome = work(
            config,
            place=place,
            link=MailboxLink(mailbox),
            device=ray.train.torch.get_device(),
            reader="ray",
            lease_token=task["lease_token"],
        )
    except Exception as error:
        ray.get(mailbox.fail.remote(WorkerFailure.of(error, rank=place.rank)))
        raise
    ray.get(mailbox.flush.remote())  # wait: then all earlier lines of this worker have arrived
    return outcome


def cluster_resources() -> dict[str, float]:
    """Return the amount of each logical resource, by name, after the cluster has grown to its limits. Call this only
    while connected to Ray."""
    return elastic.largest_resources(
        ray.cluster_resources(), config=ray._private.state.state.get_max_resources_from_cluster_config()
    )
