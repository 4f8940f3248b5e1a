"""Chooses the number of buckets, the bucket of each document, and which small buckets are joined.

A bucket is a group of documents that becomes one shard. Negatives (wrong next sentences) come from other documents of
the same bucket, so no process holds the corpus. All choices depend on the documents' hashes, the size of the input and
the config: never on workers, paths or order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pipeline.dataset import SplitName
from pipeline.units import count_of

TEXT_BYTES_PER_BUCKET = 64_000_000
MIN_DOCUMENTS = 8
"""A bucket with fewer documents is joined with its neighbour. Its negatives (wrong next sentences) would repeat."""
MIN_SHARE_OF_MEAN = Fraction(1, 10)
"""A bucket with fewer tokens than this share of the mean bucket's is joined too."""
_HASH_RANGE = 2**64


@dataclass(frozen=True, slots=True)
class Buckets:
    """The number of buckets for training and for validation. The first `train` buckets hold the training documents."""

    train: int
    validation: int
    validation_fraction: float

    @property
    def total(self) -> int:
        """The number of all buckets."""
        return self.train + self.validation

    def bucket_of(self, document_id: bytes) -> int:
        """Return the bucket of a document. It depends on the hash of the text, so that exact duplicates meet."""
        number = int.from_bytes(document_id[8:16], "big")
        if membership(document_id) < self.validation_fraction * _HASH_RANGE:
            return self.train + number % self.validation
        return number % self.train

    def buckets_of(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return bucket_of of each id, int64[n]. `ids` has 16 bytes each, contiguous or not: V16[n]."""
        halves = np.ascontiguousarray(ids).view(">u8").astype(np.uint64).reshape(-1, 2)
        found = (halves[:, 1] % np.uint64(self.train)).astype(np.int64)
        if self.validation:
            held = halves[:, 0] < np.uint64(math.ceil(self.validation_fraction * _HASH_RANGE))
            found[held] = self.train + (halves[held, 1] % np.uint64(self.validation)).astype(np.int64)
        return found

    def split_of(self, bucket: int) -> SplitName:
        """Return the part of the data set (train or validation) that a bucket belongs to."""
        return "train" if bucket < self.train else "validation"


@dataclass(frozen=True, slots=True)
class BucketCount:
    """Counts of one bucket, with duplicates counted once. `lowest` holds its two smallest hashes from `membership`."""

    bucket: int
    documents: int
    tokens: int
    lowest: tuple[int, ...]


@dataclass(frozen=True)
class ShardPlan:
    """Maps each bucket to its shard, as (part of the data set, index), and holds the number of shards in each part."""

    shard_of: dict[int, tuple[SplitName, int]]
    num_shards: dict[SplitName, int]

    @cached_property
    def buckets_of(self) -> dict[int, tuple[int, ...]]:
        """All buckets of each shard, by the first of them."""
        found: dict[tuple[SplitName, int], list[int]] = {}
        for bucket, shard in sorted(self.shard_of.items()):
            found.setdefault(shard, []).append(bucket)
        return {buckets[0]: tuple(buckets) for buckets in found.values()}


def membership(document_id: bytes) -> int:
    """Return the 64-bit hash that decides whether a document is held out. Other bits of the id choose its bucket."""
    return int.from_bytes(document_id[:8], "big")


def choose_buckets(*, text_bytes: int, shards: int | Literal["auto"], validation_fraction: float) -> Buckets:
    """Choose how many buckets there are.

    `shards` is the number for training; with "auto" there is one for each TEXT_BYTES_PER_BUCKET of text.
    """
    held_out = validation_fraction
    if shards == "auto":
        train = max(1, math.ceil(text_bytes / TEXT_BYTES_PER_BUCKET))
        validation = math.ceil(text_bytes * held_out / TEXT_BYTES_PER_BUCKET)
    else:
        train = shards
        validation = math.ceil(shards * held_out / (1 - held_out))
    return Buckets(train, validation=max(1, validation) if held_out else 0, validation_fraction=held_out)


def plan_shards(
    counts: Sequence[BucketCount], *, buckets: Buckets, fewest: int = 2, whole_books: bool = False
) -> ShardPlan:
    """Join small buckets (groups of documents), and return the shard of each bucket.

    Neighbouring buckets are joined, in order, until they have MIN_DOCUMENTS and MIN_SHARE_OF_MEAN of the mean bucket's
    tokens. What is left at the end joins the last shard. A bucket whose documents were all near duplicates goes to the
    first shard, where its drops are counted.

    Raises ValueError if train or validation would have fewer than `fewest` documents, because negatives (wrong next
    sentences) need another document. With `whole_books` the message proposes to split books into chapters.
    """
    ordered = sorted((count for count in counts if count.documents), key=lambda count: count.bucket)
    more = "set unit: chapter for books, add documents" if whole_books else "add documents"
    _check_documents(ordered, buckets=buckets, fewest=fewest, more=more)
    shard_of: dict[int, tuple[SplitName, int]] = {}
    num_shards: dict[SplitName, int] = {}
    splits: tuple[SplitName, ...] = ("train", "validation")
    for split in splits:
        own = [count for count in ordered if buckets.split_of(count.bucket) == split]
        groups = _join_small(own, num_buckets=buckets.train if split == "train" else buckets.validation)
        num_shards[split] = len(groups)
        shard_of.update((count.bucket, (split, index)) for index, group in enumerate(groups) for count in group)
    shard_of.update((count.bucket, ("train", 0)) for count in counts if not count.documents)
    return ShardPlan(shard_of, num_shards)


def _join_small(counts: Sequence[BucketCount], *, num_buckets: int) -> list[list[BucketCount]]:
    total = sum(count.tokens for count in counts)
    groups: list[list[BucketCount]] = []
    open_group: list[BucketCount] = []
    for count in counts:
        open_group.append(count)
        tokens = sum(member.tokens for member in open_group)
        documents = sum(member.documents for member in open_group)
        if documents >= MIN_DOCUMENTS and tokens * num_buckets >= MIN_SHARE_OF_MEAN * total:
            groups.append(open_group)
            open_group = []
    if not groups:
        return [open_group] if open_group else []
    groups[-1].extend(open_group)
    return groups


def _check_documents(counts: Sequence[BucketCount], *, buckets: Buckets, fewest: int, more: str) -> None:
    """Raise ValueError if train or validation has too few documents. `more` is the remedy that the message proposes."""
    documents = sum(count.documents for count in counts)
    if documents < fewest:
        raise ValueError(
            f"the sources hold {count_of(documents, 'distinct document')} with text; at least 2 are needed, because a "
            f"wrong next sentence comes from another document; {more}, check where the sources end a document, or set "
            "next_sentence=sentence_order or none"
        )
    held_out = sum(count.documents for count in counts if buckets.split_of(count.bucket) == "validation")
    fraction = buckets.validation_fraction
    if fraction and held_out < fewest:
        lowest = sorted(number for count in counts for number in count.lowest)[:fewest]
        needed = _round_up(lowest[-1] / _HASH_RANGE)
        remedy = f"set validation_fraction=0, or {more}"
        if documents >= 2 * fewest and needed <= 0.5:
            remedy = f"the smallest value that works here is {needed}; set it, or 0 to hold out nothing, or {more}"
        raise ValueError(
            f"validation_fraction={fraction} holds out {held_out} of {count_of(documents, 'document')}, but must "
            f"hold out at least {fewest}: {remedy}"
        )
    if documents - held_out < fewest:
        raise ValueError(
            f"validation_fraction={fraction} leaves {documents - held_out} of {count_of(documents, 'document')} for "
            f"training, but must leave at least {fewest}: lower it, or {more}"
        )


def _round_up(value: float) -> float:
    """Return the next larger number with three significant digits."""
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return float(f"{(math.floor(value * scale) + 1) / scale:.3g}")
