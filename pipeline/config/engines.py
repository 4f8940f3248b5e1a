"""Settings of the engines on which a build may run. None of them changes the data."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from pipeline.settings import Settings

EngineName: TypeAlias = Literal["local", "dask", "ray"]

KEYS = ("engine",)
"""The settings that commands accept both as KEY=VALUE and as --KEY VALUE."""
FLAGS = ("--traceback", "--dry-run", "--price=")
"""Flags of a build's command line. A flag that takes a value ends with `=`."""

Seconds = Annotated[float, Field(gt=0.0)]


class DaskConfig(Settings):
    """The settings of `engine: dask`, a Dask cluster."""

    address: str | None = None
    """Address of the scheduler, such as tcp://scheduler:8786. Scheduler and workers need this package and the storage
    of the output."""
    worker_wait_s: Seconds = 300.0
    """Seconds to wait for a first worker, or for a new one after all were lost, before the build fails."""


class RayConfig(Settings):
    """The settings of `engine: ray`. The environment variable RAY_ADDRESS names the Ray cluster; in submitted jobs, Ray
    sets this variable. If RAY_ADDRESS is unset, Ray starts on this machine."""

    resource: str | None = None
    """Name of a custom Ray resource that only the preprocessing nodes have, one unit per CPU. Each worker reserves one
    unit for each CPU that it reserves, so it never runs on (or starts) other nodes. null: any node with CPUs."""
    cpus_per_worker: Annotated[float, Field(gt=0.0)] = 1.0
    """Logical CPUs that each worker reserves."""
    worker_wait_s: Seconds = 900.0
    """Seconds to wait for a first worker (a node may have to boot), or for a new one after all were lost, before the
    build fails."""
