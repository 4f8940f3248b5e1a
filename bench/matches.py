"""Measures the choice which near duplicates to drop, for growing numbers of matches: CPU seconds and highest memory.

Usage: python -m bench.matches [--millions 1 2 5 10 20] [--temp FOLDER]
A match is a pair of near duplicates. In a build, one single task makes this choice from all matches, so its cost must
stay small. Here only the matches are made up: each document resembles up to four documents that have more words. The
matches are written and joined by the build's own functions, in 1,024 parts as in a build of 1 TB of text. The choice
runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.processes import ROOT, describe_machine, peak_bytes, watch
from pipeline import draws
from pipeline.dedup import MatchFile, join_matches, write_dropped, write_matches
from pipeline.dedup.matches import Matches, count_parts
from pipeline.dedup.minhash import MATCH_TYPE
from pipeline.shuffle import Buckets

OUT = ROOT / "bench" / "out"
BUCKETS = Buckets(15_625, 0, 0.0)
"""The buckets (groups of documents) of a build of 1 TB of text."""
_MOST_MATCHES = 4
_NEAR = 1000
"""In nine of ten matches, the numbers of the two documents differ by at most this much."""
_CHUNK = 500_000
_RESULT = "choice.json"


@dataclass(frozen=True, slots=True)
class Choice:
    """The cost of one choice. `peak_bytes` is the highest resident memory of its process."""

    matches: int
    documents: int
    """How many documents have at least one match."""
    dropped: int
    cpu_s: float
    wall_s: float
    peak_bytes: int
    part_cpu_s: float
    """CPU seconds of one of the tasks that join the matches before the choice, on average. A build runs them in
    parallel."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each number of matches, print the table, write bench/out/matches.json, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.matches", description=__doc__)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 2, 5, 10, 20])
    parser.add_argument("--temp", help="folder of temporary files (default: the system's)")
    parser.add_argument("--choose", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.choose is not None:
        (given.choose / _RESULT).write_text(json.dumps(choose(given.choose)))
        return 0
    heading = f"{date.today()}, {describe_machine()}"
    print(heading, *_HEAD, sep="\n", flush=True)
    found = []
    for millions in given.millions:
        with tempfile.TemporaryDirectory(prefix="cloze-bench-", dir=given.temp) as folder:
            found.append(measure_choice(round(1e6 * millions), folder=Path(folder)))
        print(format_choice(found[-1]), flush=True)
    OUT.mkdir(parents=True, exist_ok=True)
    rows = [asdict(choice) for choice in found]
    (OUT / "matches.json").write_text(json.dumps({"machine": heading, "rows": rows}, indent=1) + "\n")
    return 0


def measure_choice(matches: int, *, folder: Path, buckets: Buckets = BUCKETS) -> Choice:
    """Write about `matches` distinct matches to files in `folder`, join them, and measure the choice in a new
    process."""
    files = [write_matches(some, folder=str(folder), buckets=buckets) for some in make_matches(matches)]
    began, parts = time.process_time(), range(count_parts(buckets))
    joined = [join_matches(files, part=part, folder=str(folder), buckets=buckets) for part in parts]
    part_cpu_s = (time.process_time() - began) / len(parts)
    (folder / "joined.pickle").write_bytes(pickle.dumps(([file for file in joined if file], buckets)))
    watch([sys.executable, "-m", "bench.matches", "--choose", str(folder)])
    measured = json.loads((folder / _RESULT).read_text())
    return Choice(**measured, documents=_count_documents(matches) - 1, part_cpu_s=part_cpu_s)


def choose(folder: Path) -> dict[str, Any]:
    """Choose which documents to drop, given the joined matches in `folder`. Return the fields of Choice that this
    process can measure."""
    files, buckets = pickle.loads((folder / "joined.pickle").read_bytes())
    began, cpu = time.monotonic(), time.process_time()
    chosen = write_dropped(files, path=str(folder / "chosen"), buckets=buckets)
    taken = {"cpu_s": time.process_time() - cpu, "wall_s": time.monotonic() - began, "peak_bytes": peak_bytes()}
    matches, dropped = (sum(map(_count, some)) for some in (files, [chosen]))
    return {"matches": matches, "dropped": dropped, **taken}


def make_matches(matches: int) -> Iterator[Matches]:
    """Yield about `matches` matches (pairs of near duplicates), in several arrays.

    Document number i has 1 to 4 matches with documents of lower numbers. The lower its number, the more words a
    document has.
    """
    documents = _count_documents(matches)
    for start in range(1, documents, _CHUNK):
        numbers = np.arange(start, min(start + _CHUNK, documents))
        owner = np.repeat(numbers, numbers % _MOST_MATCHES + 1)
        drawn = draws.mix(draws.mix(owner.astype(np.uint64)) + np.arange(owner.size).astype(np.uint64))
        near = 1 + (drawn // np.uint64(10) % np.uint64(_NEAR)).astype(np.int64)
        far = 1 + (drawn % owner.astype(np.uint64)).astype(np.int64)
        better = np.maximum(0, owner - np.where(drawn % np.uint64(10) == 0, far, near))
        found = np.zeros(owner.size, MATCH_TYPE)
        found["id"], found["kept_id"] = _ids(owner), _ids(better)
        found["words"] = 2 * documents - owner
        found["similarity"] = 0.8 + (drawn % np.uint64(1000)) / 5000
        found["kept_name"] = "Title of an article"
        yield found


def format_choice(found: Choice) -> str:
    """Return the measurement as a row of the Markdown table."""
    return (
        f"| {found.matches:,} | {found.documents:,} | {found.dropped:,} | {found.cpu_s:.1f} s | {found.wall_s:.1f} s | "
        f"{found.peak_bytes / 2**20:.0f} MiB | {1e6 * found.cpu_s / found.matches:.2f} s | {found.part_cpu_s:.3f} s |"
    )


_HEAD = (
    "| matches | documents | left out | CPU | wall | highest memory | CPU a million | CPU of a piece before |",
    "|---|---|---|---|---|---|---|---|",
)


def _count_documents(matches: int) -> int:
    return max(2, round(matches / (1 + (_MOST_MATCHES - 1) / 2)))


def _count(file: MatchFile) -> int:
    return file.table.offset // MATCH_TYPE.itemsize


def _ids(numbers: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return a document id of 16 bytes for each number, V16[n]."""
    keys = numbers.astype(np.uint64)
    halves = np.stack([draws.mix(keys + np.uint64(1)), draws.mix(keys + np.uint64(1 << 40))], axis=1)
    return halves.view("V16").reshape(-1)


if __name__ == "__main__":
    sys.exit(main())
