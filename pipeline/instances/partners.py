"""Makes sentence pairs by our own rules (mode: strict) if `next_sentence` is random_document. A model can tell the
labels only by reading the text.

A document is cut into chunks. A chunk is a first segment A and the place where its true next segment begins. Before a
coin decides the label, every chunk gets a partner: the place of a chunk in another document of the same source. The
text after the partner's place must be about as long as the text after the chunk's own place. A place is the partner of
at most one chunk. The second segment B begins at the chunk's own place (NEXT) or at the partner's place (NOT_NEXT). B
is never longer than the text that follows either of the two places. So A, the places and the lengths of B have the same
distribution for both labels. A chunk without a partner gives a row without a label. This happens if one document has
more than half of its source's text in a bucket, or if the documents repeat the same lines.
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

ALONE, UNPAIRED = "row_without_label_alone_in_source", "row_without_label_unpaired"
"""The reasons why a row has one segment and no label. ALONE: the bucket has no other document of the row's source.
UNPAIRED: no place in another document was fit. A fit place has about as much text after it as the chunk's own place, is
not the partner of another chunk, and is not followed by the same text as the chunk."""
_BLOCK = 32
"""Number of places in a block. The places of a source are sorted by the number of tokens that follow them, and divided
into blocks. A chunk's partner is drawn from the block of the chunk's own place."""
_ROUNDS, _LATER_ROUNDS = 12, 3
"""Chunks with an unfit partner exchange partners in several rounds. _ROUNDS is the number of rounds in blocks of _BLOCK
places, and _LATER_ROUNDS the number in each larger size of blocks."""

Int64s = npt.NDArray[np.int64]


class Chunk(NamedTuple):
    """A first segment A of a document and the place where its true next segment begins.

    The numbers `first`, `next_unit` and `stop` count units (sentences or pieces of them). A has the units from `first`
    to `next_unit` (exclusive), and the true next begins with unit `next_unit`. The chunk ends before unit `stop`. If
    next_unit == stop, there is no true next. `length` is the number of tokens that the second segment B should have at
    least. `negative` says whether the pair is to be NOT_NEXT. `ordinal` numbers the chunks of the document from 0.
    """

    document: int
    ordinal: int
    first: int
    next_unit: int
    stop: int
    length: int
    negative: bool


@dataclass(frozen=True, slots=True)
class Partners:
    """Holds a partner for each of n chunks, as arrays of length n. A chunk is a first segment and the place where its
    true next segment begins. Its partner is the place in another document where a wrong next segment begins."""

    chunk: Int64s
    """The index of the chunk at whose place the wrong next segment begins, or -1 if the chunk has no partner."""
    length: Int64s
    """The number of tokens that the second segment B should have at least: Chunk.length, or fewer if fewer tokens
    follow the partner's place."""


def cut_chunks(
    bounds: list[int],
    *,
    document: int,
    room: int,
    short_sequence_probability: float,
    is_alone: bool,
    rng: random.Random,
) -> Iterator[Chunk]:
    """Yield the chunks of a document, at least one. A chunk is a first segment A and the place where its true next
    segment begins.

    `bounds` are the positions of the units (sentences or pieces of them) in the document's tokens. A fair coin decides
    whether a chunk is `negative` (is to get a wrong next segment). If `is_alone` is true (no other document has the
    same source), no chunk is negative. Units are added to a chunk until it reaches a target length. The target is
    `room` tokens or, with probability `short_sequence_probability`, a uniformly drawn number from 2 to `room`. A
    uniformly drawn number of the units becomes A. After a negative chunk, the units of the true next start the next
    chunk. If only the document's last unit remains for a chunk, this unit becomes the true next, and the units before
    it are used again as A.
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
    """Yield (pair, ordinal) for each chunk of the documents that take part, in the order of `chunks`.

    A chunk is a first segment and the place where its true next segment begins. The ordinal is the chunk's number in
    its document. `takes_part` has a bool for each document. A document that does not take part makes no pairs in this
    pass, but wrong next segments for other documents may still begin at the places of its chunks.
    """
    partners = choose_partners(corpus, chunks, room=room, seed=seed, pass_number=pass_number)
    rng, drawn_for = random.Random(0), -1
    for chunk, length, other in zip(chunks, partners.length.tolist(), partners.chunk.tolist(), strict=True):
        index = chunk.document
        if not takes_part[index]:
            continue
        if index != drawn_for:
            rng, drawn_for = draws.stream(seed, "fit", corpus.documents[index].id, pass_number), index
        if other < 0:
            stop = chunk.next_unit if chunk.negative and chunk.next_unit < chunk.stop else chunk.stop
            alone = units_segment(corpus, index, chunk.first, stop)
            yield Pair(fit_one(corpus, alone, room=room + 1, rng=rng), None, NO_LABEL), chunk.ordinal
            continue
        second = _take_units(corpus, chunks[other] if chunk.negative else chunk, length=length)
        first = units_segment(corpus, index, chunk.first, chunk.next_unit)
        first, second = fit_two(corpus, first, second, room=room, whole_words=True, rng=rng)
        yield Pair(first, second, NOT_NEXT if chunk.negative else NEXT), chunk.ordinal


def count_unlabelled(documents: Sequence[Any], *, first_document: Any, label: Any) -> Counter[tuple[str, int]]:
    """Return a count for each (reason, index of the source): how many rows have no label. The reason is ALONE if
    `documents` has only one document of the source, and else UNPAIRED (no partner was found).

    `first_document` (an index into `documents`) and `label` are arrays with an entry for each row.
    """
    of_source = Counter(document.source for document in documents)
    sources = [documents[index].source for index in first_document[label == NO_LABEL].tolist()]
    return Counter((ALONE if of_source[source] < 2 else UNPAIRED, source) for source in sources)


def choose_partners(corpus: Corpus, chunks: Sequence[Chunk], *, room: int, seed: int, pass_number: int) -> Partners:
    """Choose a partner for each chunk, and return all partners. A chunk is a first segment and the place where its true
    next segment begins. A partner of a chunk is the place of a chunk in another document of the same source.

    The random draws depend only on the seed, the document id, the pass and the chunk's ordinal (number in its
    document). `room` is the number of tokens that fit into a row.
    """
    count = len(chunks)
    columns = np.array(chunks, np.int64).reshape(-1, len(Chunk._fields)).T
    document, ordinal, _, next_unit, stop, length, _ = columns
    begin = np.fromiter((corpus.bounds[c.document][c.next_unit] for c in chunks), np.int64, count)
    sizes = np.array([document.ids.size for document in corpus.documents], np.int64)
    left = np.minimum(sizes[document] - begin, room)
    names = np.frombuffer(b"".join(each.id for each in corpus.documents), np.uint8).reshape(-1, 16)
    numbers = (np.full(count, pass_number), ordinal)
    keys = draws.row_keys(seed, "partners", ids=names[document], numbers=numbers)
    sources = np.array([each.source for each in corpus.documents], np.int64)[document]
    partners = Partners(np.full(count, -1, np.int64), length.copy())
    for source in np.unique(sources).tolist():
        members = np.flatnonzero((sources == source) & (next_unit < stop))
        if members.size:
            order = members[np.lexsort((document[members], left[members]))]
            places = _Places.find(corpus, [chunks[number] for number in order.tolist()], reach=left[order])
            partner, is_done = _choose_in_source(places, keys=keys[order], room=room)
            found = np.flatnonzero(is_done)
            partners.chunk[order[found]] = order[partner[found]]
            partners.length[order[found]] = np.minimum(places.reach[partner[found]], places.wanted[found])
    return partners


@dataclass(frozen=True, slots=True)
class _Places:
    """The places of the chunks of one source (where their true next segments begin), as arrays with an entry for each
    chunk, sorted by `reach`.

    `owner` is the index of the chunk's document, and `reach` the number of tokens that follow the place, at most those
    of a whole row. `wanted` is Chunk.length, and `token` is the first token that follows the place.
    """

    corpus: Corpus
    chunks: Sequence[Chunk]
    owner: Int64s
    reach: Int64s
    wanted: Int64s
    token: Int64s

    @classmethod
    def find(cls, corpus: Corpus, chunks: Sequence[Chunk], *, reach: Int64s) -> _Places:
        token = [corpus.documents[each.document].ids[corpus.bounds[each.document][each.next_unit]] for each in chunks]
        owner, wanted = (
            np.array([getattr(each, name) for each in chunks], np.int64) for name in ("document", "length")
        )
        return cls(corpus, chunks, owner, reach, wanted, np.array(token, np.int64))

    def are_fit(self, mine: Int64s, theirs: Int64s) -> npt.NDArray[np.bool_]:
        """Return for each place in `mine` whether the place at the same index of `theirs` may be its partner. Both have
        indices of places. A partner is unfit in three cases: it is in the same document; the text after it is more than
        twice or less than half as long as the text after the chunk's own place; or the text after it equals the true
        next segment."""
        shorter = np.minimum(self.reach[mine], self.reach[theirs])
        longer = np.maximum(self.reach[mine], self.reach[theirs])
        fit: npt.NDArray[np.bool_] = (self.owner[mine] != self.owner[theirs]) & (2 * shorter >= longer)
        for spot in np.flatnonzero(fit & (self.token[mine] == self.token[theirs])).tolist():
            own, other = int(mine[spot]), int(theirs[spot])
            length = int(min(self.reach[other], self.wanted[own]))
            fit[spot] = not _same_text(self.corpus, self.chunks[own], self.chunks[other], length=length)
        return fit


def _choose_in_source(
    places: _Places, *, keys: draws.UInt64s, room: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Choose partners for the chunks of one source. Return for each chunk the index of its partner in `places`, and
    whether this partner is fit. `keys` (for random draws) has an entry for each chunk.

    A partner is the place of another chunk. Every place is the partner of at most one chunk, so places are as frequent
    in NOT_NEXT pairs as in NEXT pairs. To achieve this, the places in each block of neighbours are permuted at random.
    Chunks whose partner is unfit exchange partners with other chunks, or are permuted again in larger blocks. All
    places followed by a whole row (`room` tokens) of text form one block.
    """
    size = places.reach.size
    block = np.minimum(np.arange(size), np.searchsorted(places.reach, room)) // _BLOCK
    partner, waiting = np.arange(size), np.arange(size)
    is_done = np.zeros(size, np.bool_)
    for level in range(int(block[-1]).bit_length() + 1):
        wide = block >> level
        starts = np.searchsorted(wide, wide, side="left")
        sizes = np.searchsorted(wide, wide, side="right") - starts
        for number in range(_ROUNDS if level == 0 else _LATER_ROUNDS):
            if not waiting.size:
                break
            drawn = [draws.derive(keys[waiting], 3 * (_ROUNDS * level + number) + step) for step in range(3)]
            # the chunks of a block that still wait for a fit partner permute the places given to them
            targets = partner[waiting[np.lexsort((drawn[0], wide[waiting]))]]
            by_block = waiting[np.lexsort((drawn[1], wide[waiting]))]
            partner[by_block] = targets
            is_done[by_block] = places.are_fit(by_block, targets)
            # then each of them exchanges places with a random chunk of the block, if both then have a fit partner
            third = starts[waiting] + _below(drawn[2], sizes[waiting])
            chosen = np.unique(third, return_index=True)[1]
            mine, theirs = waiting[chosen], third[chosen]
            open_ones = ~is_done[mine] & is_done[theirs]
            mine, theirs = mine[open_ones], theirs[open_ones]
            good = places.are_fit(mine, partner[theirs]) & places.are_fit(theirs, partner[mine])
            mine, theirs = mine[good], theirs[good]
            partner[mine], partner[theirs] = partner[theirs], partner[mine]
            is_done[mine] = True
            waiting = waiting[~is_done[waiting]]
    return partner, is_done


def _below(draw: draws.UInt64s, bounds: Int64s) -> Int64s:
    """Turn each random number in `draw` into an integer that is at least 0 and less than the entry of `bounds` at the
    same index. Return these integers."""
    return (((draw >> np.uint64(32)) * bounds.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


def _take_units(corpus: Corpus, chunk: Chunk, *, length: int) -> Segment:
    """Return the segment that begins at the place of `chunk` (the place where the true next segment of the chunk
    begins). The returned segment has at least one unit (a sentence or piece of one). It ends when it has `length`
    tokens, or with the document."""
    bounds = corpus.bounds[chunk.document]
    stop = min(bisect_left(bounds, bounds[chunk.next_unit] + length, chunk.next_unit + 1), len(bounds) - 1)
    return units_segment(corpus, chunk.document, chunk.next_unit, stop)


def _same_text(corpus: Corpus, mine: Chunk, theirs: Chunk, *, length: int) -> bool:
    """Return whether the text at the place of the chunk `theirs` equals the text at the place of the chunk `mine`. A
    chunk's place is where its true next segment begins. Whole units (sentences or pieces of them) are compared, until
    they have at least `length` tokens together."""
    own, foreign = corpus.documents[mine.document].ids, corpus.documents[theirs.document].ids
    start, begin = corpus.bounds[mine.document][mine.next_unit], corpus.bounds[theirs.document][theirs.next_unit]
    other = _take_units(corpus, theirs, length=length)
    size = min(other.stop - other.start, own.size - start)
    return bool(np.array_equal(own[start : start + size], foreign[begin : begin + size]))
