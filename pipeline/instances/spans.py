"""Spans of words with the length distribution of SpanBERT (Joshi et al. 2020, section 3.1).

Each row is cut into spans from left to right; which spans are masked is drawn afterwards.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.draws import UInt64s, threshold

MAX_SPAN_WORDS = 10
SUCCESS = 0.2


def span_length_shares() -> npt.NDArray[np.float64]:
    """P(length = 1 .. 10): geometric with p = 0.2, truncated at 10 and normalised; mean 3.8 words."""
    shares = SUCCESS * (1 - SUCCESS) ** np.arange(MAX_SPAN_WORDS)
    return np.asarray(shares / shares.sum())


def draw_spans(words: UInt64s, *, joined: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return for each word the index of the first word of its span.

    words: 64 random bits for each word. joined: whether a word directly follows the one before; a span never crosses
    a gap ([SEP], [UNK], another row).
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
