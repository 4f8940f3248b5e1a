"""Decides which near duplicates to leave out, in time linear in the number of matches. A match says that a document
resembles a better one (one with more words).

Matches are found in parallel, by band key (a hash of part of a signature). Two documents may share several keys, so a
match may be found several times. To drop repeated matches, each match is put into the bucket (group of documents) of
its worse document. Equal matches then meet, and parts of the buckets can be processed in parallel. Only the decision
itself is one task. Measured: 1.2 CPU seconds and 189 MiB for 1 million matches, 28 seconds and 727 MiB for 20 million.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline import draws, storage
from pipeline.dedup.duplicates import Match
from pipeline.dedup.minhash import MATCH_TYPE
from pipeline.errors import PassingError
from pipeline.shuffle import Buckets, Table, halves_of, read_each, read_table_row, write_table

MOST_PARTS = 1024
"""The most partitions of band keys, and the most parts of the buckets."""
_LOOP_EDGES = 1_000_000

Matches = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class MatchFile:
    """A file of matches with a table at its end. A match (a record of MATCH_TYPE) says that a document resembles a
    better one, and belongs to the bucket (group of documents) of the worse document. In a file from write_dropped, the
    table has a row for each bucket. In other files, it has a row for each part of the buckets. A row says at which byte
    its matches begin, and how many matches it has."""

    path: str
    table: Table


def count_parts(buckets: Buckets) -> int:
    """Return the number of parts into which the buckets (groups of documents) are divided, so that workers can process
    the parts in parallel. There are as many partitions of the band keys (hashes of parts of signatures)."""
    return min(buckets.total, MOST_PARTS)


def write_matches(matches: Matches, *, folder: str, buckets: Buckets) -> MatchFile:
    """Write matches to a new file in `folder`, and return this file. A match says that a document resembles a better
    one, and belongs to the bucket (group of documents) of the worse document. The buckets are divided into parts, and
    each part is later processed by one worker. In the file, the matches of one part are together."""
    parts = count_parts(buckets)
    rows = buckets.buckets_of(matches["id"]) % parts
    return _write_by_row([(matches, rows)], rows=parts, path=storage.join(folder, f"matches-{uuid.uuid4().hex[:16]}"))


def join_matches(files: Sequence[MatchFile], *, part: int, folder: str, buckets: Buckets) -> MatchFile | None:
    """Collect the matches of one part of the buckets (groups of documents) from `files`. A match says that a document
    resembles a better one, and belongs to the bucket of the worse document. Write each distinct match once to a new
    file in `folder`. Return the new file, or None if there are no matches. `part` is the index of the part."""
    found = [np.zeros(0, MATCH_TYPE), *read_each(lambda file: _read_row(file, part), files, path_of=lambda f: f.path)]
    matches = distinct_matches(np.concatenate(found))
    return write_matches(matches, folder=folder, buckets=buckets) if matches.size else None


def write_dropped(parts: Sequence[MatchFile], *, path: str, buckets: Buckets, grouped: bool = False) -> MatchFile:
    """Choose which near duplicates to leave out. For each document left out, write one match (the document and a better
    one that stays) to a file at `path`, and return this file. A match belongs to the bucket of the document left out.
    In the file, the matches of one bucket are together. `parts` are files from join_matches. All matches between a
    document and better ones are in one of these files.

    `grouped` says that documents have groups (see Document), and that a document is held out if its group is. Because a
    match does not name the group, the match is then written for both the training and the validation bucket of the
    document left out. Memory holds all matches written.
    """
    chosen = choose_in_parts([partial(_read_all, file) for file in parts])
    if not grouped:
        filed = ((found, buckets.buckets_of(found["id"])) for found in chosen)
        return _write_by_row(filed, rows=buckets.total, path=path)
    whole = np.concatenate([np.zeros(0, MATCH_TYPE), *chosen])
    rows = buckets.possible_buckets_of(whole["id"])
    return _write_by_row([(np.tile(whole, len(rows)), np.concatenate(rows))], rows=buckets.total, path=path)


def read_dropped(file: MatchFile, *, buckets: Sequence[int]) -> dict[bytes, Match]:
    """Return {id: match} for each document to leave out from the given buckets. The match names the document that
    stays. `file` comes from write_dropped."""
    found = np.concatenate([np.zeros(0, MATCH_TYPE), *(_read_row(file, bucket) for bucket in buckets)])
    return {
        row["id"].tobytes(): Match(row["kept_name"].decode(errors="replace"), round(float(row["similarity"]), 4))
        for row in found
    }


def choose_dropped(matches: Matches) -> Matches:
    """Choose which near duplicates to leave out. Return one match for each document left out (an array of MATCH_TYPE,
    ordered by the ids of the documents left out)."""
    (chosen,) = choose_in_parts([lambda: distinct_matches(matches)])
    return chosen


def choose_in_parts(parts: Sequence[Callable[[], Matches]]) -> Iterator[Matches]:
    """Choose which near duplicates to leave out. A match says that a document resembles a better one, and is called a
    match of the worse document. Each function in `parts` returns a part of the matches. For each part, yield an array
    with one match for each of its documents that is left out.

    The matches of a part are distinct and ordered by the ids of the worse documents, and all matches of a document are
    in one part. Each function is called three times, so that memory never holds more than one part. In addition, memory
    holds 30 bytes for each match of all parts. Documents are visited from the best rank (most words, then the smaller
    id) to the worst. A document is left out if it matches a better document that stays. So no document is dropped in
    favour of a document that is dropped too. Documents are told apart by a 64-bit hash of their ids. Among 20 million
    documents, two have the same hash with probability 1e-5.
    """
    keys, rank = _rank_documents(parts)
    order = np.argsort(keys).astype(np.int32)
    keys = keys[order]
    owners, kept = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    count = 0
    for load in parts:
        matches = load()
        owners.append((count + np.cumsum(_begins(matches)) - 1).astype(np.int32))
        count = int(owners[-1][-1]) + 1 if matches.size else count
        wanted = _keys(matches["kept_id"])
        place = np.minimum(_search_sorted(keys, wanted), max(0, keys.size - 1))
        kept.append(np.where(keys[place] == wanted, order[place], rank.size).astype(np.int32))
    owner, better = np.concatenate(owners), np.concatenate(kept)
    del owners, kept, keys, order
    dropped = _decide(owner, better, rank=rank)
    start = 0
    for load in parts:
        matches = load()
        stop = start + matches.size
        stays = np.flatnonzero(dropped[better[start:stop]] == 0)
        best = stays[np.lexsort((-matches["similarity"][stays], owner[start:stop][stays]))]
        yield matches[best[_changes(owner[start:stop][best])]]
        start = stop


def distinct_matches(matches: Matches) -> Matches:
    """Return each match once, ordered by the ids of its documents."""
    one, other = _halves(matches["id"]), _halves(matches["kept_id"])
    ordered = matches[np.lexsort((other[1], other[0], one[1], one[0]))]
    pairs = np.stack([*_halves(ordered["id"]), *_halves(ordered["kept_id"])], axis=1)
    new = np.ones(ordered.size, np.bool_)
    new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    return ordered[new]


def _decide(owner: npt.NDArray[np.int32], better: npt.NDArray[np.int32], *, rank: npt.NDArray[np.int32]) -> Any:
    """Return uint8[documents + 1]: 1 for each document to leave out, and 0 for each that stays. Only documents that
    resemble a better one have an entry. The last entry, always 0, stands for all other documents.

    Match number i says that the document with the entry owner[i] resembles the better document with the entry
    better[i]. `rank` has the rank of each document with an entry of its own (0 is the best).
    """
    dropped = bytearray(rank.size + 1)
    order = np.argsort(rank[owner], kind="stable").astype(np.int32)
    for start in range(0, order.size, _LOOP_EDGES):
        some = order[start : start + _LOOP_EDGES]
        for one, other in zip(owner[some].tolist(), better[some].tolist(), strict=True):
            if not dropped[other]:
                dropped[one] = 1
    return np.frombuffer(dropped, np.uint8)


def _rank_documents(parts: Sequence[Callable[[], Matches]]) -> tuple[draws.UInt64s, npt.NDArray[np.int32]]:
    """Return two arrays with an entry for each document that resembles a better one and may be left out, in the order
    of `parts`. The first has a 64-bit hash of each document's id, and the second has its rank (0 is the best)."""
    firsts, seconds = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    words = [np.zeros(0, np.int64)]
    for load in parts:
        matches = load()
        matches = matches[_begins(matches)]
        first, second = _halves(matches["id"])
        firsts.append(first)
        seconds.append(second)
        words.append(-matches["words"])
    high, low, fewer = np.concatenate(firsts), np.concatenate(seconds), np.concatenate(words)
    del firsts, seconds, words
    rank = np.empty(high.size, np.int32)
    rank[np.lexsort((low, high, fewer))] = np.arange(high.size, dtype=np.int32)
    return _hash_halves(high, low), rank


def _begins(matches: Matches) -> npt.NDArray[np.bool_]:
    """Return for each match whether it is the first match of its worse document. `matches` are ordered by this
    document."""
    first, second = _halves(matches["id"])
    return _changes(first) | _changes(second)


def _changes(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    new = np.ones(values.size, np.bool_)
    new[1:] = values[1:] != values[:-1]
    return new


def _halves(ids: npt.NDArray[Any]) -> tuple[draws.UInt64s, draws.UInt64s]:
    """Return the first and the last 8 bytes of each document id (16 bytes), as two arrays of numbers. The numbers sort
    like the ids."""
    halves = halves_of(ids)
    return halves[:, 0], halves[:, 1]


def _keys(ids: npt.NDArray[Any]) -> draws.UInt64s:
    return _hash_halves(*_halves(ids))


def _hash_halves(high: draws.UInt64s, low: draws.UInt64s) -> draws.UInt64s:
    """Return a 64-bit hash of each document id, whose halves are `high` and `low`."""
    return draws.mix(high + draws.mix(low))


def _search_sorted(keys: draws.UInt64s, wanted: draws.UInt64s) -> npt.NDArray[np.int64]:
    """Return np.searchsorted(keys, wanted). The values in `wanted` are searched in ascending order, so that memory is
    read in order. With 8 million keys this takes a quarter of the time."""
    order = np.argsort(wanted)
    places = np.empty(wanted.size, np.int64)
    places[order] = np.searchsorted(keys, wanted[order])
    return places


def _write_by_row(parts: Iterable[tuple[Matches, npt.NDArray[np.int64]]], *, rows: int, path: str) -> MatchFile:
    """Write matches to a file at `path`, and after them a table that says where the matches of each table row are.
    Return the file. Each of `parts` is a pair (some matches, the table row of each match), and `rows` says how many
    rows the table has.

    The matches of a row are written together, so all of them must come from the same pair.
    """
    table = np.zeros((rows, 2), np.int64)
    with storage.open_output(path, in_place=True) as stream:
        for matches, row_of in parts:
            counts = np.bincount(row_of, minlength=rows)
            own = np.flatnonzero(counts)
            ends = np.cumsum(counts)[own]
            table[own, 0] = stream.tell() + (ends - counts[own]) * MATCH_TYPE.itemsize
            table[own, 1] = counts[own]
            stream.write(matches[np.argsort(row_of, kind="stable")].tobytes())
        return MatchFile(path, write_table(stream, table))


def _read_row(file: MatchFile, row: int) -> Matches:
    offset, count = read_table_row(file.path, file.table, row=row).tolist()
    return _read(file, offset=offset, count=count)


def _read_all(file: MatchFile) -> Matches:
    return _read(file, offset=0, count=file.table.offset // MATCH_TYPE.itemsize)


def _read(file: MatchFile, *, offset: int, count: int) -> Matches:
    data = storage.read_range(file.path, offset=offset, length=count * MATCH_TYPE.itemsize) if count else b""
    if len(data) != count * MATCH_TYPE.itemsize:
        raise PassingError(f"{file.path}: ends before its matches do; run the build again")
    return np.frombuffer(data, MATCH_TYPE)
