"""Sentences to a Document, and what was left out of it as Drops. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeline.cleaning import has_words
from pipeline.documents import Document, Drop


def assemble(name: str, sentences: Iterable[str]) -> Iterator[Document | Drop]:
    """The document of all sentences with a letter or digit; a Drop for each without, and for a document without any."""
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
