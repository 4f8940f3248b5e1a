"""Runs the same build on each engine, and compares wall time, CPU seconds and the bytes of the data set.

Usage: python -m bench.engines [KIND=PATH ...] [vocabulary=FILE]   (default: the sample in data/sample)
CPU seconds are those of the command and of all processes below it, Dask's and Ray's own processes included.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path

import psutil

from pipeline.dataset import read_manifest

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "bench" / "out"
WORKERS = 2
_WATCH_S = 0.2


def main(arguments: Sequence[str]) -> int:
    sample = [f"wikipedia={ROOT}/data/sample/wikipedia", f"books={ROOT}/data/sample/books"]
    given = [word.split("=", 1) for word in arguments or sample]
    sources = [(kind, path) for kind, path in given if kind != "vocabulary"]
    vocabulary = dict(given).get("vocabulary", f"{ROOT}/data/sample/vocabulary/vocab.txt")
    if not Path(vocabulary).is_file():
        raise SystemExit(f"{vocabulary} is absent: run `make vocabulary` first, or give another")
    rows = []
    with tempfile.TemporaryDirectory(prefix="cloze-bench-") as name:
        folder = Path(name)
        listed = ", ".join(f"{{kind: {kind}, path: {path}}}" for kind, path in sources)
        (folder / "c.yaml").write_text(
            f"sources: [{listed}]\nvocabulary: {{path: {vocabulary}}}\noutput: out\n"
            "validation_fraction: 0.05\nshards: 4\n"
        )
        rows.append(measure("1 process", folder, "workers=1"))
        rows.append(measure(f"{WORKERS} processes", folder, f"workers={WORKERS}"))
        with dask_processes(folder) as address:
            words = ["--engine", "dask", f"dask.address={address}"]
            rows.append(measure(f"Dask, {WORKERS} workers", folder, *words))
            rows.append(measure("the same, once more", folder, *words))
        rows.append(measure(f"Ray, {WORKERS} workers", folder, "--engine", "ray", f"workers={WORKERS}"))
    heading = f"{date.today()} {platform.machine()}, {psutil.cpu_count()} cores, Python {platform.python_version()}"
    lines = ["| engine | wall s | CPU s | bytes |", "|---|---|---|---|"]
    for row in rows:
        same = "the same" if row["hash"] == rows[0]["hash"] else "OTHER"
        lines.append(f"| {row['engine']} | {row['wall_s']:.1f} | {row['cpu_s']:.1f} | {same} |")
    print(heading, "", *lines, sep="\n")
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "engines.json").write_text(json.dumps({"machine": heading, "rows": rows}, indent=1) + "\n")
    return int(any(row["hash"] != rows[0]["hash"] for row in rows))


def measure(engine: str, folder: Path, *words: str) -> dict[str, str | float]:
    """Build the data set on one engine in a new folder. Return the engine's name, the times, and the data set's hash.

    `words` are the words of the command line that choose the engine.
    """
    output = folder / engine.replace(" ", "-")
    command = [sys.executable, str(ROOT / "pipeline" / "run.py"), "--config", str(folder / "c.yaml"), *words]
    before = cpu_of_processes()
    seconds, started = dict(before), time.monotonic()
    process = psutil.Popen([*command, f"output={output}"], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        seconds |= cpu_of_processes()
        time.sleep(_WATCH_S)
    if process.returncode:
        raise SystemExit(f"the build on {engine} ended with status {process.returncode}")
    wall_s = time.monotonic() - started
    return {
        "engine": engine,
        "wall_s": wall_s,
        "cpu_s": sum(seconds.values()) - sum(before.values()),
        "hash": read_manifest(output).hash,
    }


def cpu_of_processes() -> dict[int, float]:
    """Return the CPU seconds of every process below this process, by process id."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found


@contextmanager
def dask_processes(folder: Path) -> Iterator[str]:
    """Start a Dask scheduler with WORKERS workers for the `with` block, and yield the scheduler's address."""
    contact = folder / "scheduler.json"
    start = [sys.executable, "-m", "dask"]
    scheduler = [*start, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    worker = [*start, "worker", "--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(folder)]
    processes = []
    try:
        for command in (scheduler, *[worker] * WORKERS):
            processes.append(
                subprocess.Popen(
                    [*command, "--scheduler-file", str(contact)],
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            while not contact.exists():
                time.sleep(_WATCH_S)
        address: str = json.loads(contact.read_text())["address"]
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
