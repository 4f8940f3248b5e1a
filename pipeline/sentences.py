"""Paragraphs to sentences with sentencex, whose rules are data by language. Pure.

Linear in the text: a line is cut at white space before it gets longer than MAX_LINE_CHARACTERS, so that no line, however
long, can hold more than that in the splitter. 20-60 Mchar/s.
"""

from __future__ import annotations

import sentencex

from pipeline.clean import normalize_text

MAX_LINE_CHARACTERS = 100_000


def split_sentences(text: str, *, language: str, keep_reserved: bool = False) -> list[str]:
    """Sentences of `text`, in order, none empty, white space normalised; a line break always ends a sentence.

    `language` is a code as in Wikipedia's addresses (en, ko, zh-yue); sentencex falls back to a related language
    and at last to English. `keep_reserved` as in normalize_text.
    """
    sentences: list[str] = []
    for line in normalize_text(text, keep_reserved=keep_reserved).split("\n"):
        if not line or line.isspace():
            continue
        for piece in _pieces(line):
            for sentence in sentencex.segment(language, piece):
                words = " ".join(sentence.split())
                if words:
                    sentences.append(words)
    return sentences


def _pieces(line: str) -> list[str]:
    """The line, cut at white space (or in the middle of a word longer than the cap) into pieces below the cap."""
    if len(line) <= MAX_LINE_CHARACTERS:
        return [line]
    pieces, start = [], 0
    while len(line) - start > MAX_LINE_CHARACTERS:
        space = line.rfind(" ", start, start + MAX_LINE_CHARACTERS)
        end = space if space > start else start + MAX_LINE_CHARACTERS
        pieces.append(line[start:end])
        start = end
    pieces.append(line[start:])
    return pieces
