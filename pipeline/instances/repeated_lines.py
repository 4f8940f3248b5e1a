"""Finds lines that repeat all over a bucket (a group of documents), such as a notice at the end of every page. No files
are read.

Because of such lines, next-sentence labels may be meaningless, and training and validation may have equal rows. The
search takes 15 ns a token, and 16 bytes of memory a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline import draws
from pipeline.tokenizer import TokenizedDocument

FEWEST_TOKENS = 4
"""Shorter sentences ("Yes .") repeat in any text."""
_FEWEST = 10
_SHARE = 0.01
_MOST_LINES = 3
_CHUNK_TOKENS = 1 << 20


class RepeatedLine(NamedTuple):
    """A sentence that repeats. `ids` are its token ids, at least FEWEST_TOKENS. `occurrences` is the number of times
    that it occurs, and `documents` is the number of documents in which it occurs."""

    ids: npt.NDArray[np.integer[Any]]
    occurrences: int
    documents: int


def find_repeated_lines(documents: Sequence[TokenizedDocument]) -> list[RepeatedLine]:
    """Return the sentences that repeat all over the documents. If there are more than three, return the three most
    frequent.

    A sentence repeats all over if it makes up 1% of all sentences, or if a tenth of the documents have it. It must also
    occur at least 10 times. Sentences of fewer than FEWEST_TOKENS tokens are ignored.
    """
    keys = np.concatenate([np.zeros(0, np.uint64), *_hash_sentences(documents)])
    counts = np.array([document.sentence_lengths.size for document in documents])
    owners = np.repeat(np.arange(len(documents)), counts)
    long = np.concatenate([np.zeros(0, np.int32), *(document.sentence_lengths for document in documents)])
    chosen = np.flatnonzero(long >= FEWEST_TOKENS)
    order = chosen[np.lexsort((owners[chosen], keys[chosen]))]
    if not order.size:
        return []
    new = np.append(True, keys[order][1:] != keys[order][:-1])
    starts = np.flatnonzero(new)
    sizes = np.diff(starts, append=order.size)
    of_new = new | np.append(True, owners[order][1:] != owners[order][:-1])
    spread = np.add.reduceat(of_new.astype(np.int64), starts)
    often = (sizes >= max(_FEWEST, _SHARE * keys.size)) | (spread >= max(_FEWEST, len(documents) / 10))
    places = np.flatnonzero(often)
    ranked = sorted(places.tolist(), key=lambda place: (-sizes[place], keys[order[starts[place]]]))
    firsts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    found = []
    for place in ranked[:_MOST_LINES]:
        sentence = int(order[starts[place]])
        document = documents[owners[sentence]]
        ends = np.cumsum(document.sentence_lengths)
        number = sentence - int(firsts[owners[sentence]])
        ids = document.ids[ends[number] - document.sentence_lengths[number] : ends[number]]
        found.append(RepeatedLine(ids, int(sizes[place]), int(spread[place])))
    return found


def _hash_sentences(documents: Sequence[TokenizedDocument]) -> Iterator[draws.UInt64s]:
    """Yield arrays with a hash of each sentence, in order. To save memory, at most about 2 * _CHUNK_TOKENS tokens are
    hashed at a time, even if they are all of one document."""
    held: list[tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.int32]]] = []
    tokens = 0
    for ids, lengths in _cut_documents(documents):
        held.append((ids, lengths))
        tokens += ids.size
        if tokens >= _CHUNK_TOKENS:
            yield _hash_some(held)
            held, tokens = [], 0
    if held:
        yield _hash_some(held)


def _cut_documents(
    documents: Sequence[TokenizedDocument],
) -> Iterator[tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.int32]]]:
    """Cut documents into pieces, and yield (token ids, lengths of the sentences) of each piece. A piece has whole
    sentences, with at most _CHUNK_TOKENS tokens unless it is a single sentence."""
    for document in documents:
        ends = np.cumsum(document.sentence_lengths, dtype=np.int64)
        first = start = 0
        while first < ends.size:
            last = max(first + 1, int(np.searchsorted(ends, start + _CHUNK_TOKENS, side="right")))
            stop = int(ends[last - 1])
            yield document.ids[start:stop], document.sentence_lengths[first:last]
            first, start = last, stop


def _hash_some(pieces: Sequence[tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.int32]]]) -> draws.UInt64s:
    lengths = np.concatenate([each for _, each in pieces]).astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    values = np.concatenate([ids for ids, _ in pieces]).astype(np.uint64)
    places = np.arange(values.size) - np.repeat(starts, lengths)
    return draws.mix(np.add.reduceat(draws.mix(values << np.uint64(32) | places.astype(np.uint64)), starts))
