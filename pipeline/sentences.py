"""Paragraphs to sentences with sentencex, whose rules are data by language. Pure.

Linear in the text: a line is cut at white space before it gets longer than MAX_LINE_CHARACTERS, so that no line,
however long, can hold more than that in the splitter. 20-60 Mchar/s.
"""

from __future__ import annotations

import sentencex

from pipeline.clean import normalize_text

MAX_LINE_CHARACTERS = 100_000
# sentencex takes time by the square of the quotation marks in a line (3 s for 100,000); a line full of them is cut
# finer.
MAX_QUOTATION_MARKS = 2_000
_FINE_CHARACTERS = 5_000
_QUOTATION_MARKS = "\"'\u2018\u2019\u201c\u201d\u00ab\u00bb\u300c\u300d\u300e\u300f()[]"


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
    if len(line) <= _FINE_CHARACTERS:
        return [line]
    many = sum(map(line.count, _QUOTATION_MARKS)) > MAX_QUOTATION_MARKS
    cap = _FINE_CHARACTERS if many else MAX_LINE_CHARACTERS
    pieces, start = [], 0
    while len(line) - start > cap:
        space = line.rfind(" ", start, start + cap)
        end = space if space > start else start + cap
        pieces.append(line[start:end])
        start = end
    pieces.append(line[start:])
    return pieces
