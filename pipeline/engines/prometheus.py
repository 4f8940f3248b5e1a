"""Prometheus metrics of a build on a Ray cluster (ray_cloze_build_...). The main process sums the reports of the
workers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ray.util import metrics

from pipeline.runtime import ProgressPrinter, Stage
from pipeline.storage import StorageError

COUNTERS: dict[str, tuple[Stage, str, str]] = {
    "documents": ("read", "documents", "Documents read and kept"),
    "characters": ("read", "characters", "Characters in their sentences"),
    "drops": ("read", "drops", "Documents left out while reading, for any reason"),
    "splits": ("read", "done", "Pieces of the input read"),
    "duplicates": ("shard", "drops", "Documents left out as duplicates and near duplicates"),
    "rows": ("shard", "rows", "Rows written"),
    "shards": ("shard", "done", "Shards written"),
}
"""Maps the name of a metric to (stage of the build, name of the count in a progress report, description of the
metric)."""
PREFIX = "cloze_build_"
TAG = "build"
"""A tag of every metric. Its value is the path or URL of the output."""
_STAGES: tuple[Stage, ...] = ("read", "shard")
_EVERY_S = 5.0


def list_names() -> list[str]:
    """Return the names of this build's metrics as Prometheus shows them, with Ray's prefix."""
    return [f"ray_{PREFIX}{name}_total" for name in COUNTERS]


@contextmanager
def serve_progress(progress: ProgressPrinter, *, output: str, every_s: float = _EVERY_S) -> Iterator[None]:
    """Serve the build's progress to Prometheus, through this node's Ray agent, while the block runs. The counters are
    renewed every `every_s` seconds. The process must be a Ray driver."""
    counters = {
        name: metrics.Counter(f"{PREFIX}{name}", description=text, tag_keys=(TAG,))
        for name, (_, _, text) in COUNTERS.items()
    }
    tags = {TAG: output}
    reported: Counter[str] = Counter()
    ended = threading.Event()

    def report() -> None:
        """Increase each counter up to the sum of the workers' reports. A report of failed work is withdrawn, so a sum
        may become smaller, but a counter cannot fall. The counter then keeps its value until the sum is larger again.
        """
        try:
            found = {stage: progress.count(stage) for stage in _STAGES}
        except StorageError:  # metrics must not stop the build; the progress lines report the error
            return
        for name, (stage, count, _) in COUNTERS.items():
            more = found[stage][count] - reported[name]
            if more > 0:
                counters[name].inc(more, tags=tags)
                reported[name] += more

    def run() -> None:
        while not ended.wait(every_s):
            report()
        report()

    thread = threading.Thread(target=run, name="gauges", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
