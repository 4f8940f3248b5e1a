"""Plants faults into finished sets: edits rows, writes the shard again and mends what the manifest says of it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.dataset.manifest import (
    TOKEN_COUNTS_NAME,
    Manifest,
    Shard,
    file_sha256,
    footer_sha256,
    read_manifest,
    write_manifest,
)
from pipeline.dataset.schema import token_counts_schema

Rows = list[dict[str, Any]]


def copy_set(source: Path, target: Path) -> Path:
    """A copy of a set to be spoiled."""
    shutil.copytree(source, target)
    return target


def read_shard(root: Path, index: int) -> Rows:
    """Rows of shard `index` of the manifest."""
    rows: Rows = pq.read_table(root / read_manifest(root).shards[index].path).to_pylist()
    return rows


def edit_rows(root: Path, change: Callable[[Rows], Rows | None], *, index: int = 0, row_groups: int = 1) -> None:
    """Change the rows of a shard; files, counts and statistics of the manifest are true of the new ones."""
    manifest = read_manifest(root)
    path = root / manifest.shards[index].path
    schema = pq.read_schema(path)
    rows = read_shard(root, index)
    rows = change(rows) or rows
    write_shard(path, rows, schema=schema, row_groups=row_groups)
    mend(root)


def write_shard(path: Path, rows: Rows, *, schema: pa.Schema, row_groups: int = 1) -> None:
    """Rows as a shard with page checksums."""
    size = -(-len(rows) // row_groups)
    table = pa.Table.from_pylist(rows, schema=schema)
    pq.write_table(table, path, compression="zstd", row_group_size=size, write_page_checksum=True)


def describe_shard(root: Path, shard: Shard) -> Shard:
    """The entry that is true of a shard as it lies there."""
    path = root / shard.path
    group_rows, group_tokens, sizes = [], [], [0]
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group, columns=["input_ids", "masked_positions"]).to_pylist()
            group_rows.append(len(rows))
            group_tokens.append(sum(len(row["input_ids"]) for row in rows))
            sizes += [len(positions) for row in rows for positions in row["masked_positions"]]
    return shard.model_copy(
        update={
            "rows": sum(group_rows),
            "tokens": sum(group_tokens),
            "bytes": path.stat().st_size,
            "sha256": file_sha256(path),
            "footer_sha256": footer_sha256(path),
            "row_group_rows": tuple(group_rows),
            "row_group_tokens": tuple(group_tokens),
            "masked": sum(sizes),
            "max_masked": max(sizes),
        }
    )


def mend(root: Path, **changes: Any) -> Manifest:
    """Make manifest, token counts and statistics true of the files; `changes` go into the manifest as they are."""
    manifest = read_manifest(root)
    shards = tuple(describe_shard(root, shard) for shard in changes.pop("shards", manifest.shards))
    files, statistics = dict(manifest.files), dict(manifest.statistics)
    counts = [0] * manifest.vocabulary_size
    labels: dict[str, list[int]] = {"train": [0, 0], "validation": [0, 0]}
    lengths: dict[str, Counter[int]] = {"train": Counter(), "validation": Counter()}
    sources = [{**source, "rows": 0, "tokens": 0} for source in statistics["sources"]]
    for shard in shards:
        columns = ["input_ids", "next_sentence_label", "source"]
        for row in pq.read_table(root / shard.path, columns=columns).to_pylist():
            lengths[shard.split][len(row["input_ids"])] += 1
            if shard.split == "train" and row["source"] in range(len(sources)):
                sources[row["source"]]["rows"] += 1
                sources[row["source"]]["tokens"] += len(row["input_ids"])
            if shard.split == "train":
                for token in row["input_ids"]:
                    if token < len(counts):
                        counts[token] += 1
            if row["next_sentence_label"] in (0, 1):
                labels[shard.split][row["next_sentence_label"]] += 1
    for token in manifest.special.model_dump().values():
        counts[token] = 0
    table = pq.read_table(root / TOKEN_COUNTS_NAME).to_pydict()
    table["count"] = counts
    pq.write_table(pa.table(table, schema=token_counts_schema()), root / TOKEN_COUNTS_NAME)
    files[TOKEN_COUNTS_NAME] = file_sha256(root / TOKEN_COUNTS_NAME)
    statistics["splits"] = {
        split: {
            **part,
            "not_next_rate": labels[split][1] / sum(labels[split]) if sum(labels[split]) else None,
            "rows": lengths[split].total(),
            "tokens": sum(length * count for length, count in lengths[split].items()),
            "lengths": [lengths[split][length] for length in range(len(part["lengths"]))],
        }
        for split, part in statistics["splits"].items()
    }
    statistics["sources"] = sources
    update = {"shards": shards, "files": files, "statistics": statistics, **changes}
    changed = manifest.model_copy(update=update)
    write_manifest(root, changed, run={"made_by": "tests"})
    return changed
