"""Checks the values of a manifest that somebody else may have written, whatever its hash says.

Readers allocate memory by these numbers, divide by them, and show these texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.dataset.manifest import Manifest, Shard

_MOST_TOKENS = 1 << 50
_MOST_GROUP_ROWS = 1 << 31
_LIMITS = {
    "vocabulary_size": (1, 1 << 31),
    "max_seq_length": (1, 65_535),
    "max_predictions": (1, 65_535),
    "mask_sets": (1, 65_535),
}
"""The least and the greatest value of each number. Lengths and positions are stored in 16 bits."""


def find_implausible(manifest: Manifest) -> str:
    """Return the first value of `manifest` that no data set has, with its key, or "" if there is none."""
    return next(_list_faults(manifest), "")


def _list_faults(manifest: Manifest) -> Iterator[str]:
    for key, (least, most) in _LIMITS.items():
        value = getattr(manifest, key)
        if not least <= value <= most:
            yield f"{key}={value}: not from {least} to {most}"
    for name, token in manifest.special:
        if not 0 <= token < manifest.vocabulary_size:
            yield f"special.{name}={token}: not one of the {manifest.vocabulary_size} token ids"
    texts = [manifest.vocabulary_hash, manifest.next_sentence, *manifest.sources, *manifest.versions.values()]
    for text in (*texts, *manifest.files, *manifest.files.values()):
        if not text.isprintable():
            yield f"{text!r}: has characters that cannot be shown"
    for shard in manifest.shards:
        fault = _find_fault_of_shard(shard)
        if fault:
            yield f"shards: {shard.path!r}: {fault}"
    if len({shard.path for shard in manifest.shards}) < len(manifest.shards):
        yield "shards: a path is listed twice"
    yield from _list_faults_of_statistics(manifest.statistics)


def _find_fault_of_shard(shard: Shard) -> str:
    if not (shard.path + shard.sha256 + shard.footer_sha256).isprintable():
        return "has characters that cannot be shown"
    for key, total in (("rows", shard.rows), ("tokens", shard.tokens)):
        groups: tuple[int, ...] = getattr(shard, f"row_group_{key}")
        if min(groups, default=0) < 0 or sum(groups) != total or total > _MOST_TOKENS:
            return f"{key}={total}: not the sum of row_group_{key}"
    if (
        len(shard.row_group_rows) != len(shard.row_group_tokens)
        or max(shard.row_group_rows, default=0) > _MOST_GROUP_ROWS
    ):
        return "row_group_rows and row_group_tokens: not as many, or too large"
    if not (0 <= shard.max_masked <= 65_535 and 0 <= shard.masked <= _MOST_TOKENS and shard.bytes >= 0):
        return f"bytes={shard.bytes}, max_masked={shard.max_masked}, masked={shard.masked}: not possible"
    return ""


def _list_faults_of_statistics(statistics: Mapping[str, Any]) -> Iterator[str]:
    shortcuts, splits = statistics.get("shortcuts", {}), statistics.get("splits", {})
    if not isinstance(shortcuts, Mapping) or not all(_is_finite(value) for value in shortcuts.values()):
        yield "statistics.shortcuts: not numbers by name"
    if not isinstance(splits, Mapping) or not all(isinstance(split, Mapping) for split in splits.values()):
        yield "statistics.splits: not a mapping of mappings"
        return
    for name, split in splits.items():
        lengths = split.get("lengths", [])
        if not isinstance(lengths, list) or not all(type(number) is int and number >= 0 for number in lengths):
            yield f"statistics.splits.{name}.lengths: not a list of counts"


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
