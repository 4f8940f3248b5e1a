"""Memory of a build as its input grows: the highest resident memory of every process, at a size and at ten times it.

The corpus is repeated with every copy made another document; one book of ONE_BOOK_BYTES is among them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.builds import Build, run_build
from bench.repeats import Texts, write_corpus
from pipeline.config import PipelineConfig

ONE_BOOK_BYTES = 50_000_000
MOST_BYTES = 1 << 30
"""Of any process."""
MOST_GROWTH = 1.1
"""Of the highest process, at ten times the input."""


@dataclass(frozen=True, slots=True)
class Point:
    """A build of so many bytes of input."""

    input_bytes: int
    build: Build


def measure_memory(
    texts: Texts, *, config: PipelineConfig, sizes: Sequence[int], workers: int, one_book_bytes: int = ONE_BOOK_BYTES
) -> list[Point]:
    """A build at each size, in order."""
    points = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="cloze-bench-") as name:
            folder = Path(name)
            sources = write_corpus(texts, folder / "corpus", num_bytes=size, one_book_bytes=one_book_bytes)
            written = sum(path.stat().st_size for path in (folder / "corpus").rglob("*") if path.is_file())
            chosen = config.model_copy(update={"sources": sources, "workers": workers})
            build, _ = run_build(chosen, folder=folder, name=f"{written / 1e6:,.0f} MB")
            points.append(Point(written, build))
            shutil.rmtree(folder / "corpus")
    return points


def to_json(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Everything measured, with the growth of the highest process since the first."""
    first = points[0].build.cost.highest_bytes
    return [
        {
            **asdict(point),
            "highest_bytes": point.build.cost.highest_bytes,
            "growth": point.build.cost.highest_bytes / first,
        }
        for point in points
    ]
