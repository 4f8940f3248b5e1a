"""BookCorpus's three layouts and a mixture, read with the very configs of docs/how-to/own-corpus.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.config.schema import PipelineConfig, SourceConfig
from pipeline.documents import Document
from pipeline.settings import validate
from source_items import read_source

BOOKS = {
    "emma": ["Emma was rich .", "She was clever .", "Nobody minded ."],
    "alice": ["Alice sat .", "She was tired ."],
}


def example(repository: Path, title: str) -> dict[str, Any]:
    """The YAML block of the guide that begins with the comment `title`."""
    guide = (repository / "docs" / "how-to" / "own-corpus.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"```yaml\n# {re.escape(title)}\n(.*?)```", guide, re.S)
    tree: dict[str, Any] = yaml.safe_load(block)
    return tree


def read(repository: Path, title: str, folder: Path) -> list[tuple[str, ...]]:
    (entry,) = example(repository, title)["sources"]
    entry["path"] = entry["path"].replace("/corpora/bookcorpus", str(folder))
    source = validate(SourceConfig, entry, origin="guide")
    items = read_source(source)
    return [item.sentences for item in items if isinstance(item, Document)]


def test_one_book_a_row(repository: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [" ".join(lines) for lines in BOOKS.values()]}), tmp_path / "a.parquet")
    assert read(repository, "bookcorpus: one book a row", tmp_path) == [tuple(lines) for lines in BOOKS.values()]


def test_one_sentence_a_row(repository: Path, tmp_path: Path) -> None:
    rows = [{"text": line, "book": book} for book, lines in BOOKS.items() for line in lines]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert read(repository, "bookcorpus: one sentence a row", tmp_path) == [tuple(lines) for lines in BOOKS.values()]


def test_one_sentence_a_line(repository: Path, tmp_path: Path) -> None:
    lines = [f"line {number} ." for number in range(2_500)]
    (tmp_path / "books_large_p1.txt").write_text("\n".join(lines) + "\n")
    found = read(repository, "bookcorpus: one sentence a line", tmp_path)
    assert [len(document) for document in found] == [1000, 1000, 500]
    assert [line for document in found for line in document] == lines


@pytest.mark.parametrize("title", ["a mixture"])
def test_the_mixture_is_a_valid_config(repository: Path, title: str) -> None:
    config = validate(PipelineConfig, {**example(repository, title), "output": "out"}, origin="guide")
    assert config.source_names == ("books", "wiki", "web")
    assert config.source_weights == (2.5, 1.0, 0.3)
