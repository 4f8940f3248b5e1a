"""Runs the sample of one source through the code of the build, and measures each unit (part of the input) read and each
shard written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.parquet as pq

from pipeline.build import build_shard, list_written, spill_documents
from pipeline.dataset import schema
from pipeline.estimate.sampling import Frame, Unit, read_units
from pipeline.runtime import BuildContext, WorkReport
from pipeline.shuffle import Extent, find_extents, read_index
from pipeline.tally import ReadTally
from pipeline.tokenizer import WordTokenizer

_GROUPS = 8
"""At most this number of shards is made from the sample of a source."""
_MASKS = (schema.MASKED_POSITIONS, schema.MASKED_INPUTS)
_SIZES = ("bytes", "pair_bytes", "mask_bytes")
_BUCKET_TOKENS = 20_000_000
"""If the sample has at most this number of tokens, bytes per row are measured on a single shard of the whole sample, in
which no text is repeated. The reason is that a shard with few documents compresses better than a shard of a real build
(by 4% on novels, with two documents instead of eight), and so does a shard with repeated texts."""


@dataclass(slots=True)
class Measured:
    """Holds measurements of the sample of one source.

    `units` has a dict for each unit (part of the input) read, with the keys `size`, `count`, `documents`, `characters`,
    `document_tokens`, `temporary_bytes` and `read_cpu_s`. Each shard is made from a group of units. `groups` has a dict
    for each shard, with the keys `size`, `count`, `rows`, `tokens`, `bytes`, `pair_bytes`, `mask_bytes` and
    `write_cpu_s`. In both kinds of dict, `size` is the total size of the units, and `count` says how many units there
    are.
    """

    frame: Frame
    whole: bool
    read: ReadTally = field(default_factory=ReadTally)
    """The counts of what was read."""
    units: list[dict[str, float]] = field(default_factory=list)
    groups: list[dict[str, float]] = field(default_factory=list)

    def expand(self, name: str) -> float:
        """Return the measurement `name` (a key of `units` or `groups`) scaled to the whole source, or 0 if nothing was
        measured."""
        rows = self.units if self.units and name in self.units[0] else self.groups
        by = "count" if name == "documents" and self.frame.by_file else "size"
        total = float(len(self.frame.units) if by == "count" else self.frame.size)
        size = sum(row[by] for row in rows)
        return sum(row[name] for row in rows) * total / size if size else 0.0


def measure_source(frame: Frame, *, units: Sequence[Unit], context: BuildContext, tokenizer: WordTokenizer) -> Measured:
    """Read `units` (the sample of the source that `frame` describes), build shards of them, and return the
    measurements. A unit is a part of the input that can be read without the rest. If the units have fewer than two
    distinct documents, no shard is built."""
    whole = len(units) == len(frame.units) and not any(unit.begins for unit in units)
    measured = Measured(frame, whole)
    extents: list[list[Extent]] = []
    for unit, items in read_units(units, source=context.config.sources[frame.source]):
        began = time.process_time()
        found = spill_documents(
            items, split=unit.split, context=context, tokenizer=tokenizer, report=WorkReport(None, stage="read")
        )
        extents.append(find_extents(found.spills, folder=context.spills, bucket=0))
        measured.read.merge(found.tally)
        files = list_written(found, folder=context.spills)
        measured.units.append(
            {
                "size": float(unit.size),
                "count": 1.0,
                "documents": float(found.tally.documents.total()),
                "characters": float(found.tally.characters.total()),
                "document_tokens": float(read_index(extents[-1]).tokens.sum()),
                "temporary_bytes": float(sum(Path(path).stat().st_size for path in files)),
                "read_cpu_s": time.process_time() - began,
            }
        )
    groups = _choose_groups(extents)
    measured.groups = [
        _measure_shard(
            members, measured=measured, extents=extents, name=f"{number}", context=context, tokenizer=tokenizer
        )
        for number, members in enumerate(groups)
    ]
    if len(groups) > 1 and sum(unit["document_tokens"] for unit in measured.units) <= _BUCKET_TOKENS:
        sources = tuple(source.model_copy(update={"weight": 1.0}) for source in context.config.sources)
        once = replace(context, config=context.config.model_copy(update={"passes": 1, "sources": sources}))
        mixed = _measure_shard(
            range(len(extents)), measured=measured, extents=extents, name="all", context=once, tokenizer=tokenizer
        )
        rows = sum(group["rows"] for group in measured.groups)
        for name in _SIZES:
            factor = mixed[name] / mixed["rows"] * rows / sum(group[name] for group in measured.groups)
            for group in measured.groups:
                group[name] *= factor
    return measured


def _measure_shard(
    members: Sequence[int],
    *,
    measured: Measured,
    extents: Sequence[Sequence[Extent]],
    name: str,
    context: BuildContext,
    tokenizer: WordTokenizer,
) -> dict[str, float]:
    began = time.process_time()
    path = f"data/{measured.frame.source}-{name}.parquet"
    (shard,) = build_shard(
        [extent for member in members for extent in extents[member]],
        config=context.config,
        tokenizer=tokenizer,
        split="train",
        name=path,
        folder=Path(context.shards),
        scratch=Path(context.spills),
    ).shards
    masks = _count_mask_bytes(Path(context.work) / path)
    return {
        "size": sum(measured.units[member]["size"] for member in members),
        "count": float(len(members)),
        "rows": float(shard.rows),
        "tokens": float(shard.tokens),
        "bytes": float(shard.bytes),
        "pair_bytes": float(shard.bytes - masks),
        "mask_bytes": float(masks),
        "write_cpu_s": time.process_time() - began,
    }


def _choose_groups(extents: Sequence[Sequence[Extent]]) -> list[list[int]]:
    """Divide the units (parts of the input) into groups, each of which becomes a shard of the sample. There are as many
    groups as possible (at most _GROUPS), each with at least two distinct documents.

    `extents` has, for each unit, the ranges of spill files that hold the unit's documents. Return, for each group, the
    indexes of its units in `extents`. Return no group if all units together have fewer than two distinct documents.
    """
    for count in range(min(_GROUPS, len(extents) // 2), 1, -1):
        groups = [list(range(number, len(extents), count)) for number in range(count)]
        if all(_count_documents(group, extents=extents) >= 2 for group in groups):
            return groups
    everything = list(range(len(extents)))
    return [everything] if _count_documents(everything, extents=extents) >= 2 else []


def _count_documents(members: Sequence[int], *, extents: Sequence[Sequence[Extent]]) -> int:
    return int(read_index(extent for member in members for extent in extents[member]).distinct().size)


def _count_mask_bytes(path: Path) -> int:
    metadata = pq.read_metadata(path)
    return sum(
        column.total_compressed_size
        for group in range(metadata.num_row_groups)
        for number in range(metadata.num_columns)
        if (column := metadata.row_group(group).column(number)).path_in_schema.startswith(_MASKS)
    )
