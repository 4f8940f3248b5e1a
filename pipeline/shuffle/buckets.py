"""The bucket of each document, the number of buckets, and which small ones are joined.

All of it depends on the documents' hashes, the size of the input and the config: never on workers, paths or order.
A bucket becomes one shard; negatives come from its other documents, so that no process holds the corpus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from pipeline.dataset import SplitName
from pipeline.units import count_of

TEXT_BYTES_PER_BUCKET = 64_000_000
MIN_DOCUMENTS = 8
"""A bucket with fewer documents is joined with its neighbour, because its negatives would repeat."""
MIN_SHARE_OF_MEAN = Fraction(1, 10)
"""A bucket with fewer tokens than this share of the mean is joined too."""
_HASH_RANGE = 2**64


@dataclass(frozen=True, slots=True)
class Buckets:
    """Numbers of buckets: the first `train` hold training documents, the other `validation` held-out ones."""

    train: int
    validation: int
    validation_fraction: float

    @property
    def total(self) -> int:
        """Number of buckets."""
        return self.train + self.validation

    def bucket_of(self, document_id: bytes) -> int:
        """Bucket of a document, by the hash of its text, so that exact duplicates meet."""
        number = int.from_bytes(document_id[8:16], "big")
        if membership(document_id) < self.validation_fraction * _HASH_RANGE:
            return self.train + number % self.validation
        return number % self.train

    def split_of(self, bucket: int) -> SplitName:
        """The part of the set that a bucket belongs to."""
        return "train" if bucket < self.train else "validation"


@dataclass(frozen=True, slots=True)
class BucketCount:
    """Contents of a bucket, duplicates counted once. `lowest`: its smallest membership hashes, at most two."""

    bucket: int
    documents: int
    tokens: int
    lowest: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The shard of each bucket, as (part, index), and the number of shards in each part of the set."""

    shard_of: dict[int, tuple[SplitName, int]]
    num_shards: dict[SplitName, int]


def membership(document_id: bytes) -> int:
    """64 bits that decide whether a document is held out; independent of the bits that choose its bucket."""
    return int.from_bytes(document_id[:8], "big")


def choose_buckets(*, text_bytes: int, shards: int | Literal["auto"], validation_fraction: float) -> Buckets:
    """Choose the number of buckets: `shards` training buckets or, if that is auto, by the size of the text."""
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
    """Join small buckets and number the shards.

    Neighbours are joined, in order, until the group has MIN_DOCUMENTS and MIN_SHARE_OF_MEAN of the mean bucket's
    tokens; the rest joins the last group. A bucket without documents (all were near duplicates) goes to the first
    shard, which counts its drops. ValueError if a part of the set would have fewer than `fewest` documents: negatives
    need another document. `whole_books`: some documents are whole books, which could be split into chapters.
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
    """Raise ValueError if a part of the set has too few documents. `more`: how to get more, for the message."""
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
    """The next larger number with three significant digits."""
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return float(f"{(math.floor(value * scale) + 1) / scale:.3g}")
