"""Many Dask workers in one process, whose steps of a build return at once what a real step returned.

Usage: python -m bench.cluster_workers ADDRESS NUMBER RESULTS FOLDER   (started by bench.cluster)
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
"""What Dask does in each worker all the time, done seldom: 50 measurements of delays a second, and two of the process,
which list its open files. With 256 workers in a process, even one a minute took up to 80% of its time."""


def main(arguments: Sequence[str]) -> None:
    """Run until the process is killed."""
    address, number, results, folder = arguments
    leave_out_work(Path(results).read_bytes())
    asyncio.run(serve_workers(address, number=int(number), folder=folder))


async def serve_workers(address: str, *, number: int, folder: str) -> None:
    """Run `number` Dask workers of one thread in this process. `folder` is for their temporary files."""
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
    """Replace what the steps of a build do in this process by stub_steps(packed)."""
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
    """Return a function for each step of the graph, by the name that the graph has for the step's work. The functions
    return the results of StepResults, which is `packed` (pickled): each time new objects, as if just received."""
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
    """Return the name of a spill file with another random suffix."""
    return f"{name.rpartition('-')[0]}-{os.urandom(8).hex()}.arrow"


if __name__ == "__main__":
    main(sys.argv[1:])
