"""Simulates a build on a cluster of 1,024 workers: the graph and the Dask scheduler are real, but the steps do no work.

Usage: python -m bench.cluster [--workers 1024] [--splits 10000] [--text-gb 1000] [--hosts 4] [--temp FOLDER]
First, each step of the build runs once, on as much real text as it has in a build of that size (the corpus of
bench.pipeline, repeated). Then the build runs on many Dask workers in a few processes. There, every task of a step
returns the result of that first run at once, with other file names. So the measurements show what a cluster adds to the
work: the time to plan, the time of all tasks together, and the highest memory of the main process and the scheduler.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import psutil

from bench.processes import ROOT, describe_machine, peak_bytes, watch
from bench.step_results import buckets_of, choose_config
from pipeline.documents import Split
from pipeline.runtime import PROGRESS, RESULTS, SPILLS, BuildContext
from pipeline.shuffle import divide_buckets
from pipeline.versions import describe_code

OUT = ROOT / "bench" / "out"
MOST_PLAN_S = 60.0
MOST_BYTES = 1 << 30
_START_S = 3600.0


@dataclass(frozen=True, slots=True)
class Found:
    """The measurements. Times ending in `_s` are seconds, and `_bytes` of a process is its highest resident memory."""

    workers: int
    """The number of workers for which the build is planned. Only `present` workers were started."""
    present: int
    splits: int
    buckets: int
    joins: int
    tasks: int
    plan_s: float
    """Wall time from the first line of the graph until the scheduler knows every task."""
    plan_cpu_s: float
    """CPU seconds of the main process and the scheduler during `plan_s`."""
    scheduler_cpu_s: float
    """CPU seconds of the scheduler in the whole run."""
    run_s: float
    """Wall time from the end of `plan_s` until the last task is done."""
    main_bytes: int
    scheduler_bytes: int
    host_bytes: int
    """Memory of a process that holds many workers: the highest of all such processes."""
    fetched_bytes: int
    """The most bytes that one worker fetched from other workers."""
    result_bytes: dict[str, int]
    """For each step, the bytes of the result for real text, pickled. The keys are the fields of StepResults."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate the build, print the measurements and write bench/out/cluster.json. Return 1 if a goal is missed,
    otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--workers", type=int, default=1_024)
    parser.add_argument("--splits", type=int, default=10_000)
    parser.add_argument("--text-gb", type=float, default=1_000.0)
    parser.add_argument("--present", type=int, help="workers that are started (default: all)")
    parser.add_argument("--hosts", type=int, default=4, help="processes that the workers are in")
    parser.add_argument("--temp", help="folder of temporary files (default: the system's)")
    parser.add_argument("--results", type=Path, help="file of the steps' results; it is measured and written if absent")
    given = parser.parse_args(arguments)
    present = given.present or given.workers
    with tempfile.TemporaryDirectory(prefix="cloze-bench-", dir=given.temp) as name:
        found = simulate(
            Path(name),
            workers=given.workers,
            present=present,
            splits=given.splits,
            text_bytes=round(1e9 * given.text_gb),
            hosts=min(given.hosts, present),
            results=given.results or Path(name, "results.pickle"),
        )
    heading = f"{date.today()}, {describe_machine()}"
    print(heading, *format_found(found), sep="\n")
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "cluster.json").write_text(json.dumps({"machine": heading, **asdict(found)}, indent=1) + "\n")
    return int(found.plan_s > MOST_PLAN_S or max(found.main_bytes, found.scheduler_bytes) > MOST_BYTES)


def simulate(
    folder: Path, *, workers: int, present: int, splits: int, text_bytes: int, hosts: int, results: Path
) -> Found:
    """Start a scheduler and the workers, run the build on them, end them, and return the measurements.

    `results` is the file with the results of the steps. If it does not exist, each step first runs once to make it.
    `folder` is for temporary files.
    """
    from pipeline.engines import local  # noqa: F401 (first, since it makes Beam quiet)

    processes: list[subprocess.Popen[bytes]] = []
    if not results.exists():
        words = [str(folder / "steps"), str(results.resolve()), str(splits), str(text_bytes)]
        watch([sys.executable, "-c", "from bench.step_results import main; main()", *words])
    sizes = pickle.loads(results.read_bytes()).sizes()
    print(", ".join(f"{name}: {number:,} B" for name, number in sizes.items()), flush=True)
    try:
        contact = folder / "scheduler.json"
        words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(contact)]
        processes.append(_start("distributed.cli.dask_scheduler", *words, log=folder / "scheduler.log"))
        _wait_until(contact.exists, "the scheduler did not start")
        address = json.loads(contact.read_text())["address"]
        for number in range(hosts):
            share = present * (number + 1) // hosts - present * number // hosts
            words = [address, str(share), str(results.resolve()), str(folder)]
            processes.append(_start("bench.cluster_workers", *words, log=folder / f"host-{number}.log"))
        return run_graph(
            address,
            folder=folder,
            workers=workers,
            present=present,
            splits=splits,
            text_bytes=text_bytes,
            ids=[process.pid for process in processes],
            sizes=sizes,
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
    text_bytes: int,
    ids: Sequence[int],
    sizes: dict[str, int],
) -> Found:
    """Plan a build, run it on the scheduler at `address`, and return the measurements.

    `ids` are the process ids of the scheduler and of the processes with the workers, the scheduler's first.
    """
    import apache_beam as beam
    from distributed import Client

    from pipeline.build.graph import build_graph
    from pipeline.engines import local  # noqa: F401 (first, since it makes Beam quiet)
    from pipeline.engines.dask_cluster import count_partitions
    from pipeline.engines.dask_runner import BuildRunner, RunContext

    buckets = buckets_of(text_bytes)
    config = choose_config()
    context = BuildContext(
        config=config, buckets=buckets, tokenizer="", vocabulary_size=0, work=str(folder), build="bench", inputs={}
    )
    for part in (SPILLS, PROGRESS, RESULTS):
        (folder / part).mkdir()
    listed = [
        Split(0, f"/corpus/part-{number:05d}.jsonl", 0, -1, text_bytes // splits, text_bytes // splits)
        for number in range(splits)
    ]
    began = time.monotonic()
    client = Client(address, timeout=_START_S, set_as_default=False)
    client.wait_for_workers(present, timeout=_START_S)
    print(f"{present:,} workers started in {time.monotonic() - began:.0f} s", flush=True)
    began, before = time.monotonic(), _cpu_seconds(os.getpid()) + _cpu_seconds(ids[0])
    run = RunContext("bench", describe_code(), context.results_folder, "")
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
    fetched = client.run(_count_fetched)
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
        result_bytes=sizes,
    )
    with suppress(Exception):
        client.close(timeout=1)
    return found


def format_found(found: Found) -> list[str]:
    """Return the measurements as lines of text."""
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
        "a step's result, in bytes: "
        + ", ".join(f"{name} {number:,}" for name, number in found.result_bytes.items() if name != "extents"),
    ]


def _start(module: str, *words: str, log: Path) -> subprocess.Popen[bytes]:
    with open(log, "wb") as stream:
        return subprocess.Popen([sys.executable, "-m", module, *words], cwd=ROOT, stdout=stream, stderr=stream)


def _count_fetched(dask_worker: Any) -> int:
    return sum(entry["total"] for entry in dask_worker.transfer_incoming_log)


def _count_tasks(dask_scheduler: Any, *, last: Any) -> int:
    """Return how many tasks the scheduler knows, or 0 if it does not yet know the task `last`."""
    return len(dask_scheduler.tasks) if last in dask_scheduler.tasks else 0


def _cpu_seconds(process: int) -> float:
    used = psutil.Process(process).cpu_times()
    return float(used.user + used.system)


def _wait_until(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + _START_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(complaint)
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
