"""Spilled pieces of documents: joined in order, whatever copies there are; a lost one is an error."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.build.graph import count_bucket
from pipeline.documents import Piece
from pipeline.shuffle.spill import Extent, SpillError, SpillWriter, read_documents, read_index, read_origins
from pipeline.tokenizer.tokenizer import TokenizedDocument


def whole_document(name: int) -> TokenizedDocument:
    digest = hashlib.blake2b(str(name).encode(), digest_size=16).digest()
    lengths = np.array([1 + (name + place) % 4 for place in range(2 + name % 7)], np.int32)
    ids = (np.arange(lengths.sum()) * 7 + name).astype(np.uint16)
    return TokenizedDocument(digest, ids, ids % 3 == 0, lengths)


def cut_document(document: TokenizedDocument, piece: Piece, *, source: int) -> TokenizedDocument:
    sentences = range(document.sentence_lengths.size)
    own = piece.cut([str(place) for place in sentences])
    edges = np.concatenate([[0], np.cumsum(document.sentence_lengths)])
    first, last = (int(own[0]), int(own[-1]) + 1) if own else (0, 0)
    tokens = slice(edges[first], edges[last])
    lengths = document.sentence_lengths[first:last]
    return TokenizedDocument(document.id, document.ids[tokens], document.word_starts[tokens], lengths, source)


Row = tuple[int, int, Piece]
"""Document, source, piece."""


def spill_rows(folder: Path, rows: Sequence[Row], *, flush: int) -> list[Extent]:
    extents = []
    for half in (rows[::2], rows[1::2]):
        with SpillWriter(folder, name="x", bucket_of=lambda name: 0, id_type=pa.uint16(), flush_tokens=flush) as writer:
            for name, source, piece in half:
                writer.add(cut_document(whole_document(name), piece, source=source), piece=piece)
        extents += [extent for _, extent in writer.extents]
    return extents


@settings(max_examples=60)
@given(
    copies=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=12),
    flush=st.integers(1, 60),
    draw=st.randoms(use_true_random=False),
)
def test_documents_are_joined_and_a_lost_piece_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, copies: list[tuple[int, int, int]], flush: int, draw: Any
) -> None:
    """Any copies of any documents, from any sources, in any numbers of pieces, in any order."""
    folder = tmp_path_factory.mktemp("pieces")
    rows = [(name, source, Piece(number, of)) for name, source, of in copies for number in range(of)]
    draw.shuffle(rows)
    extents = spill_rows(folder, rows, flush=flush)
    expected = {whole_document(name).id: whole_document(name) for name, _, _ in copies}
    found, duplicates = read_documents(extents, id_type=pa.uint16())
    assert [document.id for document in found] == sorted(expected)
    assert duplicates == len(copies) - len(expected)
    for document in found:
        for field in ("ids", "word_starts", "sentence_lengths"):
            own, other = getattr(document, field), getattr(expected[document.id], field)
            assert np.array_equal(own, other)
            assert own.dtype == other.dtype
        assert document.source == min(source for name, source, _ in copies if whole_document(name).id == document.id)
    counted = count_bucket((0, extents))
    assert (counted.documents, counted.tokens) == (len(found), sum(document.ids.size for document in found))
    assert counted.lowest == tuple(sorted(int.from_bytes(name[:8], "big") for name in expected)[:2])
    names = Counter(name for name, _, _ in read_origins(extents))
    assert names == Counter(whole_document(name).id for name, _, _ in copies)
    pieces = [row for row in rows if row[2].of > 1]
    if pieces:
        rows.remove(draw.choice(pieces))
        extents = spill_rows(folder, rows, flush=flush)
        with pytest.raises(SpillError, match=r"document [0-9a-f]{32}: some of its \d pieces are missing; run the"):
            read_documents(extents, id_type=pa.uint16())
        with pytest.raises(SpillError, match="pieces are missing"):
            read_index(extents).distinct()
