"""Where the workers of a build are: processes of this machine, a Dask cluster, or a Ray cluster that gets one.

Dask and Ray are imported where an engine needs them, so that a local build needs neither.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from pipeline.config import PipelineConfig
from pipeline.console import Say
from pipeline.engines.cluster import DaskCluster
from pipeline.runtime import ProgressPrinter
from pipeline.settings import ConfigError
from pipeline.units import count_of

_PACKAGES = {"dask": ("dask", "distributed"), "ray": ("cryptography", "dask", "distributed", "ray")}


def check_engine(config: PipelineConfig, *, beam_options: Sequence[str]) -> None:
    """Refuse an engine whose packages or address are missing, or beside which another runner is named."""
    if config.engine == "local":
        return
    missing = [name for name in _PACKAGES[config.engine] if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"engine={config.engine} needs {', '.join(missing)}, not installed here; install the package with "
            f"pip install '.[pipeline,{config.engine}]'"
        )
    if config.engine == "dask" and not config.dask.address:
        raise ConfigError("engine=dask needs dask.address, the address of the scheduler, such as tcp://scheduler:8786")
    runners = [option for option in beam_options if option.partition("=")[0] in ("--runner", "--dask_client_address")]
    if runners:
        raise ConfigError(f"engine={config.engine} says where the workers are, and so does {runners[0]}; remove one")


@contextmanager
def open_cluster(config: PipelineConfig, *, most: int, say: Say) -> Iterator[DaskCluster | None]:
    """The cluster of the config's engine, with at least one worker; None for processes of this machine.

    `most`: pieces of work, more workers than which are no use. What was started for the build is ended again. Raises
    ValueError where no worker comes in time.
    """
    if config.engine == "local":
        yield None
    elif config.engine == "dask":
        from pipeline.engines.dask_cluster import find_workers

        assert config.dask.address is not None  # check_engine
        cluster = find_workers(config.dask.address, wait_s=config.dask.worker_wait_s, say=say)
        if config.workers is not None:
            say(f"warning: workers={config.workers} is not used; the Dask cluster has the workers it was started with")
        yield cluster
    else:
        from pipeline.engines.ray_cluster import start_workers

        with start_workers(config.ray, workers=config.workers, most=most, say=say) as cluster:
            yield cluster


@contextmanager
def watched(progress: ProgressPrinter, *, config: PipelineConfig) -> Iterator[None]:
    """Tell Prometheus what is done, where the engine is Ray."""
    if config.engine != "ray":
        yield
        return
    from pipeline.engines.prometheus import serve_progress

    with serve_progress(progress, output=config.output):
        yield


def choose_workers(config: PipelineConfig, *, say: Say) -> int:
    """Number of local worker processes; more than there are cores is allowed, with a warning."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if config.engine == "local" and config.workers is not None and config.workers > cores:
        say(f"warning: workers={config.workers} is more than the {count_of(cores, 'core')} of this machine")
    return config.workers or cores
