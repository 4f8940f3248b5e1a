"""A whole build: its steps, its Beam graph, reading and writing of the data, and advice on likely config mistakes."""

from pipeline.build.advice import list_advice, refuse_few_books
from pipeline.build.read_split import list_written, spill_documents
from pipeline.build.recipe import build, check_paths
from pipeline.build.write_shard import build_shard
