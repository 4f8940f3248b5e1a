"""Turns sentences into a Document, and Drops for what it leaves out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeline.cleaning import has_words
from pipeline.documents import Document, Drop


def assemble(name: str, sentences: Iterable[str]) -> Iterator[Document | Drop]:
    """Yield a Drop for each sentence without a letter or digit, then the Document of the others, or a Drop if none."""
    kept: list[str] = []
    for sentence in sentences:
        if has_words(sentence):
            kept.append(sentence)
        else:
            yield Drop("sentence_without_words", name, sentence[:80])
    if kept:
        yield Document(name, tuple(kept))
    else:
        yield Drop("empty", name)
