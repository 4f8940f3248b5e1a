"""The step of a build between reading documents and writing shards. It chooses the bucket of each document, and writes
spill files."""

from pipeline.shuffle.buckets import (
    MIN_DOCUMENTS,
    MIN_SHARE_OF_MEAN,
    BucketCount,
    Buckets,
    ShardPlan,
    choose_buckets,
    halves_of,
    membership,
    plan_shards,
)
from pipeline.shuffle.extents import BucketRange, Extent, SpillFile
from pipeline.shuffle.levels import Join, divide_buckets, join_spills
from pipeline.shuffle.spill import (
    Origin,
    SpillWriter,
    find_extents,
    read_documents,
    read_index,
    read_origins,
)
from pipeline.shuffle.tables import Table, read_each, read_table_row, write_table
