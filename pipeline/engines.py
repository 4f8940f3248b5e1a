"""Runs the graph on an engine: by default Beam's FnApiRunner with one process a worker, otherwise any Beam runner.

Beam turns an error in a worker into a RuntimeError that holds a traceback as text; here it becomes what it was.
"""

# ruff: noqa: E402

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from traceback import format_exc

from pipeline import beam_worker
from pipeline.documents import Split
from pipeline.tally import BuildResult, ReadTally, results_from_json

beam_worker.silence_beam()

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from pipeline.transforms import ERROR_NAME, RESULT_NAME, Job, build_graph

_ROOT = str(Path(__file__).resolve().parent.parent)
_LOST_WORKER = "Channel closed prematurely"
"""What FnApiRunner says where a worker process is gone."""


class WorkerError(ValueError):
    """An error of the user's in a worker: the message is the original one, `details` its traceback."""

    def __init__(self, message: str, *, details: str) -> None:
        super().__init__(message)
        self.details = details


def run_graph(
    splits: Sequence[Split], *, job: Job, workers: int, beam_options: Sequence[str]
) -> tuple[BuildResult, ReadTally]:
    """Build every shard. Raises WorkerError for a ValueError or OSError in a worker, else what the engine raises."""
    left = Path(job.exchange) / ERROR_NAME
    pipeline = _new_pipeline(workers, beam_options=beam_options)
    build_graph(pipeline, splits=splits, job=job)
    with (
        _environment(PYTHONPATH=_python_path(), **{beam_worker.ABORT_VARIABLE: str(left)}),
        open(os.devnull, "w") as null,
    ):
        try:
            with redirect_stderr(null):  # Beam prints tracebacks of what it raises as well
                pipeline.run().wait_until_finish()
        except Exception as error:
            if left.exists():
                tree = json.loads(left.read_text(encoding="ascii"))
                raise WorkerError(tree["message"], details=tree["traceback"]) from error
            if _LOST_WORKER in str(error):
                raise WorkerError(
                    "a worker process ended without a word (killed, or out of memory?); "
                    f"run again, with fewer workers than {workers} if memory was short",
                    details=format_exc(),
                ) from error
            raise
    return results_from_json((Path(job.exchange) / RESULT_NAME).read_text(encoding="ascii"))


def _new_pipeline(workers: int, *, beam_options: Sequence[str]) -> beam.Pipeline:
    """On the runner that the options name, else on FnApiRunner with `workers` processes (one: in this process)."""
    if any(option == "--runner" or option.startswith("--runner=") for option in beam_options):
        return beam.Pipeline(options=PipelineOptions(list(beam_options)))
    environment = None
    if workers > 1:
        command = f"exec {shlex.quote(sys.executable)} -m {beam_worker.__name__}"
        environment = SubprocessSDKEnvironment.from_command_string(command)
    options = PipelineOptions([f"--direct_num_workers={workers}", *beam_options])
    return beam.Pipeline(runner=FnApiRunner(default_environment=environment), options=options)


def _python_path() -> str:
    """Worker processes import `pipeline` from where this one has it, installed or not."""
    before = os.environ.get("PYTHONPATH")
    return _ROOT if not before else f"{_ROOT}{os.pathsep}{before}"


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
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
