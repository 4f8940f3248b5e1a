"""The chapters and stretches of a book are held out together, and no held-out text stays in training."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpora import find_sides, make_config, make_documents
from pipeline.build.recipe import build
from pipeline.documents import Document
from pipeline.sources import groups
from pipeline.sources.splits import list_splits, read_documents


def make_books(count: int, *, chapters: int = 4) -> list[list[list[str]]]:
    """Books of chapters of long sentences."""
    texts = make_documents(count * chapters, seed=5, sentences=(14, 20))
    return [texts[start : start + chapters] for start in range(0, count * chapters, chapters)]


def write_books(folder: Path, books: Sequence[Sequence[Sequence[str]]]) -> dict[str, Any]:
    folder.mkdir()
    for number, book in enumerate(books):
        parts = [f"CHAPTER {place}\n\n" + "\n\n".join(chapter) for place, chapter in enumerate(book, start=1)]
        (folder / f"{number}.txt").write_text("\n\n".join(parts))
    return {"kind": "books", "path": str(folder), "unit": "chapter"}


def write_lines(folder: Path, books: Sequence[Sequence[Sequence[str]]]) -> dict[str, Any]:
    folder.mkdir()
    for number, book in enumerate(books):
        (folder / f"{number}.txt").write_text("\n".join(line for chapter in book for line in chapter))
    return {"kind": "text", "path": str(folder), "rows_per_document": 10}


def write_rows(folder: Path, books: Sequence[Sequence[Sequence[str]]]) -> dict[str, Any]:
    folder.mkdir()
    for number, book in enumerate(books):
        rows = [{"text": line} for chapter in book for line in chapter]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{number}.parquet")
    return {"kind": "parquet", "path": str(folder), "row": "sentence", "rows_per_document": 10}


WRITERS = [write_books, write_lines, write_rows]


@pytest.mark.parametrize("write", WRITERS)
def test_the_parts_of_a_book_are_on_one_side(tmp_path: Path, write: Callable[..., dict[str, Any]]) -> None:
    source = write(tmp_path / "in", make_books(24))
    config = make_config(tmp_path, sources=[source], validation_fraction=0.3)
    sides = find_sides(tmp_path, build(config, say=lambda line: None))
    books: dict[str, set[bytes]] = {}
    for split in list_splits(config.sources):
        found = [item.id for item in read_documents(split, config.sources[0]) if isinstance(item, Document)]
        books.setdefault(split.path, set()).update(found)
    assert all(len(ids) >= 4 for ids in books.values())
    assert {bool(ids & sides["validation"]) + 2 * bool(ids & sides["train"]) for ids in books.values()} == {1, 2}
    assert set.union(*books.values()) == sides["train"] | sides["validation"]


@pytest.mark.parametrize("write", WRITERS)
def test_no_copy_of_a_held_out_text_stays_in_training(tmp_path: Path, write: Callable[..., dict[str, Any]]) -> None:
    """Another source has the texts alone, so another hash decides about its copies."""
    source = write(tmp_path / "in", make_books(24))
    first = make_config(tmp_path, sources=[source])
    documents = [
        item
        for split in list_splits(first.sources)
        for item in read_documents(split, first.sources[0])
        if isinstance(item, Document)
    ]
    (tmp_path / "copies.jsonl").write_text(
        "".join(json.dumps({"text": "\n".join(item.sentences)}) + "\n" for item in documents)
    )
    copies = {"kind": "jsonl", "path": str(tmp_path / "copies.jsonl")}
    config = make_config(tmp_path, sources=[source, copies], validation_fraction=0.3, shards=2)
    manifest = build(config, say=lambda line: None)
    sides = find_sides(tmp_path, manifest)
    assert not sides["train"] & sides["validation"]
    assert sides["train"] | sides["validation"] == {item.id for item in documents}
    assert manifest.drops["duplicate"] == len(documents)


def test_stretches_are_grouped_by_text_and_not_by_document_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "RUN_CHARACTERS", 100)
    stretches = groups.Stretches()
    found = []
    for number in range(9):
        stretches.add(f"{number}" * 30)
        found.append(stretches.end_document())
    assert [found.index(name) for name in found] == [0, 0, 0, 0, 4, 4, 4, 4, 8]
    assert found[4] == Document("", ("4" * 30,)).id


def test_too_few_books_are_refused_with_the_smallest_fraction(tmp_path: Path) -> None:
    source = write_books(tmp_path / "in", make_books(5))
    config = make_config(tmp_path, sources=[source], validation_fraction=0.01)
    with pytest.raises(
        ValueError, match=r"holds out 0 of 20 documents \(chapters .* together\).*works here is "
    ) as caught:
        build(config, say=lambda line: None)
    fraction = float(str(caught.value).split("works here is ")[1].split(";")[0])
    manifest = build(config.model_copy(update={"validation_fraction": fraction}), say=lambda line: None)
    assert len(find_sides(tmp_path, manifest)["validation"]) == 4


def test_one_book_cannot_be_held_out_in_part(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", make_books(1))
    config = make_config(tmp_path, sources=[source], validation_fraction=0.01)
    with pytest.raises(
        ValueError, match="at least 2: all are parts of one book; set validation_fraction=0, or add books"
    ):
        build(config, say=lambda line: None)
