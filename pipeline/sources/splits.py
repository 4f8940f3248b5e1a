"""Sources of documents: which splits the input has, and what is in each.

Reading the same split again gives the same documents and drops in the same order, whatever else is read.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from pipeline import storage
from pipeline.config import SourceConfig
from pipeline.documents import Document, Drop, Split
from pipeline.sources.books import read_books, split_books
from pipeline.sources.document_cache import read_through
from pipeline.sources.listing import list_files
from pipeline.sources.records import read_records, split_records
from pipeline.sources.text import read_text, split_text
from pipeline.sources.wikipedia import read_dump, split_dump
from pipeline.tally import ReadTally

_READERS: dict[str, Callable[..., Iterator[Document | Drop]]] = {
    "wikipedia": read_dump,
    "books": read_books,
    "text": read_text,
    "jsonl": read_records,
    "parquet": read_records,
}


def list_splits(sources: Sequence[SourceConfig]) -> list[Split]:
    """Every split of every source, largest estimated text first; equal ones by source, file name and place.

    Independent of the order in which paths are given and listed. Raises ValueError naming the source, the path, and the
    remedy for missing, unmatched, empty, unreadable files and for a file that is listed twice.
    """
    splits: list[Split] = []
    seen: dict[str, str] = {}
    for index, source in enumerate(sources):
        label = f"sources.{index} ({source.kind})"
        files = list_files(source, label=label)
        for path in files:
            resolved = path if storage.is_url(path) else str(Path(path).resolve())
            if resolved in seen:
                raise ValueError(f"{label}: {path} is also read by {seen[resolved]}; list it once")
            seen[resolved] = label
        for found in storage.map_paths(partial(split_file, source=source, index=index), files):
            splits.extend(found)
    return sorted(
        splits,
        key=lambda split: (
            *(-split.text_bytes, split.source, Path(split.path).name),
            *(split.path, split.start, split.part),
        ),
    )


def deal_splits(splits: Sequence[Split], *, workers: int) -> list[tuple[Split, ...]]:
    """The splits for each of at most `workers` workers, of about equal text: each in turn, the largest first, goes to
    the one that has least. So none has more than a fair share and one split."""
    dealt: list[list[Split]] = [[] for _ in range(max(1, workers))]
    least = [(0, number) for number in range(len(dealt))]
    for split in sorted(splits, key=lambda split: -split.text_bytes):
        held, number = least[0]
        dealt[number].append(split)
        heapq.heapreplace(least, (held + split.text_bytes, number))
    return [tuple(each) for each in dealt if each]


def split_file(path: str | Path, *, source: SourceConfig, index: int, split_bytes: int | None = None) -> list[Split]:
    """The splits of one file, in order; `split_bytes`: of about this size instead of what suits a worker, where the
    format allows it."""
    if source.kind == "wikipedia":
        return split_dump(path, source=index, split_bytes=split_bytes)
    if source.kind == "books":
        return split_books(path, source=index, split_bytes=split_bytes)
    if source.kind == "text":
        return split_text(path, source=index, config=source, split_bytes=split_bytes)
    return split_records(path, source=index, config=source, split_bytes=split_bytes)


def read_documents(split: Split, source: SourceConfig) -> Iterator[Document | Drop]:
    """Documents of one split in their order in the file, and a Drop for each thing left out.

    They are read from the source's clean_documents where those are kept, and kept there where they are not yet.
    Raises ValueError naming file, place and remedy for damaged input.
    """
    items = _READERS[source.kind](split, source=source)
    if source.clean_documents is None:
        return items
    return read_through(items, split=split, source=source, folder=source.clean_documents)


def refuse_empty_source(source: SourceConfig, *, num_documents: int, drops: Mapping[str, int], others: int = 0) -> None:
    """Raise ValueError where a source gave no document at all, naming its path and what was dropped for what reason.

    One that has no wikitext, whatever the settings (a dump of Wikidata), passes beside sources with documents: `others`
    is how many they gave.
    """
    if num_documents > 0 or (others > 0 and holds_other_models_only(drops)):
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


def holds_other_models_only(drops: Mapping[str, int]) -> bool:
    """Whether every page of the main namespace was left out for its content model."""
    return drops.get("not_wikitext", 0) > 0 and not set(drops) - {"not_wikitext", "not_main_namespace", "redirect"}


def list_read_warnings(sources: Sequence[SourceConfig], *, read: ReadTally) -> list[str]:
    """What a person should know of the reading: sources without documents."""
    return [
        f"{', '.join(source.paths)}: no article in it is wikitext; nothing of this source is in the set"
        for index, source in enumerate(sources)
        if not read.documents[index]
    ]
