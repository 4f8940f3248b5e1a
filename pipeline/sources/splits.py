"""Sources of documents: which parts the input has, and what is in each part.

Reading the same split again gives the same documents and drops in the same order, whatever else is read.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pipeline import storage
from pipeline.config import SourceConfig
from pipeline.documents import Document, Drop, Piece, Split
from pipeline.sources.books import read_books, split_books
from pipeline.sources.document_cache import read_through
from pipeline.sources.listing import list_files
from pipeline.sources.records import read_records, split_records
from pipeline.sources.text import read_text, split_text
from pipeline.sources.wikipedia import read_dump, split_dump
from pipeline.tally import ReadTally

_MOST_PIECES = 4
"""A fifth would save 0.2 of 8 s for a book of 50 MB."""
_PIECE_BYTES = 8 << 20
"""Text of a piece at least: below, starting another worker's share costs more than it saves."""
_AGAIN = 0.5
"""Share of the work on a book that each of its pieces takes anew: bytes to sentences, and their hash (docs/LOG.md)."""

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


def share_books(splits: Sequence[Split], *, sources: Sequence[SourceConfig], workers: int) -> list[Split]:
    """The splits, the largest first; books in pieces where so many workers may then be ready sooner.

    The least time is the greater of work / workers and the longest split. Pieces are more work in all (_AGAIN), so a
    book within a worker's fair share stays whole. Equal input and workers give equal pieces, which name the records of
    finished ones; nothing that is built depends on them.
    """
    fair = sum(split.text_bytes for split in splits) / workers

    def choices(split: Split) -> list[list[Split]]:
        may_be_cut = sources[split.source].kind == "books" and split.parts == 1 and split.text_bytes > fair
        most = min(_MOST_PIECES, workers, split.text_bytes // _PIECE_BYTES) if may_be_cut else 1
        return [cut_split(split, pieces=pieces) for pieces in range(1, most + 1)] or [[split]]

    options = [choices(split) for split in splits]
    best, least = [list(each[0]) for each in options], _least_time([each[0] for each in options], workers=workers)
    for limit in sorted({pieces[0].text_bytes for each in options if len(each) > 1 for pieces in each}, reverse=True):
        cut = [next((pieces for pieces in each if pieces[0].text_bytes <= limit), each[-1]) for each in options]
        time = _least_time(cut, workers=workers)
        if time < least:
            best, least = cut, time
    return sorted((piece for pieces in best for piece in pieces), key=lambda split: -split.text_bytes)


def _least_time(cut: Sequence[Sequence[Split]], *, workers: int) -> float:
    """In bytes of text: what each of so many workers has to do at least."""
    sizes = [piece.text_bytes for pieces in cut for piece in pieces]
    return max(sum(sizes) / workers, max(sizes, default=0))


def cut_split(split: Split, *, pieces: int) -> list[Split]:
    """A split for each of so many workers, who read the same; a piece's text_bytes are its work."""
    work = _AGAIN + (1 - _AGAIN) / pieces
    each = replace(split, num_bytes=split.num_bytes // pieces, text_bytes=round(work * split.text_bytes))
    return [replace(each, piece=Piece(number, pieces)) for number in range(pieces)]


def own_text_bytes(split: Split) -> int:
    """Bytes of text of which a split alone tells, without what each piece of a book takes anew."""
    of = split.piece.of
    return round(split.text_bytes / (of * _AGAIN + 1 - _AGAIN))


def deal_splits(splits: Sequence[Split], *, hands: int) -> list[tuple[Split, ...]]:
    """The splits in at most `hands` parts of about equal text: each in turn, the largest first, goes to the part that
    has least. So no part has more than a fair share and one split."""
    parts: list[list[Split]] = [[] for _ in range(max(1, hands))]
    least = [(0, number) for number in range(len(parts))]
    for split in sorted(splits, key=lambda split: -split.text_bytes):
        held, number = least[0]
        parts[number].append(split)
        heapq.heapreplace(least, (held + split.text_bytes, number))
    return [tuple(part) for part in parts if part]


def split_file(path: str | Path, *, source: SourceConfig, index: int, split_bytes: int | None = None) -> list[Split]:
    """The parts of one file, in order; `split_bytes`: of about this size instead of what suits a worker, where the
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
