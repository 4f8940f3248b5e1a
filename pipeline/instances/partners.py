"""Pairs of next_sentence: random_document in strict mode: a wrong next begins where a right one of another begins.

Every chunk of a document is a first segment and the place where its true next begins. Before a coin decides the label,
each gets a partner: the place of another document of its source with as much text left, and both second segments are
held to the length that either can have. So whatever the label, first segments, places and lengths have one
distribution, and a chunk without a partner has no label. 4 us a chunk.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline import draws
from pipeline.instances.segments import (
    NEXT,
    NO_LABEL,
    NOT_NEXT,
    Corpus,
    Pair,
    Segment,
    fit_one,
    fit_two,
    units_before,
    units_segment,
)

ALONE, SHORT = "row_without_label_alone_in_source", "row_without_label_no_such_length"
"""Why a row has one segment and no label: no other document of its source is in the bucket, or all places of others
have less than half the text left that the true next has."""
_WINDOW = 8
"""A partner is drawn from so many places on either side, in order of the text left."""
_TRIES = 12

Int64s = npt.NDArray[np.int64]


class Chunk(NamedTuple):
    """Units first to split of a document are A, B begins with unit split; at least `length` tokens are wanted of B.

    split == stop: there is no next. negative: what the coin says.
    """

    document: int
    ordinal: int
    first: int
    split: int
    stop: int
    length: int
    negative: bool


@dataclass(frozen=True, slots=True)
class Partners:
    """For each chunk the chunk at whose place its wrong next begins (-1: there is none), and the most tokens that both
    places have, at most those wanted."""

    chunk: Int64s
    length: Int64s
    repeats: npt.NDArray[np.bool_]
    """Every place that was tried holds the very text of the true next."""


def cut_chunks(
    bounds: list[int],
    *,
    document: int,
    room: int,
    short_sequence_probability: float,
    is_alone: bool,
    rng: random.Random,
) -> Iterator[Chunk]:
    """Chunks of a document of `bounds`, each with its coin; at least one. is_alone: it can have no negatives.

    Units are appended until they reach the target, and a uniform number of them is A. After a negative the units of
    the true next are put back. The last unit, where it is left alone, is B after the units before it (used once more).
    """
    last = len(bounds) - 1
    begin = ordinal = 0
    while begin < last:
        target = rng.randint(2, room) if rng.random() < short_sequence_probability else room
        stop = min(bisect_left(bounds, bounds[begin] + target, begin + 1), last)
        if stop == begin + 1 < last:
            stop += 1
        first, split = begin, stop
        is_rest = False
        if stop - begin >= 2:
            split = begin + rng.randint(1, stop - begin - 1)
        elif begin > 0:
            is_rest, split = True, begin
            first = units_before(bounds, begin, length=target - (bounds[stop] - bounds[begin]))
        left = bounds[last] - bounds[split]
        length = left if is_rest else min(left, max(1, target - (bounds[split] - bounds[first])))
        negative = not is_alone and rng.random() < 0.5
        yield Chunk(document, ordinal, first, split, stop, length, negative)
        ordinal += 1
        begin = split if negative and not is_rest and split < stop else stop


def pair_chunks(
    corpus: Corpus, chunks: Sequence[Chunk], *, room: int, seed: int, pass_number: int, takes_part: Sequence[bool]
) -> Iterator[tuple[Pair, int]]:
    """(pair, its ordinal) of the chunks of each document that takes part, in order; all lend their places."""
    partners = choose_partners(corpus, chunks, room=room, seed=seed, pass_number=pass_number)
    rng, drawn_for = random.Random(0), -1
    lengths, others, repeats = partners.length.tolist(), partners.chunk.tolist(), partners.repeats.tolist()
    for chunk, length, other, repeated in zip(chunks, lengths, others, repeats, strict=True):
        index = chunk.document
        if not takes_part[index]:
            continue
        if index != drawn_for:
            rng, drawn_for = draws.stream(seed, "fit", corpus.documents[index].id, pass_number), index
        if other < 0 and not repeated:
            stop = chunk.split if chunk.negative and chunk.split < chunk.stop else chunk.stop
            alone = units_segment(corpus, index, chunk.first, stop)
            yield Pair(fit_one(corpus, alone, room=room + 1, rng=rng), None, NO_LABEL), chunk.ordinal
            continue
        negative = chunk.negative and not repeated
        second = _take_units(corpus, chunks[other] if negative else chunk, length=length)
        first = units_segment(corpus, index, chunk.first, chunk.split)
        first, second = fit_two(corpus, first, second, room=room, whole_words=True, rng=rng)
        yield Pair(first, second, NOT_NEXT if negative else NEXT), chunk.ordinal


def count_unlabelled(documents: Sequence[Any], *, first_document: Any, label: Any) -> Counter[tuple[str, int]]:
    """Rows without a label by (reason, source)."""
    of_source = Counter(document.source for document in documents)
    sources = [documents[index].source for index in first_document[label == NO_LABEL].tolist()]
    return Counter((ALONE if of_source[source] < 2 else SHORT, source) for source in sources)


def choose_partners(corpus: Corpus, chunks: Sequence[Chunk], *, room: int, seed: int, pass_number: int) -> Partners:
    """A partner of each chunk among the places of its source, by draws keyed by (seed, document id, pass, ordinal)."""
    count = len(chunks)
    columns = np.array(chunks, np.int64).reshape(-1, len(Chunk._fields)).T
    document, ordinal, _, split, stop, length, _ = columns
    begin = np.fromiter((corpus.bounds[c.document][c.split] for c in chunks), np.int64, count)
    sizes = np.array([document.ids.size for document in corpus.documents], np.int64)
    left = np.minimum(sizes[document] - begin, room)
    names = np.frombuffer(b"".join(each.id for each in corpus.documents), np.uint8).reshape(-1, 16)
    numbers = (np.full(count, pass_number), ordinal)
    keys = draws.row_keys(seed, "partners", ids=names[document], numbers=numbers)
    sources = np.array([each.source for each in corpus.documents], np.int64)[document]
    partners = Partners(np.full(count, -1, np.int64), length.copy(), np.zeros(count, np.bool_))
    for source in np.unique(sources).tolist():
        members = np.flatnonzero((sources == source) & (split < stop))
        if members.size:
            order = members[np.lexsort((document[members], left[members]))]
            _choose_in_source(corpus, chunks, order, document, left, keys, room=room, partners=partners)
    return partners


def _choose_in_source(
    corpus: Corpus,
    chunks: Sequence[Chunk],
    order: Int64s,
    document: Int64s,
    left: Int64s,
    keys: draws.UInt64s,
    *,
    room: int,
    partners: Partners,
) -> None:
    """Partners of the chunks `order`, which are sorted by the text left and by document where that is equal.

    Places with a whole row of text left are all alike: one of them, uniform but for the document's own. Else one of
    the neighbours in that order, wider with every try.
    """
    owner, reach, wanted = document[order], left[order], partners.length[order]
    size = order.size
    places = [(corpus.documents[chunks[number].document].ids, chunks[number]) for number in order.tolist()]
    tokens = np.array([ids[corpus.bounds[chunk.document][chunk.split]] for ids, chunk in places], np.int64)
    plenty = int(np.searchsorted(reach, room))
    own_start = plenty + np.searchsorted(owner[plenty:], owner, side="left")
    own_count = plenty + np.searchsorted(owner[plenty:], owner, side="right") - own_start
    open_places = np.arange(size)
    repeated = np.zeros(size, np.bool_)
    for number in range(_TRIES):
        if not open_places.size:
            break
        draw = draws.derive(keys[order[open_places]], number)
        others = size - plenty - own_count[open_places]
        ample = (open_places >= plenty) & (others > 0)
        width = _WINDOW << max(0, number - 2)
        low = np.maximum(open_places - width, 0)
        edge = np.where((open_places < plenty) & (number < _TRIES // 2), plenty, size)
        high = np.minimum(open_places + width + 1, edge)
        at = _below(draw, np.where(ample, others, high - low)) + np.where(ample, plenty, low)
        at += np.where(ample & (at >= own_start[open_places]), own_count[open_places], 0)
        shared = np.minimum(reach[at], wanted[open_places])
        good = (owner[at] != owner[open_places]) & (2 * shared >= wanted[open_places])
        for spot in np.flatnonzero(good & (tokens[at] == tokens[open_places])).tolist():
            place, other = int(open_places[spot]), int(at[spot])
            mine, theirs = chunks[order[place]], chunks[order[other]]
            if _same_text(corpus, mine, theirs, length=int(shared[spot])):
                good[spot], repeated[place] = False, True
        done = open_places[good]
        partners.chunk[order[done]] = order[at[good]]
        partners.length[order[done]] = shared[good]
        open_places = open_places[~good]
    partners.repeats[order[open_places]] = repeated[open_places]


def _below(draw: draws.UInt64s, bounds: Int64s) -> Int64s:
    """Integers in [0, bound) of each."""
    return (((draw >> np.uint64(32)) * bounds.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


def _take_units(corpus: Corpus, chunk: Chunk, *, length: int) -> Segment:
    """Units from the chunk's place until they reach `length` tokens: at least one."""
    bounds = corpus.bounds[chunk.document]
    stop = min(bisect_left(bounds, bounds[chunk.split] + length, chunk.split + 1), len(bounds) - 1)
    return units_segment(corpus, chunk.document, chunk.split, stop)


def _same_text(corpus: Corpus, mine: Chunk, theirs: Chunk, *, length: int) -> bool:
    """Whether the text at another place is that of the true next, as far as `length` tokens of units go."""
    own, foreign = corpus.documents[mine.document].ids, corpus.documents[theirs.document].ids
    start, begin = corpus.bounds[mine.document][mine.split], corpus.bounds[theirs.document][theirs.split]
    other = _take_units(corpus, theirs, length=length)
    size = min(other.stop - other.start, own.size - start)
    return bool(np.array_equal(own[start : start + size], foreign[begin : begin + size]))
