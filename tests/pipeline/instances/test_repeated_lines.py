"""Lines that repeat all over a corpus are found exactly, and the build names them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import draws
from pipeline.instances import find_repeated_lines, repeated_lines
from pipeline.tokenizer import TokenizedDocument


def tokenized(sentences: list[list[int]]) -> TokenizedDocument:
    ids = np.array([token for sentence in sentences for token in sentence], np.uint16)
    name = hashlib.blake2b(repr(sentences).encode(), digest_size=16).digest()
    lengths = np.array([len(sentence) for sentence in sentences], np.int32)
    return TokenizedDocument(name, ids, np.ones(ids.size, np.bool_), lengths)


@settings(max_examples=60)
@given(
    st.lists(
        st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=30), min_size=1, max_size=12
    ),
    st.integers(1, 50),
)
def test_the_lines_are_those_that_counting_gives(texts: list[list[list[int]]], chunk: int) -> None:
    counts = Counter(tuple(line) for text in texts for line in text if len(line) >= 4)
    spread = Counter(line for text in texts for line in {tuple(line) for line in text} if len(line) >= 4)
    total = sum(map(len, texts))
    often = {
        line for line in counts if counts[line] >= max(10, total / 100) or spread[line] >= max(10, len(texts) / 10)
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeated_lines, "_CHUNK_TOKENS", chunk)
        found = find_repeated_lines([tokenized(text) for text in texts])
    assert [line.occurrences for line in found] == sorted((counts[line] for line in often), reverse=True)[:3]
    for line in found:
        text = tuple(line.ids.tolist())
        assert (line.occurrences, line.documents) == (counts[text], spread[text])


def test_one_long_document_is_hashed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a book of 50 MB takes 450 MB more than any other step."""
    sizes = []
    hash_some = repeated_lines._hash_some

    def count(pieces: Sequence[tuple[npt.NDArray[Any], npt.NDArray[np.int32]]]) -> draws.UInt64s:
        sizes.append(sum(ids.size for ids, _ in pieces))
        return hash_some(pieces)

    book = tokenized([[number % 7, 5, 6, 7, number] for number in range(1_000)])
    whole = find_repeated_lines([book, book])
    monkeypatch.setattr(repeated_lines, "_CHUNK_TOKENS", 64)
    monkeypatch.setattr(repeated_lines, "_hash_some", count)
    assert str(find_repeated_lines([book, book])) == str(whole)
    assert sum(sizes) == 10_000
    assert max(sizes) < 2 * 64
