"""Passes documents between the halves of a build: chooses the bucket (group) of each, and writes it to a spill file."""

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
