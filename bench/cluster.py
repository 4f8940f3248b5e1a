"""A build on a cluster of 1,024 workers, with its real graph and a real Dask scheduler, but without the work.

Usage: python -m bench.cluster [--workers 1024] [--splits 10000] [--text-gb 1000] [--hosts 4]
The workers are Dask's, many in a process. Each step of the graph returns at once what it would return for real input:
as many bytes as measured in a build of Wikipedia text. What is measured is what a cluster adds to the work: the time
to plan, the time of all tasks together, and the highest memory of the main process and of the scheduler.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import date
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil

from bench.processes import ROOT, describe_machine, peak_bytes
from pipeline.config import PipelineConfig
from pipeline.dataset import Shard
from pipeline.documents import Split
from pipeline.runtime import EXCHANGE, PROGRESS, SPILLS, BuildContext, WorkReport
from pipeline.shuffle import (
    BucketCount,
    Extent,
    Join,
    SpillFile,
    Table,
    choose_buckets,
    divide_buckets,
)
from pipeline.tally import BuildResult, Example, ReadTally, RowTally
from pipeline.versions import describe_code

OUT = ROOT / "bench" / "out"
MOST_PLAN_S = 60.0
MOST_BYTES = 1 << 30
_VOCABULARY = 30_522
_LENGTH = 512
_ROW_GROUPS = 18
"""Row groups of a shard of 64 MB of text, measured."""
_START_S = 1800.0


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured: seconds of wall time, bytes of the highest resident memory, and counts."""

    workers: int
    """For which the graph is made. `present` of them were started."""
    present: int
    splits: int
    buckets: int
    joins: int
    tasks: int
    plan_s: float
    """From the first line of the graph until the scheduler knows every task."""
    plan_cpu_s: float
    """CPU seconds of the main process and the scheduler in that time."""
    scheduler_cpu_s: float
    """Of the whole run."""
    run_s: float
    """From then until the last task is done."""
    main_bytes: int
    scheduler_bytes: int
    host_bytes: int
    """Of a process with many workers."""
    fetched_bytes: int
    """The most that one worker fetched from others."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, print, and write bench/out/cluster.json; status 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--workers", type=int, default=1_024)
    parser.add_argument("--splits", type=int, default=10_000)
    parser.add_argument("--text-gb", type=float, default=1_000.0)
    parser.add_argument("--present", type=int, help="workers that are started (default: all)")
    parser.add_argument("--hosts", type=int, default=4, help="processes that the workers are in")
    parser.add_argument("--host", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.host is not None:
        asyncio.run(serve_workers(given.host, number=given.workers))
        return 0
    found = simulate(
        workers=given.workers,
        present=given.present or given.workers,
        splits=given.splits,
        text_bytes=given.text_gb * 1e9,
        hosts=given.hosts,
    )
    heading = f"{date.today()}, {describe_machine()}"
    print(heading, *format_found(found), sep="\n")
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "cluster.json").write_text(json.dumps({"machine": heading, **asdict(found)}, indent=1) + "\n")
    return int(found.plan_s > MOST_PLAN_S or max(found.main_bytes, found.scheduler_bytes) > MOST_BYTES)


def simulate(*, workers: int, present: int, splits: int, text_bytes: float, hosts: int) -> Found:
    """Start a scheduler and the workers, run the graph, and end them."""
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="cloze-bench-") as name:
        folder = Path(name)
        try:
            contact = folder / "scheduler.json"
            words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(contact)]
            processes.append(_start("distributed.cli.dask_scheduler", *words, log=folder / "scheduler.log"))
            _wait_until(contact.exists, "the scheduler did not start")
            address = json.loads(contact.read_text())["address"]
            for number in range(hosts):
                share = present * (number + 1) // hosts - present * number // hosts
                words = ["--host", address, "--workers", str(share)]
                processes.append(_start("bench.cluster", *words, log=folder / f"host-{number}.log"))
            return run_graph(
                address,
                folder=folder,
                workers=workers,
                present=present,
                splits=splits,
                text_bytes=text_bytes,
                ids=[p.pid for p in processes],
            )
        finally:
            for process in processes:
                process.kill()
                process.wait()


def run_graph(
    address: str,
    *,
    folder: Path,
    workers: int,
    present: int,
    splits: int,
    text_bytes: float,
    ids: Sequence[int],
) -> Found:
    """Build the graph of a build, run it on the scheduler at `address`, and measure. `ids` are its process ids, first
    the scheduler's."""
    import apache_beam as beam
    from distributed import Client

    from pipeline.build.graph import build_graph
    from pipeline.engines import local  # noqa: F401 (first, since it makes Beam quiet)
    from pipeline.engines.dask_cluster import count_partitions
    from pipeline.engines.dask_runner import BuildRunner, RunContext

    buckets = choose_buckets(text_bytes=int(text_bytes), shards="auto", validation_fraction=0.0)
    context = BuildContext(
        config=PipelineConfig.model_validate(
            {"sources": ({"kind": "text", "path": "x"},), "vocabulary": {"path": "v"}, "output": "out"}
        ),
        buckets=buckets,
        tokenizer="",
        vocabulary_size=_VOCABULARY,
        work=str(folder),
        build="bench",
        inputs={},
    )
    for part in (SPILLS, PROGRESS, EXCHANGE):
        (folder / part).mkdir()
    listed = [
        Split(0, f"/corpus/part-{number:05d}.jsonl", 0, -1, int(text_bytes / splits), int(text_bytes / splits))
        for number in range(splits)
    ]
    client = Client(address, timeout=_START_S, set_as_default=False)
    client.wait_for_workers(present, timeout=_START_S)
    began, before = time.monotonic(), _cpu_seconds(os.getpid()) + _cpu_seconds(ids[0])
    run = RunContext("bench", describe_code(), context.exchange, "")
    pipeline = beam.Pipeline(runner=BuildRunner(client, context=run, partitions=count_partitions(workers)))
    build_graph(pipeline, splits=listed, context=context)
    result = pipeline.run(test_runner_api=False)
    last, tasks = result.futures[-1].key, 0
    while not tasks:
        time.sleep(0.1)
        tasks = client.run_on_scheduler(_count_tasks, last=last)
    planned = time.monotonic()
    cpu_s = _cpu_seconds(os.getpid()) + _cpu_seconds(ids[0]) - before
    print(
        f"planned in {planned - began:.1f} s, {cpu_s:.1f} s of CPU time; main process {peak_bytes() >> 20} MiB, "
        f"scheduler {peak_bytes(ids[0]) >> 20} MiB",
        flush=True,
    )
    for future in result.futures:
        future.result()
    done = time.monotonic()
    fetched = client.run(lambda dask_worker: sum(entry["total"] for entry in dask_worker.transfer_incoming_log))
    _, pieces = divide_buckets(buckets)
    found = Found(
        workers=workers,
        present=present,
        splits=splits,
        buckets=buckets.total,
        joins=len(pieces),
        tasks=tasks,
        plan_s=planned - began,
        plan_cpu_s=cpu_s,
        scheduler_cpu_s=_cpu_seconds(ids[0]),
        run_s=done - planned,
        main_bytes=peak_bytes(),
        scheduler_bytes=peak_bytes(ids[0]),
        host_bytes=max(map(peak_bytes, ids[1:])),
        fetched_bytes=max(fetched.values()),
    )
    with suppress(Exception):
        client.close(timeout=1)
    return found


async def serve_workers(address: str, *, number: int) -> None:
    """Run `number` Dask workers of one thread in this process until it is killed. The steps of a build do no work."""
    import dask
    from distributed import Worker

    dask.config.set({"distributed.worker.profile.enabled": False, "distributed.admin.tick.interval": "5s"})
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    leave_out_work()
    async with AsyncExitStack() as stack:
        for _ in range(number):
            worker = Worker(address, nthreads=1, memory_limit=0, dashboard=False, silence_logs=50)
            await stack.enter_async_context(worker)
        await asyncio.Event().wait()


def leave_out_work() -> None:
    """Replace what the steps of a build do in this process by functions that return results of the measured size."""
    from pipeline.build import graph
    from pipeline.engines import local  # noqa: F401 (first, since it makes Beam quiet)

    no_tokenizer = SimpleNamespace(from_path=lambda *_, **__: None)
    for name, stub in {
        "WordTokenizer": no_tokenizer,
        "spill_split": read_nothing,
        "split_key": lambda split, context: split.path,
        "join_spills": join_nothing,
        "find_extents": find_nothing,
        "count_bucket": count_nothing,
        "write_shard": write_nothing,
        "refuse_empty_source": lambda *_, **__: None,
        "_report_work": lambda *_, **__: nullcontext(WorkReport(None, stage="read")),
    }.items():
        assert hasattr(graph, name)
        setattr(graph, name, stub)


def read_nothing(split: Split, *, context: BuildContext, **_: Any) -> Any:
    """Return the result of reading a split of web text, with some drops and their examples."""
    from pipeline.build.read_split import SplitResult

    tally = ReadTally(Counter({0: 8000}), Counter({0: 160_000}), Counter({0: 32_000_000}))
    for reason in ("no_text", "too_short", "wrong_language"):
        for number in range(3):
            tally.count_drop(reason, source=0, name=f"{Path(split.path).name}, line {number}", detail="x" * 100)
    rows = divide_buckets(context.buckets)[0]
    name = f"{Path(split.path).name}-{os.urandom(8).hex()}.arrow"
    return SplitResult(tally, (SpillFile(name, hash(split.path) & 0xFFFFFFFF, Table(17_000_000, 12), rows),))


def join_nothing(join: Join, *, files: Sequence[SpillFile], **_: Any) -> SpillFile:
    """Return the spill file of a piece of the second step, after choosing its input as the real one does."""
    own = sorted((file for file in files if file.key % join.parts == join.part), key=lambda file: (file.key, file.name))
    name = f"joined-{join.buckets.first}-{os.urandom(8).hex()}.arrow"
    return SpillFile(name, join.buckets.first + len(own), Table(500_000_000, 248), join.buckets)


def find_nothing(files: Sequence[SpillFile], *, folder: str, bucket: int) -> list[Extent]:
    """Return an extent for each file that has the bucket."""
    chosen = [file for file in files if 0 <= file.buckets.row_of(bucket) < file.buckets.rows]
    return [Extent(f"{folder}/{file.name}", 0, 1000, 64_000, 0) for file in chosen]


def count_nothing(bucket: int, extents: Sequence[Extent], **_: Any) -> BucketCount:
    """Return the count of a bucket of 64 MB of web text."""
    assert extents
    return BucketCount(bucket, documents=16_000, tokens=16_000_000, lowest=(bucket << 40, (bucket + 1) << 40))


def write_nothing(extents: Sequence[Extent], *, split: Any, name: str, **_: Any) -> BuildResult:
    """Return the result of writing a shard."""
    shard = Shard(
        path=name,
        split=split,
        rows=40_000,
        tokens=18_000_000,
        bytes=40_000_000,
        sha256="0" * 64,
        footer_sha256="0" * 64,
        row_group_rows=(2200,) * _ROW_GROUPS,
        row_group_tokens=(1_000_000,) * _ROW_GROUPS,
        max_masked=77,
        masked=2_700_000,
    )
    return BuildResult([shard], {split: _count_rows()})


@cache
def _count_rows() -> RowTally:
    examples = [
        Example(number, tuple(range(_LENGTH)), 200, number % 2, tuple(range(77)), tuple(range(77)))
        for number in range(10)
    ]
    return RowTally(
        lengths=np.full(_LENGTH + 1, 80, np.int64),
        token_counts=np.full(_VOCABULARY, 600, np.int64),
        text_at=np.full(_LENGTH, 40_000, np.int64),
        masked_at=np.full(_LENGTH, 6000, np.int64),
        examples=examples,
    )


def format_found(found: Found) -> list[str]:
    """Return the numbers as lines of text."""
    return [
        f"{found.workers:,} workers ({found.present:,} started), {found.splits:,} splits, {found.buckets:,} buckets, "
        f"{found.joins:,} joins: {found.tasks:,} tasks",
        f"plan (goal {MOST_PLAN_S:g} s)          {found.plan_s:8.1f} s",
        f"  of CPU time              {found.plan_cpu_s:8.1f} s",
        f"scheduler, all CPU time    {found.scheduler_cpu_s:8.1f} s",
        f"all tasks, without work    {found.run_s:8.1f} s",
        f"main process (goal 1 GiB)  {found.main_bytes / 2**20:8.0f} MiB",
        f"scheduler (goal 1 GiB)     {found.scheduler_bytes / 2**20:8.0f} MiB",
        f"a process of workers       {found.host_bytes / 2**20:8.0f} MiB",
        f"fetched by one worker      {found.fetched_bytes / 1e6:8.1f} MB",
    ]


def _start(module: str, *words: str, log: Path) -> subprocess.Popen[bytes]:
    with open(log, "wb") as stream:
        return subprocess.Popen([sys.executable, "-m", module, *words], cwd=ROOT, stdout=stream, stderr=stream)


def _count_tasks(dask_scheduler: Any, *, last: Any) -> int:
    """Return the number of tasks that the scheduler knows, or 0 until it knows the last one."""
    return len(dask_scheduler.tasks) if last in dask_scheduler.tasks else 0


def _cpu_seconds(process: int) -> float:
    used = psutil.Process(process).cpu_times()
    return float(used.user + used.system)


def _wait_until(condition: Any, complaint: str) -> None:
    deadline = time.monotonic() + _START_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(complaint)
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
