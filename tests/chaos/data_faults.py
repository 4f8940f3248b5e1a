"""Damaged Parquet: refused or stopped with its name, and the run goes on once the file is brought back."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from .findings import Finding, judge
from .runs import Run, Stage


def truncate(shard: Path) -> None:
    """The second half is gone."""
    os.truncate(shard, shard.stat().st_size // 2)


def flip_a_bit(shard: Path) -> None:
    """One bit of a page of the second row group, in the column of ids; size and footer stay as they were."""
    column = pq.ParquetFile(shard).metadata.row_group(1).column(0)
    content = bytearray(shard.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    shard.write_bytes(content)


def truncate_before(stage: Stage) -> Finding:
    """A truncated shard when the command is given."""
    return _damage_before(stage, name="truncated Parquet", damage=truncate, expected="the manifest says")


def flip_before(stage: Stage) -> Finding:
    """A bit flipped in a page, which the check at the start does not read."""
    return _damage_before(stage, name="bit-flipped Parquet", damage=flip_a_bit, expected="row group 1: cannot be read")


def _damage_before(stage: Stage, *, name: str, damage: Callable[[Path], None], expected: str) -> Finding:
    run = stage.make_run(f"{name.replace(' ', '-')}-before", own_data=True)
    shard = _shard(run)
    shutil.copyfile(shard, run.output.parent / "aside")
    damage(shard)
    run.start()
    return _restore(run, fault=f"{name} before the start", expected=expected)


def truncate_on_the_way(stage: Stage) -> Finding:
    """A shard is truncated while it is trained on."""
    return _damage_on_the_way(stage, name="truncated Parquet", damage=truncate)


def flip_on_the_way(stage: Stage) -> Finding:
    """A bit of a page flips while the shard is trained on."""
    return _damage_on_the_way(stage, name="bit-flipped Parquet", damage=flip_a_bit)


def _damage_on_the_way(stage: Stage, *, name: str, damage: Callable[[Path], None]) -> Finding:
    run = stage.make_run(f"{name.replace(' ', '-')}-on-the-way", own_data=True)
    shutil.copyfile(_shard(run), run.output.parent / "aside")
    run.start()
    run.wait_for_step(12)
    damage(_shard(run))
    return _restore(run, fault=f"{name} on the way", expected="row group")


def _restore(run: Run, *, fault: str, expected: str) -> Finding:
    status, broken = run.finish(), []
    error = next((line.text for line in run.lines if line.text.startswith("error: ")), "")
    if status != 2 or expected not in error or str(_shard(run)) not in error:
        broken.append(f"status {status}: {error}")
    os.replace(run.output.parent / "aside", _shard(run))
    since = time.monotonic()
    run.start()
    shown = error.removeprefix("error: ").replace(f"{run.data}/", "").split("(")[0].strip().rstrip(":;")
    happened = f"status 2: {shown}; brought back, the run went on"
    return judge(run, fault=fault, happened=happened, since=since, broken=broken)


def _shard(run: Run) -> Path:
    return run.data / run.stage.manifest.shards_of("train")[0].path


FAULTS = (truncate_before, flip_before, truncate_on_the_way, flip_on_the_way)
