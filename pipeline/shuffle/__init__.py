"""Between the two halves of a build: chooses each document's bucket (a group of documents), and writes spill files."""

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
