"""Cuts rows into spans of words, with the span lengths of SpanBERT (Joshi et al. 2020, section 3.1).

Each row is cut from left to right. The spans to mask are drawn afterwards (masking.py).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.draws import UInt64s, threshold

MAX_SPAN_WORDS = 10
SUCCESS = 0.2


def span_length_shares() -> npt.NDArray[np.float64]:
    """Return the probabilities of span lengths from 1 to 10 words. They fall geometrically (p = 0.2) and add up to 1.
    The mean length is 3.8 words."""
    shares = SUCCESS * (1 - SUCCESS) ** np.arange(MAX_SPAN_WORDS)
    return np.asarray(shares / shares.sum())


def draw_spans(words: UInt64s, *, joined: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Cut words into spans of random length. Return for each of the n words the index of the first word of its span
    (int64[n]).

    `words` has 64 random bits for each word, from which lengths are drawn. joined[i] is true if word i directly follows
    word i - 1. No span crosses a gap, such as [SEP], [UNK] or the end of a row.
    """
    limits = np.array([threshold(share) for share in np.cumsum(span_length_shares())[:-1]], np.uint64)
    length = 1 + np.searchsorted(limits, words, side="right")
    run = np.flatnonzero(~joined)
    run_stop = np.append(run[1:], words.size)
    is_head = np.zeros(words.size, np.bool_)
    current = run
    while current.size:
        is_head[current] = True
        current = current + length[current]
        inside = current < run_stop
        current, run_stop = current[inside], run_stop[inside]
    heads = np.flatnonzero(is_head)
    return np.repeat(heads, np.diff(heads, append=words.size))
