"""Runs many Dask workers in one process. The steps of a build do no work here, but return the results of earlier steps.

Usage: python -m bench.cluster_workers ADDRESS NUMBER RESULTS FOLDER (bench.cluster starts this command)
"""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pipeline.documents import Split
from pipeline.runtime import WorkReport
from pipeline.shuffle import BucketCount, Extent, Join, SpillFile
from pipeline.tally import BuildResult

if TYPE_CHECKING:
    from bench.step_results import StepResults
    from pipeline.build.read_split import SplitResult

_WORKER_SETTINGS = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "30s",
    "distributed.admin.system-monitor.interval": "1h",
    "distributed.worker.use-file-locking": False,
}
"""Settings that make Dask do its measurements rarely. By default each worker measures its delay 50 times a second, and
measures its process, which lists the open files, twice a second. With 256 workers in a process, even one such
measurement per minute took up to 80% of the process's time."""


def main(arguments: Sequence[str]) -> None:
    """Run the workers until the process is killed."""
    address, number, results, folder = arguments
    leave_out_work(Path(results).read_bytes())
    asyncio.run(serve_workers(address, number=int(number), folder=folder))


async def serve_workers(address: str, *, number: int, folder: str) -> None:
    """Run `number` Dask workers of one thread each in this process. `folder` is for the workers' temporary files."""
    import dask
    from distributed import Worker

    dask.config.set(_WORKER_SETTINGS)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    async with AsyncExitStack() as stack:
        for _ in range(number):
            worker = Worker(
                address,
                nthreads=1,
                memory_limit=0,
                dashboard=False,
                silence_logs=50,
                local_directory=folder,
            )
            await stack.enter_async_context(worker)
        await asyncio.Event().wait()


def leave_out_work(packed: bytes) -> None:
    """Replace the functions that do a build's steps in this process by those of stub_steps. `packed` is a pickled
    StepResults."""
    from pipeline.build import graph
    from pipeline.engines import dask_runner, local  # noqa: F401 (first, since it makes Beam quiet)

    dask_runner.describe_code = cache(dask_runner.describe_code)  # a worker of a cluster calls it once a process
    stubs = {
        **stub_steps(packed),
        "WordTokenizer": SimpleNamespace(from_path=lambda *_, **__: None),
        "split_key": lambda split, context: split.path,
        "refuse_empty_source": lambda *_, **__: None,
        "_report_work": lambda *_, **__: nullcontext(WorkReport(None, stage="read")),
    }
    for name, stub in stubs.items():
        assert hasattr(graph, name)
        setattr(graph, name, stub)


def stub_steps(packed: bytes) -> dict[str, Any]:
    """Return a function for each step of a build that does no work but returns the result that `packed` has for the
    step.

    The keys are the names of the functions in pipeline.build.graph that do the steps. `packed` is a pickled
    StepResults. Each call returns new objects, as if they had just arrived from another process.
    """
    known: StepResults = pickle.loads(packed)
    split, shard = pickle.dumps(known.split), pickle.dumps(known.shard)

    def read_nothing(split_: Split, **_: Any) -> SplitResult:
        result: SplitResult = pickle.loads(split)
        (file,) = result.spills
        return replace(result, spills=(replace(file, name=_new_name(file.name), key=crc32(split_.path.encode())),))

    def join_nothing(join: Join, *, files: Sequence[SpillFile], **_: Any) -> SpillFile:
        own = sorted((file for file in files if file.key % join.parts == join.part), key=lambda file: file.key)
        assert known.joined is not None
        assert own
        return replace(known.joined, name=_new_name(known.joined.name), buckets=join.buckets)

    def find_nothing(files: Sequence[SpillFile], *, folder: str, bucket: int) -> list[Extent]:
        chosen = [file for file in files if 0 <= file.buckets.row_of(bucket) < file.buckets.rows]
        return [replace(extent, path=f"{folder}/{file.name}") for file in chosen for extent in known.extents]

    def count_nothing(bucket: int, extents: Sequence[Extent], **_: Any) -> BucketCount:
        assert extents
        return replace(known.count, bucket=bucket)

    def write_nothing(extents: Sequence[Extent], *, name: str, **_: Any) -> BuildResult:
        result: BuildResult = pickle.loads(shard)
        (written,) = result.shards
        return replace(result, shards=[written.model_copy(update={"path": name})])

    return {
        "spill_split": read_nothing,
        "join_spills": join_nothing,
        "find_extents": find_nothing,
        "count_bucket": count_nothing,
        "write_shard": write_nothing,
    }


def _new_name(name: str) -> str:
    """Return the name of a spill file with its random suffix replaced by a new one."""
    return f"{name.rpartition('-')[0]}-{os.urandom(8).hex()}.arrow"


if __name__ == "__main__":
    main(sys.argv[1:])
