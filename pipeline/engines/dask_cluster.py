"""Runs a Beam graph on a Dask cluster, with a time limit for every wait.

If a worker is lost, another worker takes over its tasks. The ledger (pipeline/runtime/ledger.py) records finished work,
so finished work is not done again.
"""

# ruff: noqa: E402

from __future__ import annotations

import fcntl
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from traceback import format_exc
from typing import Any

from pipeline import storage
from pipeline.engines import beam_worker
from pipeline.units import count_of

beam_worker.silence_beam()

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from distributed import Client, KilledWorker

from pipeline.console import Say
from pipeline.engines.cluster import DaskCluster
from pipeline.engines.dask_runner import BuildRunner, RunContext, count_working
from pipeline.errors import PassingError
from pipeline.runtime import choose_kept, leave_failure
from pipeline.versions import describe_code

_LOGGER = logging.getLogger(__name__)
_PARTITIONS_A_WORKER = 8
"""The list of splits (parts of the input) is divided into this many partitions for each worker. More than one is needed
so that workers end at about the same time."""
_LEAST_PARTITIONS = 16
_CONNECT_S = 30.0
_ANSWER_S = 120.0
"""A scheduler that does not answer for this long counts as lost."""
_POLL_S, _LOOK_S = 0.1, 2.0
_SAY_AFTER_S, _SAY_EVERY_S = 5.0, 60.0
_LET_GO_S = 30.0


class LostSchedulerError(PassingError):
    """The Dask scheduler is gone, and with it the state of the running graph."""


def run_on_dask(
    lay_out: Callable[[beam.Pipeline], None],
    *,
    cluster: DaskCluster,
    results_folder: str,
    held: str,
    beam_options: Sequence[str],
) -> None:
    """Run the graph that `lay_out` adds to a pipeline. Another worker takes over the tasks of a lost worker.

    On any error, a file in `results_folder` tells running tasks to stop, and this function waits until they have
    stopped. Each task holds a lock on the folder `held` while it runs. Raises the error of a task, or PassingError if
    the workers or the scheduler are gone for good.
    """
    try:
        for attempt in range(1, cluster.attempts + 1):
            try:
                _run_once(lay_out, cluster=cluster, results_folder=results_folder, held=held, beam_options=beam_options)
                return
            except LostSchedulerError as error:
                if attempt == cluster.attempts:
                    raise
                _LOGGER.warning("warning: %s; restarting it and continuing from finished work", error)
    except BaseException as error:
        leave_failure(
            results_folder,
            message=str(error),
            details=format_exc(),
            is_users=isinstance(error, (ValueError, OSError)),
            keeps=choose_kept(error),
        )
        if storage.is_url(results_folder):
            _wait_until_idle(results_folder, cluster=cluster)
        else:
            _wait_until_free(held)
        raise


def _run_once(
    lay_out: Callable[[beam.Pipeline], None],
    *,
    cluster: DaskCluster,
    results_folder: str,
    held: str,
    beam_options: Sequence[str],
) -> None:
    context = RunContext(uuid.uuid4().hex, describe_code(), results_folder, held)
    partitions = count_partitions(cluster.workers)
    with connect(cluster) as client:
        runner = BuildRunner(client, context=context, partitions=partitions)
        pipeline = beam.Pipeline(runner=runner, options=PipelineOptions(list(beam_options)))
        lay_out(pipeline)
        result = pipeline.run(test_runner_api=False)  # a copy through Beam's protocol would lose CombineGlobally
        try:
            _attend(client, result.futures, cluster=cluster)
        finally:
            with suppress(Exception):
                client.cancel(result.futures, force=True)


def count_partitions(workers: int) -> int:
    """Return the number of parts into which a list of splits (parts of the input) or buckets (groups of documents) is
    divided. It grows with the number of `workers`. Each part becomes one Dask task."""
    return max(_LEAST_PARTITIONS, _PARTITIONS_A_WORKER * workers)


@contextmanager
def connect(cluster: DaskCluster) -> Iterator[Client]:
    """Yield a client of the cluster's scheduler. Raises LostSchedulerError if the scheduler does not answer."""
    for name in ("distributed", "distributed.client"):  # each has its own level; errors are also raised
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        client = Client(cluster.address, security=cluster.security, timeout=_CONNECT_S)
    except (OSError, ValueError) as error:
        raise LostSchedulerError(f"{cluster.name}: no Dask scheduler answers at {cluster.address} ({error})") from error
    try:
        yield client
    finally:
        with suppress(Exception):
            client.close(timeout=5)


def _attend(client: Client, futures: Sequence[Any], *, cluster: DaskCluster) -> None:
    """Wait until `futures`, the results of the graph's tasks, are done. Raises a task's error, PassingError if the
    cluster is without workers for cluster.wait_s seconds, or LostSchedulerError if the scheduler is gone."""
    look, alone_since = time.monotonic(), None
    while not all(future.done() for future in futures):
        time.sleep(_POLL_S)
        if time.monotonic() < look:
            continue
        look = time.monotonic() + _LOOK_S
        if count_workers(client, cluster=cluster):
            alone_since = None
        else:
            alone_since = alone_since or time.monotonic()
            if time.monotonic() - alone_since > cluster.wait_s:
                raise PassingError(
                    f"{cluster.name}: all workers are gone and none has come back in {cluster.wait_s:g} s; start "
                    "workers and run the same command again: it continues from finished work"
                )
    for future in futures:
        if future.status == "error":
            raise _explain(future.exception())
        if future.status != "finished":
            raise LostSchedulerError(f"{cluster.name}: the connection to its Dask scheduler was lost")


def count_workers(client: Client, *, cluster: DaskCluster) -> int:
    """Return the number of workers connected now. Raises LostSchedulerError if the scheduler does not answer."""
    try:
        return len(client.sync(client.scheduler.ncores, callback_timeout=_ANSWER_S))
    except (OSError, AttributeError) as error:  # AttributeError: the client has given up
        raise LostSchedulerError(f"{cluster.name}: the connection to its Dask scheduler was lost ({error})") from error


def _explain(error: BaseException) -> BaseException:
    """Return the error to show to the user for `error`, which a task has raised.

    If `error` says that workers were killed, or that this package is missing on the scheduler or the workers, return a
    PassingError that says what to do. Otherwise return `error` itself.
    """
    if isinstance(error, KilledWorker):
        return PassingError(
            f"{error.allowed_failures + 1} workers were lost one after another over the same piece of work (out of "
            "memory?); give workers more memory and run the same command again: it continues from finished work"
        )
    if isinstance(error, ModuleNotFoundError) or "No module named" in str(error):
        return PassingError(
            f"this package is not installed on the Dask scheduler and its workers ({error}); install it there, see "
            "docs/how-to/engines.md"
        )
    return error


def _wait_until_free(folder: str) -> None:
    """After an error, wait until no task of the build holds a lock on the folder, but at most _LET_GO_S seconds. If
    `folder` is "", return at once."""
    deadline = time.monotonic() + _LET_GO_S
    while folder and time.monotonic() < deadline:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(_POLL_S)
        except OSError:  # the file system has no locks
            return
        finally:
            os.close(descriptor)


def _wait_until_idle(results_folder: str, *, cluster: DaskCluster) -> None:
    """After an error, wait until no worker that can be reached runs a task of this build, but at most _LET_GO_S
    seconds.

    This is for builds whose `results_folder` is on an object store, which has no locks.
    """
    deadline = time.monotonic() + _LET_GO_S
    with suppress(Exception), connect(cluster) as client:
        working = True
        while working and (left := deadline - time.monotonic()) > 0:
            time.sleep(_POLL_S)  # also lets a recent cancellation reach the workers
            counts = client.sync(client.run, count_working, results_folder, on_error="ignore", callback_timeout=left)
            working = any(counts.values())


def find_workers(address: str, *, wait_s: float, say: Say) -> DaskCluster:
    """Return the cluster of the scheduler at `address` once the scheduler has a worker. Raises PassingError if the
    scheduler does not answer, or if no worker connects within `wait_s` seconds."""
    cluster = DaskCluster(address, name=f"dask.address={address}", workers=1, wait_s=wait_s)
    with connect(cluster) as client:
        await_worker(client, cluster=cluster, waiting_for=lambda: "start workers with `dask worker`", say=say)
        threads = client.nthreads()
    if not threads:
        raise PassingError(f"{cluster.name}: its last worker has just left; start workers with `dask worker`")
    say(f"Dask at {address}: {count_of(len(threads), 'worker')}")
    if max(threads.values()) > 1:
        say(
            f"warning: a Dask worker has {max(threads.values())} threads, but only one works at a time, since the "
            "pipeline is bound by Python; start one worker per core with --nthreads 1"
        )
    return replace(cluster, workers=sum(threads.values()))


def await_worker(client: Client, *, cluster: DaskCluster, waiting_for: Callable[[], str], say: Say) -> None:
    """Wait until the scheduler has a worker. Raises PassingError if it has none after cluster.wait_s seconds.

    `waiting_for` returns a text that says what must happen before a worker can connect. `say` shows this text to the
    user after 5 s, and then every minute.
    """
    began = time.monotonic()
    tell = began + _SAY_AFTER_S
    while not count_workers(client, cluster=cluster):
        now = time.monotonic()
        if now - began > cluster.wait_s:
            raise PassingError(f"{cluster.name}: no worker in {cluster.wait_s:g} s: {waiting_for()}")
        if now > tell:
            tell = now + _SAY_EVERY_S
            say(f"{cluster.name}: no worker yet: {waiting_for()}")
        time.sleep(_POLL_S)
