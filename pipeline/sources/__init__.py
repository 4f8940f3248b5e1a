"""Sources of documents: which parts the input has, and what is in each part.

Reading the same split again gives the same documents and drops in the same order, whatever else is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.config import SourceConfig
from pipeline.documents import Document, Drop, Split
from pipeline.sources.books import read_books, split_books
from pipeline.sources.listing import list_files
from pipeline.sources.records import read_records, split_records
from pipeline.sources.text import read_text, split_text
from pipeline.sources.wikipedia import read_dump, split_dump

_READERS: dict[str, Callable[..., Iterator[Document | Drop]]] = {
    "wikipedia": read_dump,
    "books": read_books,
    "text": read_text,
    "jsonl": read_records,
    "parquet": read_records,
}


def list_splits(sources: Sequence[SourceConfig]) -> list[Split]:
    """Every part of every source, largest estimated text first; equal ones by source, file name and place.

    Independent of the order in which paths are given and listed. Raises ValueError naming the source, the path, and the
    remedy for missing, unmatched, empty, unreadable files and for a file that is listed twice.
    """
    splits: list[Split] = []
    seen: dict[Path, str] = {}
    for index, source in enumerate(sources):
        label = f"sources.{index} ({source.kind})"
        for path in list_files(source, label=label):
            resolved = path.resolve()
            if resolved in seen:
                raise ValueError(f"{label}: {path} is also read by {seen[resolved]}; list it once")
            seen[resolved] = label
            splits.extend(_split_file(path, source=source, index=index))
    return sorted(
        splits, key=lambda split: (-split.text_bytes, split.source, Path(split.path).name, split.path, split.start)
    )


def _split_file(path: Path, *, source: SourceConfig, index: int) -> list[Split]:
    if source.kind == "wikipedia":
        return split_dump(path, source=index)
    if source.kind == "books":
        return split_books(path, source=index)
    if source.kind == "text":
        return split_text(path, source=index, config=source)
    return split_records(path, source=index, config=source)


def read_documents(split: Split, source: SourceConfig) -> Iterator[Document | Drop]:
    """Documents of one split in their order in the file, and a Drop for each thing left out.

    Raises ValueError naming file, place and remedy for damaged input.
    """
    return _READERS[source.kind](split, source=source)


def refuse_empty_source(source: SourceConfig, *, num_documents: int, drops: Mapping[str, int]) -> None:
    """Raise ValueError where a source gave no document at all, naming its path and what was dropped for what reason."""
    if num_documents > 0:
        return
    counts = ", ".join(
        f"{count} {reason}" for reason, count in sorted(drops.items(), key=lambda item: (-item[1], item[0]))
    )
    what = "article" if source.kind == "wikipedia" else "document"
    paths = ", ".join(source.paths)
    raise ValueError(
        f"{paths}: not one {what} in this source of kind {source.kind} (dropped: {counts or 'nothing'}); "
        f"check that the path, kind and language={source.language} are right"
    )
