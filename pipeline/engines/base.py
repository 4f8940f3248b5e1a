"""Opens the engine that runs a build: processes on this machine, a Dask cluster, or a Dask cluster inside Ray.

Dask and Ray are imported only for their engines, so a local build needs neither.
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
    """Raise ConfigError if the engine's packages or address are missing, or if Beam options choose a runner although
    the config chooses an engine other than local."""
    if config.engine == "local":
        return
    missing = [name for name in _PACKAGES[config.engine] if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"engine={config.engine} needs {', '.join(missing)}, not installed here; install this package with "
            f"pip install '.[pipeline,{config.engine}]'"
        )
    if config.engine == "dask" and not config.dask.address:
        raise ConfigError("engine=dask needs dask.address; set it to the scheduler's, such as tcp://scheduler:8786")
    runners = [option for option in beam_options if option.partition("=")[0] in ("--runner", "--dask_client_address")]
    if runners:
        raise ConfigError(f"engine={config.engine} and the option {runners[0]} both choose a runner; remove one")


@contextmanager
def open_cluster(config: PipelineConfig, *, most: int, say: Say) -> Iterator[DaskCluster | None]:
    """Yield the Dask cluster that the config's engine uses, once it has at least one worker. If the engine is local,
    yield None.

    `most` is the largest useful number of workers: with more workers, some would have no split or shard to work on. On
    exit, whatever was started here is stopped. Raises ValueError if no worker connects in time.
    """
    if config.engine == "local":
        yield None
    elif config.engine == "dask":
        from pipeline.engines.dask_cluster import find_workers

        assert config.dask.address is not None  # checked by check_engine
        cluster = find_workers(config.dask.address, wait_s=config.dask.worker_wait_s, say=say)
        if config.workers is not None:
            say(f"warning: workers={config.workers} has no effect with engine=dask; the cluster decides; remove it")
        yield cluster
    else:
        from pipeline.engines.ray_cluster import start_workers

        with start_workers(config.ray, workers=config.workers, most=most, say=say) as cluster:
            yield cluster


@contextmanager
def watched(progress: ProgressPrinter, *, config: PipelineConfig) -> Iterator[None]:
    """Report `progress` to Prometheus while the block runs, if the engine is Ray. Do nothing for other engines."""
    if config.engine != "ray":
        yield
        return
    from pipeline.engines.prometheus import serve_progress

    with serve_progress(progress, output=config.output):
        yield


def choose_workers(config: PipelineConfig, *, say: Say) -> int:
    """Return the config's number of workers, or the number of this machine's cores if the config does not set it. Warn
    if the engine is local and the config sets more workers than cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if config.engine == "local" and config.workers is not None and config.workers > cores:
        say(f"warning: workers={config.workers} exceeds the {count_of(cores, 'core')} of this machine")
    return config.workers or cores
