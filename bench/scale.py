"""Measures how long a rank of a large run takes to open the manifest of a web-scale data set and plan an epoch.

Usage: python -m bench.scale [--rows 200000000] [--shards 20000] [--ranks 1024]
The manifest is made up: row groups of about a million tokens, with Wikipedia's mean length. Each rank of a run opens
the manifest, plans the epoch, and lists its slices of row groups before its first step. Here, one process lists the
slices of all ranks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from bench.processes import ROOT, describe_machine, peak_bytes, watch
from pipeline.dataset import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    Manifest,
    Shard,
    Special,
    read_manifest,
    shard_name,
    write_manifest,
)
from trainer.data import MicroBatchShape, lanes_of
from trainer.data.plan import Plan

OUT = ROOT / "bench" / "out"
MEAN_LENGTH = 256
GROUP_ROWS = 4_096
MOST_S = 10.0
MOST_BYTES = 2 << 30
_SHAPE = MicroBatchShape(tokens=32_768, pairs=256, masked=8_192, max_seq_length=512)


@dataclass(frozen=True, slots=True)
class Scale:
    """The measurements. Wall times are in seconds, from a process that does nothing else.

    `blocks` is the number of slices of row groups. `peak_bytes` is the highest resident memory of the process.
    """

    rows: int
    shards: int
    row_groups: int
    ranks: int
    manifest_bytes: int
    open_s: float
    plan_s: float
    slice_s: float
    blocks: int
    peak_bytes: int

    @property
    def total_s(self) -> float:
        """The sum of all times, in seconds."""
        return self.open_s + self.plan_s + self.slice_s


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure in a new process, print the measurements and write bench/out/scale.json. Return 1 if a goal is missed,
    otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000_000)
    parser.add_argument("--shards", type=int, default=20_000)
    parser.add_argument("--ranks", type=int, default=1_024)
    parser.add_argument("--opened", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.opened is not None:
        (given.opened / "scale.json").write_text(json.dumps(to_json(slice_plan(given.opened, ranks=given.ranks))))
        return 0
    found = measure_scale(rows=given.rows, shards=given.shards, ranks=given.ranks)
    heading = f"{date.today()}, {describe_machine()}"
    print(heading, *format_scale(found), sep="\n")
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "scale.json").write_text(json.dumps({"machine": heading, **to_json(found)}, indent=1) + "\n")
    return int(found.total_s > MOST_S or found.peak_bytes > MOST_BYTES)


def measure_scale(*, rows: int, shards: int, ranks: int) -> Scale:
    """Write a made-up manifest, and measure in a new process how long it takes to open it, plan an epoch and list all
    slices."""
    with tempfile.TemporaryDirectory(prefix="cloze-bench-") as folder:
        write_manifest(folder, make_manifest(rows=rows, shards=shards), run={})
        watch([sys.executable, "-m", "bench.scale", "--opened", folder, "--ranks", str(ranks)])
        return Scale(
            **{
                name: value
                for name, value in json.loads((Path(folder) / "scale.json").read_text()).items()
                if name != "total_s"
            }
        )


def make_manifest(*, rows: int, shards: int) -> Manifest:
    """Return a manifest of shards of equal size, with row groups of GROUP_ROWS rows of about MEAN_LENGTH tokens
    each."""
    drawn = np.random.default_rng(1)
    each = rows // shards
    groups = tuple([GROUP_ROWS] * (each // GROUP_ROWS) + ([each % GROUP_ROWS] if each % GROUP_ROWS else []))
    entries = []
    for number in range(shards):
        tokens = tuple(
            int(count * MEAN_LENGTH + spread)
            for count, spread in zip(groups, drawn.integers(-2_000, 2_000, len(groups)), strict=True)
        )
        digest = f"{number:064x}"
        entries.append(
            Shard(
                path=shard_name("train", number, shards),
                split="train",
                rows=each,
                tokens=sum(tokens),
                bytes=each * 1_000,
                sha256=digest,
                footer_sha256=digest,
                row_group_rows=groups,
                row_group_tokens=tokens,
                max_masked=77,
                masked=each * 38,
            )
        )
    return Manifest(
        schema_version=SCHEMA_VERSION,
        config={},
        seed=1,
        versions={},
        vocabulary_hash="0" * 64,
        vocabulary_size=30_522,
        special=Special(pad=0, unk=100, cls=101, sep=102, mask=103),
        max_seq_length=512,
        max_predictions=77,
        mask_sets=1,
        next_sentence="random_document",
        sources=("web",),
        shards=tuple(entries),
        files={},
        drops={},
        statistics={},
    )


def slice_plan(root: Path, *, ranks: int) -> Scale:
    """Open the manifest in the folder `root`, plan an epoch, and list the slices of row groups that every rank reads.

    Returns the measurements.
    """
    began = time.perf_counter()
    manifest = read_manifest(root)
    opened = time.perf_counter()
    plan = Plan(manifest, lanes=ranks, shape=_SHAPE, seed=1, pairs=None)
    planned = time.perf_counter()

    blocks = 0
    for rank in range(ranks):
        lanes = lanes_of(rank, world_size=ranks, lanes=ranks)
        blocks += plan.slices(0, lanes=lanes, cursors=[0] * len(lanes)).lane.size
    return Scale(
        rows=manifest.num_rows("train"),
        shards=len(manifest.shards),
        row_groups=int(plan.group_rows.size),
        ranks=ranks,
        manifest_bytes=(root / MANIFEST_NAME).stat().st_size,
        open_s=opened - began,
        plan_s=planned - opened,
        slice_s=time.perf_counter() - planned,
        blocks=blocks,
        peak_bytes=peak_bytes(),
    )


def format_scale(found: Scale) -> list[str]:
    """Return the measurements as lines of Markdown."""
    return [
        f"{found.rows:,} rows in {found.shards:,} shards ({found.row_groups:,} row groups, manifest of "
        f"{found.manifest_bytes / 1e6:,.1f} MB), for {found.ranks:,} ranks",
        "",
        "| open | plan | slice an epoch for every rank | all | goal | peak memory | goal |",
        "|---|---|---|---|---|---|---|",
        f"| {found.open_s:.2f} s | {found.plan_s:.2f} s | {found.slice_s:.2f} s | "
        f"{found.total_s:.2f} s | {MOST_S:g} s | {found.peak_bytes / 2**30:.2f} GiB | {MOST_BYTES / 2**30:g} GiB |",
    ]


def to_json(found: Scale) -> dict[str, Any]:
    """Return all fields and the sum of the times for the JSON file."""
    return {**{name: getattr(found, name) for name in found.__slots__}, "total_s": found.total_s}


if __name__ == "__main__":
    sys.exit(main())
