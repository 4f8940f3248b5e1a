"""Measures the memory of a build as its input grows: the highest memory of every process, for each size of the input.

The input is a corpus, repeated until it has the size. The copies are distinct documents, so that no exact duplicates
are dropped. The input also has one book of ONE_BOOK_BYTES.
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
"""The goal for the highest memory of any process."""
MOST_GROWTH = 1.1
"""The goal for how many times as much memory any process may take if the input is ten times as large."""


@dataclass(frozen=True, slots=True)
class Point:
    """A build, with the size of its input in bytes."""

    input_bytes: int
    build: Build


def measure_memory(
    texts: Texts, *, config: PipelineConfig, sizes: Sequence[int], workers: int, one_book_bytes: int = ONE_BOOK_BYTES
) -> list[Point]:
    """Build the corpus `texts` once for each of `sizes` (input bytes). Return the measurements in the same order."""
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
    """Return all measurements of all builds for the JSON file.

    "growth" is the highest memory of any process, divided by that of the first build.
    """
    first = points[0].build.cost.highest_bytes
    return [
        {
            **asdict(point),
            "highest_bytes": point.build.cost.highest_bytes,
            "growth": point.build.cost.highest_bytes / first,
        }
        for point in points
    ]
