"""Runs a Beam graph on an engine: Beam's FnApiRunner with one process per worker, a Dask cluster, or any Beam runner.

Beam turns an error in a worker into a RuntimeError with a traceback as text. This module raises an error with the
original message instead.
"""

# ruff: noqa: E402

from __future__ import annotations

import difflib
import logging
import os
import queue
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from traceback import format_exc

from pipeline import storage
from pipeline.engines import beam_worker

beam_worker.silence_beam()

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from pipeline.engines.beam_worker import python_path
from pipeline.engines.cluster import DaskCluster
from pipeline.engines.loopback import listening_here_only
from pipeline.errors import Keeps
from pipeline.runtime import FAILURE_NAME, leave_failure, names_runner, read_failure
from pipeline.signals import raise_caught

_LOGGER = logging.getLogger(__name__)
_WORKER_THREAD = "run_worker"
"""Beam's name for the thread that waits for a worker process and raises if it ends with an error."""
_LOST_WORKER = (
    "a worker process ended without an error message (killed, or out of memory?); run the same command again, with "
    "fewer workers if memory was short"
)
_LAST_WORDS_S = 10.0
_LOOK_EVERY_S = 0.2
"""Longest time until the main thread of a build handles a signal."""
_IGNORE_INTERRUPTS = "trap '' INT"
"""Shell command that makes a worker ignore Ctrl-C, which reaches every process of a terminal. The main process ends the
workers instead."""


class WorkerError(ValueError):
    """An error in a worker that the user can fix. The message is that of the original error, and `details` is the
    original traceback."""

    def __init__(self, message: str, *, details: str, keeps: Keeps) -> None:
        super().__init__(message)
        self.details, self.keeps = details, keeps


def run_on_engine(
    lay_out: Callable[[beam.Pipeline], None],
    *,
    results_folder: str,
    held: str = "",
    temporary: str = "",
    workers: int,
    beam_options: Sequence[str],
    cluster: DaskCluster | None = None,
) -> None:
    """Run the graph that `lay_out` adds to a pipeline. If a worker fails, the worker writes the reason to the folder
    `results_folder`.

    If `cluster` is given, Dask runs the graph. Otherwise, if an option in `beam_options` names a runner (--runner),
    that runner is used. Otherwise FnApiRunner is used, with one process for each worker (if `workers` is 1, in this
    process). Each worker locks the folder `held`, if given, as long as the worker lives. Local processes put temporary
    files into the folder `temporary`, if given; the caller removes these files.

    Raises WorkerError for a ValueError or OSError in a worker, and RuntimeError for a bug.
    """
    if cluster is not None:
        from pipeline.engines.dask_cluster import run_on_dask  # Dask need not be installed for other engines

        with _failures_explained(results_folder):
            run_on_dask(lay_out, cluster=cluster, results_folder=results_folder, held=held, beam_options=beam_options)
        return
    options = PipelineOptions([f"--direct_num_workers={workers}", *beam_options])
    runner, in_processes = None, False
    if not names_runner(beam_options):
        in_processes = workers > 1
        command = f"{_IGNORE_INTERRUPTS}; exec {shlex.quote(sys.executable)} -m {beam_worker.__name__}"
        environment = SubprocessSDKEnvironment.from_command_string(command) if in_processes else None
        runner = FnApiRunner(default_environment=environment)
    pipeline = beam.Pipeline(runner=runner, options=options)
    lay_out(pipeline)
    variables = {
        "PYTHONPATH": python_path(),
        beam_worker.ABORT_VARIABLE: storage.join(results_folder, FAILURE_NAME),
        beam_worker.HELD_VARIABLE: held,
        beam_worker.BUILD_VARIABLE: str(os.getpid()),
    }
    if in_processes and temporary:
        variables["TMPDIR"] = temporary
    with (
        _environment(variables),
        open(os.devnull, "w") as null,
        _failures_explained(results_folder),
        redirect_stderr(null),
    ):
        if in_processes:  # Beam also prints tracebacks of what it raises, to stderr
            with listening_here_only():
                _run_watching_workers(pipeline, results_folder=results_folder)
        else:
            pipeline.run().wait_until_finish()


@contextmanager
def _failures_explained(results_folder: str) -> Iterator[None]:
    """If the block fails and a worker has written its error to `results_folder`, raise that error. Otherwise let the
    error of the block (the engine's error) pass unchanged."""
    try:
        yield
    except Exception as error:
        raise_caught()
        failure = read_failure(results_folder)
        if failure is None:
            raise
        if failure.is_users:
            raise WorkerError(failure.message, details=failure.details, keeps=failure.keeps) from error
        raise RuntimeError(f"a worker failed:\n{failure.details}") from error


def _run_watching_workers(pipeline: beam.Pipeline, *, results_folder: str) -> None:
    """Run the pipeline in a thread. Raises the pipeline's error, or an error if a worker process is lost.

    The thread is needed because FnApiRunner would wait forever for a lost worker. When this function returns, the
    worker processes are gone.
    """
    outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run_pipeline() -> None:
        try:
            pipeline.run().wait_until_finish()
            outcome.put(None)
        except BaseException as error:
            outcome.put(error)

    def note_lost_worker(arguments: threading.ExceptHookArgs) -> None:
        if arguments.thread is not None and arguments.thread.name == _WORKER_THREAD:
            leave_failure(results_folder, message=_LOST_WORKER, details=str(arguments.exc_value), is_users=True)
            outcome.put(arguments.exc_value)

    def keep_quiet(arguments: threading.ExceptHookArgs) -> None:
        if arguments.thread is None or arguments.thread not in beams:
            before(arguments)

    before, threading.excepthook = threading.excepthook, note_lost_worker
    others, beams, after = set(threading.enumerate()), set[threading.Thread](), before
    try:
        threading.Thread(target=run_pipeline, name="beam-runner", daemon=True).start()
        error = _wait_for(outcome)
        if error is not None:
            raise error
    except BaseException as error:
        # This ends the other workers.
        leave_failure(results_folder, message=str(error), details=format_exc(), is_users=False)
        for thread in threading.enumerate():
            if thread.name == _WORKER_THREAD:
                thread.join(timeout=_LAST_WORDS_S)
        beams, after = set(threading.enumerate()) - others, keep_quiet  # these threads end later, with more errors
        raise
    finally:
        threading.excepthook = after


def _wait_for(outcome: queue.SimpleQueue[BaseException | None]) -> BaseException | None:
    """Wait for the runner's thread, which puts its error, or None if it succeeded, into the queue `outcome`. Return
    what the thread put there.

    The function polls, because a signal would not end a wait if it arrives just before the wait or in another thread.
    """
    while True:
        try:
            return outcome.get(timeout=_LOOK_EVERY_S)
        except queue.Empty:
            raise_caught()


def note_unknown(beam_options: Sequence[str]) -> None:
    """Warn of options that Beam does not know and would silently drop. This is only a warning, because the chosen
    runner may know these options."""
    known = set(PipelineOptions([]).get_all_options())
    given = set(PipelineOptions(list(beam_options)).get_all_options(retain_unknown_options=True))
    for name in sorted(given - known):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean --{near[0]}?" if near else ""
        _LOGGER.warning("warning: Beam does not know the option --%s%s", name, hint)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
