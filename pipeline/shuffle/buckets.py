"""Chooses the number of buckets, the bucket of each document, and which small buckets are joined.

A bucket is a set of documents, chosen by hash, that becomes one shard. Small neighbouring buckets are joined, and
become one shard together. Negatives (wrong next sentences) come from other documents of the same shard and source, so
no process holds the corpus. All choices depend on the documents' hashes, the size of the input and the config: never on
workers, paths or order.
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
"""A bucket with fewer documents is joined with its neighbour, because its negatives (wrong next sentences) would
repeat."""
MIN_SHARE_OF_MEAN = Fraction(1, 10)
"""A bucket is also joined if it has fewer tokens than this share of the mean number of tokens in a bucket."""
_HASH_RANGE = 2**64


@dataclass(frozen=True, slots=True)
class Buckets:
    """Says how many buckets there are for training and for validation. Buckets have numbers: those for training come
    first, then those for validation."""

    train: int
    validation: int
    validation_fraction: float

    @property
    def total(self) -> int:
        """How many buckets there are for training and validation together."""
        return self.train + self.validation

    def bucket_of(self, document_id: bytes, group: bytes = b"") -> int:
        """Return the number of a document's bucket. `document_id` (16 bytes) is a hash of the text, so exact duplicates
        meet in one bucket. `group` is an id that the parts of one book share, which are held out together. A held-out
        document gets a validation bucket. If the document has no group, its own id decides whether it is held out."""
        if self.holds_out(group or document_id):
            return self.train + int.from_bytes(document_id[8:16], "big") % self.validation
        return self.train_bucket_of(document_id)

    def train_bucket_of(self, document_id: bytes) -> int:
        """Return the number of the training bucket of a document. The document is in this bucket unless it is held
        out."""
        return int.from_bytes(document_id[8:16], "big") % self.train

    def holds_out(self, group: bytes) -> bool:
        """Return whether documents are held out. `group` is the id that the parts of one book share or, for a document
        that is no part of a book, the document's id."""
        return membership(group) < self.validation_fraction * _HASH_RANGE

    def buckets_of(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the number of the bucket of each document (int64[n]), for documents that are no parts of a book. `ids`
        (V16[n]) has the documents' ids, contiguous or not."""
        halves = halves_of(ids)
        found = (halves[:, 1] % np.uint64(self.train)).astype(np.int64)
        if self.validation:
            held = halves[:, 0] < np.uint64(math.ceil(self.validation_fraction * _HASH_RANGE))
            found[held] = self.train + (halves[held, 1] % np.uint64(self.validation)).astype(np.int64)
        return found

    def possible_buckets_of(self, ids: npt.NDArray[Any]) -> list[npt.NDArray[np.int64]]:
        """Return the buckets in which documents may be, as a list of arrays int64[n]. The ids of documents tell their
        training bucket, but for a part of a book they do not tell whether it is held out. So the first array has the
        training bucket of each document. If anything is held out, a second array has the validation bucket of each
        document. `ids` (V16[n]) has the documents' ids."""
        last = halves_of(ids)[:, 1]
        found = [(last % np.uint64(self.train)).astype(np.int64)]
        if self.validation:
            found.append(self.train + (last % np.uint64(self.validation)).astype(np.int64))
        return found

    def split_of(self, bucket: int) -> SplitName:
        """Return the part of the data set (train or validation) that a bucket belongs to."""
        return "train" if bucket < self.train else "validation"


@dataclass(frozen=True, slots=True)
class BucketCount:
    """Says how many documents and tokens are in one bucket, with duplicates counted once. A document is held out if its
    hash (see `membership`) is small enough. `lowest` has the two smallest of these hashes in the bucket. With them, an
    error message can propose a fraction to hold out."""

    bucket: int
    documents: int
    tokens: int
    lowest: tuple[int, ...]
    highest: int = _HASH_RANGE
    """The largest hash among the bucket's documents."""


@dataclass(frozen=True)
class ShardPlan:
    """Maps each bucket to its shard, which is a pair (train or validation, index of the shard). Also says how many
    shards train and validation have."""

    shard_of: dict[int, tuple[SplitName, int]]
    num_shards: dict[SplitName, int]

    @cached_property
    def buckets_of(self) -> dict[int, tuple[int, ...]]:
        """A dict with all buckets of each shard, in order. The key is the shard's first bucket."""
        found: dict[tuple[SplitName, int], list[int]] = {}
        for bucket, shard in sorted(self.shard_of.items()):
            found.setdefault(shard, []).append(bucket)
        return {buckets[0]: tuple(buckets) for buckets in found.values()}


def halves_of(ids: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return the first and the last eight bytes of each id as numbers, uint64[n, 2]. The numbers sort like the ids.
    `ids` is V16[n] or uint8[n, 16]."""
    return np.ascontiguousarray(ids).view(">u8").astype(np.uint64).reshape(-1, 2)


def membership(group: bytes) -> int:
    """Return the 64-bit hash that decides whether documents are held out. `group` is the id that the parts of one book
    share or, for a document that is no part of a book, the document's id. Other bits of the document's id choose its
    bucket."""
    return int.from_bytes(group[:8], "big")


def choose_buckets(*, text_bytes: int, shards: int | Literal["auto"], validation_fraction: float) -> Buckets:
    """Choose how many buckets there are for training and for validation.

    `shards` says how many there are for training. If it is "auto", there is one bucket for each TEXT_BYTES_PER_BUCKET
    of `text_bytes` (the size of the text). How many there are for validation follows from `validation_fraction`.
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
    counts: Sequence[BucketCount],
    *,
    buckets: Buckets,
    fewest: int = 2,
    whole_books: bool = False,
    grouped: bool = False,
) -> ShardPlan:
    """Decide which buckets become one shard, and return the shard of each bucket. Most buckets become a shard of their
    own, and small buckets are joined.

    Neighbouring buckets are joined, in order, until together they have at least MIN_DOCUMENTS documents, and at least
    MIN_SHARE_OF_MEAN times as many tokens as a bucket has on average. Buckets left at the end join the last shard. A
    bucket without documents (all were near duplicates) goes to the first shard, where its drops are counted.

    Raises ValueError if train or validation would have fewer than `fewest` documents, because negatives (wrong next
    sentences) need another document. With `whole_books` the message proposes to split books into chapters, and with
    `grouped` it says that the chapters or other parts of a book are held out together.
    """
    ordered = sorted((count for count in counts if count.documents), key=lambda count: count.bucket)
    more = "set unit: chapter for books, add documents" if whole_books else "add documents"
    _check_documents(ordered, buckets=buckets, fewest=fewest, more=more, grouped=grouped)
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
    tokens = documents = 0  # of open_group
    for count in counts:
        open_group.append(count)
        tokens += count.tokens
        documents += count.documents
        if documents >= MIN_DOCUMENTS and tokens * num_buckets >= MIN_SHARE_OF_MEAN * total:
            groups.append(open_group)
            open_group, tokens, documents = [], 0, 0
    if not groups:
        return [open_group] if open_group else []
    groups[-1].extend(open_group)
    return groups


def _check_documents(
    counts: Sequence[BucketCount], *, buckets: Buckets, fewest: int, more: str, grouped: bool = False
) -> None:
    """Raise ValueError if train or validation has fewer than `fewest` documents. `more` is the remedy that the message
    proposes."""
    documents = sum(count.documents for count in counts)
    if documents < fewest:
        raise ValueError(
            f"the sources hold {count_of(documents, 'distinct document')} with text; at least 2 are needed, because a "
            f"wrong next sentence comes from another document; {more}, check where the sources end a document, or set "
            "next_sentence=sentence_order or none"
        )
    held_out = sum(count.documents for count in counts if buckets.split_of(count.bucket) == "validation")
    fraction = buckets.validation_fraction
    of = count_of(documents, "document") + " (chapters or stretches of a book together)" * grouped
    if fraction and held_out < fewest:
        lowest = sorted(number for count in counts for number in count.lowest)[:fewest]
        needed = _round_up(lowest[-1] / _HASH_RANGE)
        remedy = f"set validation_fraction=0, or {more}"
        if documents >= 2 * fewest and needed <= 0.5:
            remedy = f"the smallest value that works here is {needed}; set it, or 0 to hold out nothing, or {more}"
        if grouped and lowest and lowest[0] == max(count.highest for count in counts):
            remedy = "all are parts of one book; set validation_fraction=0, or add books"
        raise ValueError(
            f"validation_fraction={fraction} holds out {held_out} of {of}, but must "
            f"hold out at least {fewest}: {remedy}"
        )
    if documents - held_out < fewest:
        raise ValueError(
            f"validation_fraction={fraction} leaves {documents - held_out} of {of} for "
            f"training, but must leave at least {fewest}: lower it, or {more}"
        )


def _round_up(value: float) -> float:
    """Return the smallest number with three significant digits that is larger than `value`."""
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return float(f"{(math.floor(value * scale) + 1) / scale:.3g}")
