"""Warnings at the end of a build: legal, but hardly meant."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_text import make_config

from pipeline.publish import list_warnings
from pipeline.tally import BuildResult, RowTally


def result(**counts: int) -> BuildResult:
    zeros = np.zeros(1, np.int64)
    return BuildResult([], {"train": RowTally(lengths=zeros, token_counts=zeros, **counts)})


@pytest.mark.parametrize(("masking", "warned"), [("whole_word", True), ("span", True), ("token", False)])
def test_words_of_one_piece_are_named(masking, warned):
    """Whole-word masking of Chinese does nothing (google-research/bert#780; transformers#11768)."""
    config = make_config(masking=masking)
    found = list_warnings(result(documents=2, sentences=9, words=50, document_tokens=50), config=config)
    assert any("each of the 50 words is one piece" in warning for warning in found) == warned
    assert not list_warnings(result(documents=2, sentences=9, words=50, document_tokens=51), config=config)


def test_documents_of_one_sentence_are_named():
    """A blank line after every sentence (google-research/bert#125)."""
    counts = {"documents": 100, "sentences": 105, "words": 500, "document_tokens": 700}
    (found,) = list_warnings(result(**counts), config=make_config())
    assert "100 documents have 105 sentences" in found
    assert not list_warnings(result(**counts), config=make_config(next_sentence="none"))
    assert not list_warnings(result(**counts | {"sentences": 200}), config=make_config())
