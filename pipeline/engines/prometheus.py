"""What Prometheus sees of a build on a Ray cluster (ray_cloze_build_...): workers' reports, summed by the driver."""

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
    "characters": ("read", "characters", "Characters of their sentences"),
    "drops": ("read", "drops", "Documents left out in reading, whatever the reason"),
    "splits": ("read", "done", "Pieces of the input that are read"),
    "duplicates": ("shard", "drops", "Documents left out as duplicates and near duplicates"),
    "rows": ("shard", "rows", "Rows written"),
    "shards": ("shard", "done", "Shards written"),
}
"""Name -> stage, count in a report, what it is."""
PREFIX = "cloze_build_"
TAG = "build"
"""Whose value is the output's path or URL: folders of one name are not one build."""
_STAGES: tuple[Stage, ...] = ("read", "shard")
_EVERY_S = 5.0


def list_names() -> list[str]:
    """Every name as Prometheus has it; Ray puts its own before them."""
    return [f"ray_{PREFIX}{name}_total" for name in COUNTERS]


@contextmanager
def serve_progress(progress: ProgressPrinter, *, output: str, every_s: float = _EVERY_S) -> Iterator[None]:
    """Have this node's agent serve what the build has done, while the body runs. The process must be a Ray driver."""
    counters = {
        name: metrics.Counter(f"{PREFIX}{name}", description=text, tag_keys=(TAG,))
        for name, (_, _, text) in COUNTERS.items()
    }
    tags = {TAG: output}
    told: Counter[str] = Counter()
    ended = threading.Event()

    def tell() -> None:
        """A piece that fails takes its counts back, which a counter cannot: it waits until they are made up for."""
        try:
            found = {stage: progress.count(stage) for stage in _STAGES}
        except StorageError:  # what only tells of the build does not stop it; the progress lines say so
            return
        for name, (stage, count, _) in COUNTERS.items():
            more = found[stage][count] - told[name]
            if more > 0:
                counters[name].inc(more, tags=tags)
                told[name] += more

    def run() -> None:
        while not ended.wait(every_s):
            tell()
        tell()

    thread = threading.Thread(target=run, name="gauges", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
