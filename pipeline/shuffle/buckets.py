"""Which bucket a document belongs to, how many buckets there are, and which small ones are joined.

All of it is a function of the documents' hashes, the input's size and the config: never of workers, paths or order.
A bucket becomes one shard; next-sentence negatives come from its other documents, so no process holds the corpus.
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
"""A bucket with fewer documents is joined with its neighbour: negatives would repeat themselves."""
MIN_SHARE_OF_MEAN = Fraction(1, 10)
"""A bucket with fewer tokens than this share of the mean is joined too."""
_HASH_RANGE = 2**64


@dataclass(frozen=True, slots=True)
class Buckets:
    """The first buckets hold training documents, the rest the held-out ones."""

    train: int
    validation: int
    validation_fraction: float

    @property
    def total(self) -> int:
        """Number of buckets."""
        return self.train + self.validation

    def bucket_of(self, document_id: bytes) -> int:
        """Bucket of a document, by the hash of its text: exact duplicates meet."""
        number = int.from_bytes(document_id[8:16], "big")
        if membership(document_id) < self.validation_fraction * _HASH_RANGE:
            return self.train + number % self.validation
        return number % self.train

    def split_of(self, bucket: int) -> SplitName:
        """Which part of the set a bucket belongs to."""
        return "train" if bucket < self.train else "validation"


@dataclass(frozen=True, slots=True)
class BucketCount:
    """What a bucket holds, duplicates counted once. `lowest`: up to two smallest membership hashes."""

    bucket: int
    documents: int
    tokens: int
    lowest: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Which shard each non-empty bucket goes to, and how many shards each part of the set has."""

    shard_of: dict[int, tuple[SplitName, int]]
    num_shards: dict[SplitName, int]


def membership(document_id: bytes) -> int:
    """64 bits that decide whether a document is held out; independent of those that choose its bucket."""
    return int.from_bytes(document_id[:8], "big")


def choose_buckets(*, text_bytes: int, shards: int | Literal["auto"], validation_fraction: float) -> Buckets:
    """Number of buckets from the size of the text; `shards` sets that of training buckets, unless it is auto."""
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
    """Join buckets that are too small and number the shards.

    Buckets are walked in order; neighbours are joined until the group has MIN_DOCUMENTS and MIN_SHARE_OF_MEAN of
    the mean bucket's tokens; what is left at the end joins the last group. A bucket without documents (all were near
    duplicates) goes with the first shard, which counts what was left out. ValueError where a part of the set would
    have fewer than `fewest` documents: alone, a document has no other to take a wrong next sentence from.
    `whole_books`: some of them are books, which could be documents by chapter.
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
    if open_group and groups:
        groups[-1].extend(open_group)
    elif open_group:
        groups.append(open_group)
    return groups


def _check_documents(counts: Sequence[BucketCount], *, buckets: Buckets, fewest: int, more: str) -> None:
    """`more`: what to do for more documents, in words."""
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
            remedy = (
                f"the smallest value that works here is {needed}; set it, or 0 for no held-out documents, or {more}"
            )
        raise ValueError(
            f"validation_fraction={fraction} holds out {held_out} of {count_of(documents, 'document')}; at least "
            f"{fewest} {_are(fewest)} needed: {remedy}"
        )
    if documents - held_out < fewest:
        raise ValueError(
            f"validation_fraction={fraction} leaves {documents - held_out} of {count_of(documents, 'document')} for "
            f"training; at least {fewest} {_are(fewest)} needed: lower it, or {more}"
        )


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _round_up(value: float) -> float:
    """A larger number with three significant digits."""
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return float(f"{(math.floor(value * scale) + 1) / scale:.3g}")
