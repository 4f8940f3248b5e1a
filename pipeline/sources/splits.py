"""Divides the input into splits (parts of files, each for one worker) and reads the documents of each split.

Reading a split always gives the same documents and drops in the same order, independent of other splits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
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

_FAIR_SHARES = 512
"""The input is thought of as this many equal shares of text. A file that can only be read from its beginning is divided
into no more parts than the shares that it holds, since each part reads all of it."""
_READERS: dict[str, Callable[..., Iterator[Document | Drop]]] = {
    "wikipedia": read_dump,
    "books": read_books,
    "text": read_text,
    "jsonl": read_records,
    "parquet": read_records,
}


def list_splits(sources: Sequence[SourceConfig]) -> list[Split]:
    """Return every split of every source, sorted by estimated text (largest first), then by source, file name and
    place.

    The order of paths in the config or in a listing does not matter. Raises ValueError naming source, path and remedy
    if a file is missing, empty, unreadable or listed twice, or a path matches nothing.
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
    splits = join_plentiful(splits)
    return sorted(splits, key=lambda a: (-a.text_bytes, a.source, Path(a.path).name, a.path, a.start, a.part))


def join_plentiful(splits: Sequence[Split]) -> list[Split]:
    """Return the splits, with fewer shares for some files. A share is a split that reads a whole file and takes some of
    the documents, so many shares cost time. A file gets fewer shares if each of them would have only a small part of
    the input's text.

    How many shares a file gets depends only on the input, not on the workers, so that a build can continue with other
    workers.
    """
    total = sum(split.text_bytes for split in splits)
    found: list[Split] = []
    for split in splits:
        fitting = -(-split.text_bytes * split.parts * _FAIR_SHARES // max(1, total))
        if split.parts == 1 or fitting >= split.parts:
            found.append(split)
        elif split.part == 0:
            whole = replace(
                split, parts=1, num_bytes=split.num_bytes * split.parts, text_bytes=split.text_bytes * split.parts
            )
            found += whole.share(fitting, part_bytes=1)
    return found


def deal_splits(splits: Sequence[Split], *, workers: int) -> list[tuple[Split, ...]]:
    """Divide the splits among at most `workers` workers, and return the splits of each worker. A worker without splits
    is left out. Each split, from the largest to the smallest, goes to the worker with the least text so far. So no
    worker gets more text than an equal part of the whole and one split."""
    dealt: list[list[Split]] = [[] for _ in range(max(1, workers))]
    least = [(0, number) for number in range(len(dealt))]
    for split in sorted(splits, key=lambda split: -split.text_bytes):
        held, number = least[0]
        dealt[number].append(split)
        heapq.heapreplace(least, (held + split.text_bytes, number))
    return [tuple(each) for each in dealt if each]


def split_file(path: str | Path, *, source: SourceConfig, index: int, split_bytes: int | None = None) -> list[Split]:
    """Return the splits of one file, in order. `index` is the source's index in the config. `split_bytes` is the
    approximate size of a split in bytes, for formats that can be cut at any size."""
    if source.kind == "wikipedia":
        return split_dump(path, source=index, split_bytes=split_bytes)
    if source.kind == "books":
        return split_books(path, source=index, split_bytes=split_bytes)
    if source.kind == "text":
        return split_text(path, source=index, config=source, split_bytes=split_bytes)
    return split_records(path, source=index, config=source, split_bytes=split_bytes)


def read_documents(split: Split, source: SourceConfig) -> Iterator[Document | Drop]:
    """Yield the documents of one split in their order in the file, and a Drop (a counted omission) for everything left
    out.

    If the source sets clean_documents (a folder), the first reading stores the documents there, and later readings take
    them from there. Raises ValueError naming file, place and remedy for damaged input.
    """
    items = _READERS[source.kind](split, source=source)
    if source.clean_documents is None:
        return items
    return read_through(items, split=split, source=source, folder=source.clean_documents)


def refuse_empty_source(source: SourceConfig, *, num_documents: int, drops: Mapping[str, int], others: int = 0) -> None:
    """Raise ValueError if a source gave no document. The message names the source's path, and says from `drops` how
    many documents, pages and sentences were left out for which reason.

    A dump without any wikitext (such as Wikidata), or with nothing but lists, is accepted if other sources gave
    documents. `others` is the number of documents from other sources.
    """
    if num_documents > 0 or (others > 0 and (_has_other_models_only(drops) or _has_lists_only(drops))):
        return
    ordered = sorted(drops.items(), key=lambda item: (-item[1], item[0]))
    counts = ", ".join(f"{count} {reason}" for reason, count in ordered)
    what = "article" if source.kind == "wikipedia" else "document"
    paths = ", ".join(source.paths)
    raise ValueError(
        f"{paths}: no {what} in this source of kind {source.kind} (dropped: {counts or 'nothing'}); "
        f"check that the path, kind and language={source.language} are right"
        f"{', or set wikitext.lists: keep' if _has_lists_only(drops) else ''}"
    )


def _has_other_models_only(drops: Mapping[str, int]) -> bool:
    """Return whether a dump has no wikitext in its articles, like the dump of Wikidata. This is so if pages were
    dropped because their content is not wikitext, and every other drop was a redirect or a page outside the main
    namespace. `drops` counts the dropped pages by reason."""
    return drops.get("not_wikitext", 0) > 0 and not set(drops) - {"not_wikitext", "not_main_namespace", "redirect"}


def _has_lists_only(drops: Mapping[str, int]) -> bool:
    """Return whether some pages were left without any text because their lists were dropped."""
    return drops.get("empty", 0) > 0 and drops.get("list_item", 0) + drops.get("tail_section", 0) > 0


def list_read_warnings(sources: Sequence[SourceConfig], *, read: ReadTally) -> list[str]:
    """Return a warning for each source from which no document was read. Such a source can only be a dump without any
    wikitext, or with nothing but lists, because the build refuses other sources without documents. `read` counts the
    documents by source."""
    warnings = []
    for index, source in enumerate(sources):
        if not read.documents[index]:
            lists = _has_lists_only(read.drops.get(index, {}))
            reason = "its articles have nothing but lists" if lists else "none of its articles is wikitext"
            remedy = "; set wikitext.lists: keep to use them" if lists else ""
            paths = ", ".join(source.paths)
            warnings.append(f"{paths}: {reason}; the data set contains nothing from this source{remedy}")
    return warnings
