"""Everything that a source gives, for tests."""

from __future__ import annotations

from pipeline.config.schema import SourceConfig
from pipeline.documents import Document, Drop
from pipeline.sources.splits import list_splits, read_documents


def read_source(source: SourceConfig) -> list[Document | Drop]:
    """Documents and drops of all splits, in the order of the splits."""
    return [item for split in list_splits([source]) for item in read_documents(split, source)]
