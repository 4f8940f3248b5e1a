"""Chooses whether documents reach their buckets in one step or in two, and does the second step.

In one step, each split (part of the input) is divided into all buckets. If there are many buckets, a split of 32 MB has
only about one document for each bucket, so almost every document must be read on its own. With two steps, the first
step divides each split only into ranges of about sqrt(buckets) buckets. The second step reads one range from some of
the spill files, and divides it into its buckets. The second step copies the tokens once more. It costs about a tenth of
a build's CPU time, and as much disk as the first step.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipeline.shuffle.buckets import TEXT_BYTES_PER_BUCKET, Buckets
from pipeline.shuffle.extents import BucketRange, SpillFile
from pipeline.shuffle.spill import SpillWriter, find_extents, read_with_origins

MOST_BUCKETS_A_FILE = 1024
"""With more buckets than this, there are two steps. At the limit, a split of 32 MB has 32 kB for each bucket."""
_TEXT_BYTES_A_JOIN = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Join:
    """A task of the second step of the shuffle. The first step has put the documents of several neighbouring buckets
    together; the second step separates them. The task reads the documents of the buckets in the range `buckets` from
    some of the spill files. The spill files are dealt to `parts` tasks, and `part` is the index of this task."""

    buckets: BucketRange
    part: int
    parts: int


def divide_buckets(buckets: Buckets) -> tuple[BucketRange, list[Join]]:
    """Plan how documents reach their buckets: in one step or, if there are many buckets, in two. The first of two steps
    puts several neighbouring buckets into one row of a spill file's table. The second step divides each row into single
    buckets.

    Return (range, tasks). The range says which buckets share a row in the first step, and the tasks are the work of the
    second step. If one step is enough, each bucket has a row of its own, and there are no tasks.

    A task reads about _TEXT_BYTES_A_JOIN of text if buckets have TEXT_BYTES_PER_BUCKET.
    """
    if buckets.total <= MOST_BUCKETS_A_FILE:
        return BucketRange(0, buckets.total), []
    width = math.isqrt(buckets.total - 1) + 1
    rows = -(-buckets.total // width)
    parts = -(-width * TEXT_BYTES_PER_BUCKET // _TEXT_BYTES_A_JOIN)
    joins = [
        Join(BucketRange(first, min(width, buckets.total - first)), part, parts)
        for first in range(0, buckets.total, width)
        for part in range(parts)
    ]
    return BucketRange(0, rows, width), joins


def join_spills(
    join: Join, *, files: Sequence[SpillFile], folder: str, buckets: Buckets, id_type: pa.DataType
) -> SpillFile:
    """Do one task of the second step of the shuffle, which divides ranges of buckets into single buckets. Copy the
    documents of join.buckets from spill files into a new spill file, and return the new file. The marks that say which
    documents are held out are copied too. Old and new files are in `folder`.

    The content depends only on the content of `files`, not on their names. Memory holds one SpillWriter and one extent
    (byte range of a spill file).
    """
    own = sorted((file for file in files if file.key % join.parts == join.part), key=lambda file: (file.key, file.name))
    first = join.buckets.first
    key = zlib.crc32(f"{first} {join.part}".encode())
    extents = find_extents(own, folder=folder, bucket=first)
    with SpillWriter(
        folder, name=f"joined-{first}", bucket_of=buckets.bucket_of, id_type=id_type, buckets=join.buckets, key=key
    ) as writer:
        for document, origin, group in read_with_origins(extents, id_type=id_type):
            if document.ids.size:
                writer.add(document, origin=origin, group=group)
            else:
                writer.mark_held_out(document, bucket=buckets.train_bucket_of(document.id))
    return writer.file
