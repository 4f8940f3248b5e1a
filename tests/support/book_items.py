"""Documents and drops of a source of books, for tests."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.schema import SourceConfig
from pipeline.documents import Document, Drop
from source_items import read_source


def read(path: Path, language: str = "en") -> list[Document | Drop]:
    source = SourceConfig(kind="books", path=str(path), language=language)
    return read_source(source)


def documents(items: list[Document | Drop]) -> dict[str, tuple[str, ...]]:
    return {item.name: item.sentences for item in items if isinstance(item, Document)}
