"""Divides documents into units (sentences or pieces of them), and truncates segments so that they fit a row.

A segment is a range of tokens. Only lengths and word starts are read, never the tokens.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline import draws
from pipeline.config import NextSentence
from pipeline.tokenizer import TokenizedDocument

Int32s: TypeAlias = npt.NDArray[np.int32]

NEXT, NOT_NEXT, NO_LABEL = 0, 1, -1


class Segment(NamedTuple):
    """A range of tokens of one document: from `start` to `stop` (exclusive). `document` is the document's index in the
    caller's list of documents."""

    document: int
    start: int
    stop: int


class Pair(NamedTuple):
    """Two segments with a label: NEXT, NOT_NEXT or NO_LABEL.

    If a row has only one segment, `second` is None and the label is NO_LABEL.
    """

    first: Segment
    second: Segment | None
    label: int


class Corpus:
    """Holds the documents to pair. For each document, it also holds the bounds of the units (sentences or pieces of
    them) and the word starts."""

    def __init__(self, documents: Sequence[TokenizedDocument], *, bounds: Sequence[list[int]]) -> None:
        self.documents = documents
        self.bounds = bounds
        """bounds[d][u] is the first token of unit u of document d; the last entry is the number of tokens."""
        self.word_starts = [document.word_starts.tobytes() for document in documents]


def row_room(max_seq_length: int, *, next_sentence: NextSentence) -> int:
    """Return how many tokens of text fit into a row. The rest of the row is for [CLS] and one [SEP] if `next_sentence`
    is none, otherwise for [CLS] and two [SEP]s."""
    return max_seq_length - (2 if next_sentence == "none" else 3)


def whole_units(document: TokenizedDocument) -> list[int]:
    """Return the bounds of the document's units if each sentence is one unit, as in BERT's published script.

    The bounds are the first token of each unit, and at the end the number of tokens.
    """
    return [0, *np.cumsum(document.sentence_lengths, dtype=np.int64).tolist()]


def cut_units(document: TokenizedDocument, *, room: int, rng_parts: tuple[int, bytes, int]) -> list[int]:
    """Cut a document into units (sentences or pieces of them) by our own rules (mode: strict), and return their bounds.

    The bounds are the first token of each unit, and at the end the number of tokens. `room` is the number of tokens
    that fit into a row. A sentence of at most `room` tokens is one unit. A longer sentence is cut into units of at most
    room // 4 tokens. The cuts are between words, except inside a word longer than room // 4 tokens. If the document
    then has only one unit, and this unit has several words, it is cut in two between words, at a place drawn uniformly
    with the seed `rng_parts` (seed, document id, pass).
    """
    bounds = whole_units(document)
    if len(bounds) > 2 and int(document.sentence_lengths.max()) <= room:
        return bounds
    starts = document.word_starts.tobytes()
    run = max(1, room // 4)
    units = [0]
    for start, stop in pairwise(bounds):
        if stop - start > room:
            position = start
            while stop - position > run:
                cut = starts.rfind(b"\x01", position + 1, position + run + 1)
                position = cut if cut > 0 else position + run
                units.append(position)
        units.append(stop)
    if len(units) == 2:
        inner = np.flatnonzero(document.word_starts[1:]) + 1
        if inner.size:
            seed, name, number = rng_parts
            units.insert(1, int(inner[draws.stream(seed, "cut", name, number).randint(0, inner.size - 1)]))
    return units


def units_segment(corpus: Corpus, index: int, begin: int, end: int) -> Segment:
    """Return the segment that consists of the units (sentences or pieces of them) from `begin` to `end` (exclusive) of
    a document. `index` is the document's index in `corpus`."""
    bounds = corpus.bounds[index]
    return Segment(index, bounds[begin], bounds[end])


def units_before(bounds: list[int], begin: int, *, length: int) -> int:
    """Go back `length` tokens from the start of the unit with the index `begin`, and return the index of the unit
    (sentence or piece of one) that is reached.

    The index is at most begin - 1. It is 0 if the units before this start together have fewer than `length` tokens.
    """
    return max(0, min(bisect_right(bounds, bounds[begin] - length) - 1, begin - 1))


def fit_two(
    corpus: Corpus, first: Segment, second: Segment, *, room: int, whole_words: bool, rng: random.Random
) -> tuple[Segment, Segment]:
    """Return both segments, truncated until both together have at most `room` tokens.

    Tokens are removed one by one from the segment that is then longer (from the second if both are equal). A fair coin
    decides whether a token is removed at the segment's front or back. With `whole_words`, the rest of a word that was
    cut is removed too.
    """
    if not whole_words:
        return _cut_tokens(first, second, room=room, rng=rng)
    lengths = first.stop - first.start, second.stop - second.start
    excess = sum(lengths) - room
    if excess <= 0:
        return first, second
    gap = abs(lengths[0] - lengths[1])
    rest = max(0, excess - gap)
    cuts = [rest // 2, rest - rest // 2]
    cuts[0 if lengths[0] > lengths[1] else 1] += min(excess, gap)
    return _cut_words(corpus, first, count=cuts[0], rng=rng), _cut_words(corpus, second, count=cuts[1], rng=rng)


def fit_one(corpus: Corpus, segment: Segment, *, room: int, rng: random.Random) -> Segment:
    """Return the segment, truncated between words to at most `room` tokens.

    Tokens are removed one by one. Each time, a fair coin decides whether the first or the last token is removed. The
    rest of a word that was cut is removed too.
    """
    return _cut_words(corpus, segment, count=max(0, segment.stop - segment.start - room), rng=rng)


def _cut_words(corpus: Corpus, segment: Segment, *, count: int, rng: random.Random) -> Segment:
    """Remove tokens from the segment, and return it. `count` says how many tokens to remove. Each time, a fair coin
    decides whether the first or the last token is removed.

    The rest of a word that was cut is removed too, unless nothing of the segment would be left.
    """
    if count == 0:
        return segment
    document, start, stop = segment
    word_starts = corpus.word_starts[document]
    front = rng.getrandbits(count).bit_count()
    start, stop = start + front, stop - (count - front)
    if front:
        at_word = word_starts.find(b"\x01", start, stop)
        start = at_word if at_word >= 0 else start
    if count > front and stop < len(word_starts):
        at_word = word_starts.rfind(b"\x01", start + 1, stop + 1)
        stop = at_word if at_word >= 0 else stop
    return Segment(document, start, stop)


def _cut_tokens(first: Segment, second: Segment, *, room: int, rng: random.Random) -> tuple[Segment, Segment]:
    """Truncate both segments as BERT's published script does, and return them. Together they then have at most `room`
    tokens.

    There is one random draw for each token removed, and words may be cut.
    """
    (document_1, start_1, stop_1), (document_2, start_2, stop_2) = first, second
    while stop_1 - start_1 + stop_2 - start_2 > room:
        at_front = rng.random() < 0.5
        if stop_1 - start_1 > stop_2 - start_2:
            start_1, stop_1 = (start_1 + 1, stop_1) if at_front else (start_1, stop_1 - 1)
        else:
            start_2, stop_2 = (start_2 + 1, stop_2) if at_front else (start_2, stop_2 - 1)
    return Segment(document_1, start_1, stop_1), Segment(document_2, start_2, stop_2)
