"""Turns the sentences of a text into a Document, with a Drop (a counted omission) for what is left out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeline.cleaning import has_words
from pipeline.documents import Document, Drop

MOST_CHARACTERS = 256 << 20
"""Length of the longest document, in characters."""


def assemble(name: str, sentences: Iterable[str], *, group: bytes = b"") -> Iterator[Document | Drop]:
    """Yield a Drop (a counted omission) for each sentence without a letter or digit, and then a Document named `name`
    with the other sentences. If no sentence is left, yield a last Drop instead of the Document. `group` is an id that
    the parts of one book share; the Document gets it as its group."""
    kept: list[str] = []
    for sentence in sentences:
        if has_words(sentence):
            kept.append(sentence)
        else:
            yield Drop("sentence_without_words", name, sentence[:80])
    if kept:
        yield Document(name, tuple(kept), group)
    else:
        yield Drop("empty", name)
