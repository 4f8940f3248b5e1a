"""Measures the auditor on a data set of very many small shards: time, highest memory, and most temporary files at once.

Usage: python -m bench.audit [--shards 20000] [--workers 2] [--temp FOLDER]
Only the text is made up (random words). The data set is built by the command that users run, and it has so many shards
that the build needs both steps of the shuffle.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from bench.builds import run_build
from bench.processes import ROOT, Cost, describe_machine, watch
from pipeline.config import PipelineConfig
from pipeline.settings import validate

OUT = ROOT / "bench" / "out"
_DOCUMENTS = 24
"""Documents per shard, on average. A shard needs at least 8."""
_FILES = 32
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
_COUNT_EVERY_S = _WATCH_S = 1.0


@dataclass(frozen=True, slots=True)
class Audited:
    """The costs of building and auditing a data set, with the data set's size."""

    shards: int
    rows: int
    tokens: int
    build: Cost
    audit: Cost
    most_files: int
    """The most temporary files that the auditor had at one time."""
    most_file_bytes: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and audit the data set, print the measurements and write bench/out/audit.json.

    Return 1 if the auditor finds a fault, otherwise 0.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.audit", description=__doc__)
    parser.add_argument("--shards", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--temp", help="folder of temporary files (default: the system's)")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="cloze-bench-", dir=given.temp) as folder:
        found = measure_audit(given.shards, workers=given.workers, folder=Path(folder))
    heading = f"{date.today()}, {describe_machine()}"
    print(heading, *format_audited(found), sep="\n")
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "audit.json").write_text(json.dumps({"machine": heading, **asdict(found)}, indent=1) + "\n")
    return 0


def measure_audit(shards: int, *, workers: int, folder: Path) -> Audited:
    """Build a data set of about `shards` shards in `folder`, and audit it. Raises SystemExit if the auditor finds a
    fault."""
    config = write_corpus(shards, workers=workers, folder=folder)
    build, manifest = run_build(config, folder=folder, name=f"{shards:,} shards", keep=True)
    spill = folder / "audit"
    spill.mkdir()
    most, ended = [0, 0], threading.Event()
    counter = threading.Thread(target=_count_files, args=(spill, most, ended))
    counter.start()
    try:
        command = [sys.executable, "-m", "pipeline.audit", str(folder / "set"), "--workers", str(workers)]
        cost = watch(command, environment={"TMPDIR": str(spill)}, watch_s=_WATCH_S)
    finally:
        ended.set()
        counter.join()
    return Audited(len(manifest.shards), build.rows, build.tokens, build.cost, cost, *most)


def write_corpus(shards: int, *, workers: int, folder: Path) -> PipelineConfig:
    """Write _DOCUMENTS documents of random words for each shard to `folder`, and return the config of the build."""
    words = [one + other for one in _SYLLABLES for other in _SYLLABLES]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in [*_SPECIAL, *words]), encoding="ascii")
    (folder / "text").mkdir()
    drawn = random.Random(1)
    for number in range(_FILES):
        with open(folder / "text" / f"{number:02d}.txt", "w", encoding="ascii") as file:
            for _ in range(shards * _DOCUMENTS // _FILES):
                for _ in range(drawn.randint(4, 10)):
                    file.write(" ".join(drawn.choices(words, k=drawn.randint(4, 16))) + ".\n")
                file.write("\n")
    tree = {
        "sources": [{"kind": "text", "path": str(folder / "text")}],
        "vocabulary": {"path": str(folder / "vocab.txt")},
        "output": "unused",
        "max_seq_length": 128,
        "validation_fraction": 0.01,
        "shards": shards,
        "workers": workers,
    }
    return validate(PipelineConfig, tree, origin="bench")


def _count_files(folder: Path, most: list[int], ended: threading.Event) -> None:
    """Count the files below `folder` and their bytes once a second, until `ended` is set. Keep the highest of both in
    `most`."""
    while not ended.wait(_COUNT_EVERY_S):
        sizes = []
        for path in folder.rglob("*"):
            try:
                sizes.append(path.stat().st_size * path.is_file())
            except FileNotFoundError:
                continue
        most[:] = max(most[0], sum(map(bool, sizes))), max(most[1], sum(sizes))


def format_audited(found: Audited) -> list[str]:
    """Return the measurements as lines of text."""
    return [
        f"{found.shards:,} shards, {found.rows:,} rows, {found.tokens:,} tokens: clean",
        *(
            f"{name}: {cost.wall_s:.0f} s ({cost.cpu_s:.0f} s of CPU time); main process "
            f"{cost.main_bytes / 2**20:.0f} MiB, worker {cost.worker_bytes / 2**20:.0f} MiB"
            for name, cost in (("build", found.build), ("audit", found.audit))
        ),
        f"temporary files of the auditor at one time: {found.most_files:,}, {found.most_file_bytes / 1e6:.0f} MB",
    ]


if __name__ == "__main__":
    sys.exit(main())
