"""The step between the two halves of a build. It chooses the bucket (group) of each document, and writes spill
files."""

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
