"""Settings of the engines that a build may run on; none of them ever changes the data."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from pipeline.settings import Settings

EngineName: TypeAlias = Literal["local", "dask", "ray"]

KEYS = ("engine",)
"""Settings that commands also take as --KEY VALUE."""
FLAGS = ("--traceback", "--dry-run", "--price=")
"""Of a build's command line; with `=` where one takes a value."""

Seconds = Annotated[float, Field(gt=0.0)]


class DaskConfig(Settings):
    """engine: dask."""

    address: str | None = None
    """Address of the scheduler, such as tcp://scheduler:8786. Scheduler and workers need this package and the storage
    of the output."""
    worker_wait_s: Seconds = 300.0
    """How long to wait for a first worker, and for another one where all were lost, before the build fails."""


class RayConfig(Settings):
    """engine: ray. The cluster is the one that RAY_ADDRESS names (a submitted job has it), else one on this machine."""

    resource: str | None = None
    """Custom resource of the nodes that preprocess, one for each of their CPUs: each worker takes as much of it as of
    CPUs, so that it never runs on (nor wakes) other nodes. null: any node with CPUs."""
    cpus_per_worker: Annotated[float, Field(gt=0.0)] = 1.0
    """Logical CPUs that each worker reserves."""
    worker_wait_s: Seconds = 900.0
    """How long to wait for a first worker (a node may have to boot), and for another one where all were lost, before
    the build fails."""
