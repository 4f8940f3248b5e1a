"""Between the halves of a build: the bucket of each document, and the spill files that carry it there."""

from pipeline.shuffle.buckets import (
    MIN_DOCUMENTS,
    MIN_SHARE_OF_MEAN,
    BucketCount,
    Buckets,
    ShardPlan,
    choose_buckets,
    membership,
    plan_shards,
)
from pipeline.shuffle.spill import Extent, Origin, SpillWriter, read_documents, read_index, read_origins
