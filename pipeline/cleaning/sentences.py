"""Splits paragraphs into sentences. The library sentencex does this by the rules of each language, and the sentence
ends that it gets wrong are corrected. Pure.

The time is linear, because lines longer than MAX_LINE_CHARACTERS are cut at white space before sentencex gets them.
Speed: 15 to 40 million characters a second (Korean 9). The corrections take a quarter of the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import sentencex

from pipeline.cleaning.characters import normalize_text

MAX_LINE_CHARACTERS = 100_000
# The time of sentencex grows with the square of the number of quotation marks in a line (3 s for 100,000 marks). A line
# with more than this number of marks is cut into pieces of _FINE_CHARACTERS.
MAX_QUOTATION_MARKS = 2_000
# The time also grows with the square of the number of sentences in a line without spaces (Chinese: 1 to 6 s for 100,000
# characters).
_LONGEST_WORDS = 200
_FINE_CHARACTERS = 5_000
_QUOTATION_MARKS = "\"'\u2018\u2019\u201c\u201d\u00ab\u00bb\u300c\u300d\u300e\u300f()[]"


def split_sentences(text: str, *, language: str, keep_reserved: bool = False) -> list[str]:
    """Return the sentences of `text` in order. No sentence is empty, and each run of white space becomes one space.

    A line break ends a sentence. `language` is a code as in Wikipedia's addresses (en, ko, zh-yue). For a language
    without rules, sentencex uses the rules of a related language or of English. An item number (2.) or a closing
    bracket is not a sentence by itself. A Korean or Japanese sentence may continue after a quotation, even within a
    word. `keep_reserved` is passed to normalize_text.
    """
    sentences: list[str] = []
    for line in normalize_text(text, keep_reserved=keep_reserved).split("\n"):
        if not line or line.isspace():
            continue
        for piece in _pieces(line):
            cut: Iterable[str] = sentencex.segment(language, piece)
            if _BEFORE_DIGIT.search(piece) is not None:
                cut = _cut_before_digits(cut)
            for sentence in _mend_ends(cut, language=language.partition("-")[0]):
                words = " ".join(sentence.split())
                if words:
                    sentences.append(words)
    return sentences


_NUMBER = re.compile(r"[(\uff08]?\d{1,4}\.\s*")
_LOOK_BACK = 10
_CLOSING = "\u300d\u300f\u300b\u3009\u3011\u3015)\uff09"
_QUOTED = re.compile(rf"[\"'\u2019\u201d{_CLOSING}]\s*\Z")
# Korean dates are written 2010. 11. 12., and items of laws may be numbered by syllables (ga., na., da. ...).
_KOREAN_NUMBER = re.compile(
    r"(?:(?:\A|[\s(~\u223c-])\d{1,4}"
    r"|\A[\uac00\ub098\ub2e4\ub77c\ub9c8\ubc14\uc0ac\uc544\uc790\ucc28\uce74\ud0c0\ud30c\ud558])\.\s*\Z"
)
# After a Korean quotation, a particle follows without a space, but irago, iraneun, iramyeo (said) often follow a space.
_KOREAN_GOES_ON = re.compile(r"[\uac00-\ud7a3]")
_KOREAN_SAID = re.compile(r"\uc774?\ub77c(?:\uace0|\ub294|\uba70|\uba74\uc11c)(?!\w)")
# Croatian, Estonian, Danish and Polish write ordinals with a point, and the sentence continues in lower case (1990.
# godine). Georgian is left out, because all its letters count as lower case.
_ORDINAL = re.compile(r"\d\.\s+\Z")
_WITHOUT_CASE = ("ka", "xmf")
# Thai ends sentences with a space. A point marks an abbreviation (kho so, the year of our era).
_THAI_POINT = re.compile(r"[\u0e01-\u0e4e]\.\s*\Z")
# Japanese particles continue a sentence, but not words that begin like a particle: toki, tokoro, nochi, hajime, nimo,
# moshi, deha, yagate, nao ...
_JAPANESE_GOES_ON = re.compile(
    "\u3063\u3066|\u3068(?![\u304d\u3053\u3066\u308a])|\u306e(?!\u3061)|[\u3092\u304c]|\u306f(?!\u3058)|\u306b(?!\u3082)"
    "|\u3082(?![\u3057\u3061\u3063])|\u3067(?![\u306f\u3082\u304d])|\u3084(?![\u304c\u306f])|\u306a(?![\u304a\u305c\u304b\u3093])"
    "|\u304b(?![\u3064\u308c])"
)


_BEFORE_DIGIT = re.compile("[\u3002\uff01\uff1f\uff61](?=\\d)")
_BRACKETS = re.compile(
    "([(\uff08\u300c\u300e\u300a\u3008\u3010\u3014\u201c])|[)\uff09\u300d\u300f\u300b\u3009\u3011\u3015\u201d]"
)
# Full stops outside ASCII, after which no space is needed. ASCII full stops end a sentence only before a space.
_STOP = re.compile(
    f"[\u3002\uff01\uff1f\uff61\u0589\u104b\u17d4\u17d5\u0f0d\u0f0e\u0964\u0965\u1362](?![{re.escape(_QUOTATION_MARKS)}{_CLOSING}])"
)


def _cut_before_digits(sentences: Iterable[str]) -> Iterator[str]:
    """Yield the sentences, cut further: a Chinese or Japanese full stop ends a sentence also if a digit follows it,
    unless a bracket is open there.

    Takes linear time.
    """
    for sentence in sentences:
        start = looked = depth = 0
        for found in _BEFORE_DIGIT.finditer(sentence):
            for bracket in _BRACKETS.finditer(sentence, looked, found.start()):
                depth += 1 if bracket.group(1) else -1 if depth else 0
            looked = found.end()
            if not depth:
                yield sentence[start:looked]
                start = looked
        yield sentence[start:]


def _mend_ends(sentences: Iterable[str], *, language: str) -> Iterator[str]:
    """Yield the sentences, after joining neighbours between which sentencex wrongly saw the end of a sentence. No
    character is changed."""
    parts: list[str] = []
    for sentence in sentences:
        rest = sentence
        if parts and sentence[0] in _CLOSING:
            rest = sentence.lstrip(_CLOSING)
            parts.append(sentence[: len(sentence) - len(rest)])
        if parts and rest and not _goes_on(parts[-1], rest, language=language):
            yield "".join(parts)
            parts = []
        parts.append(rest)
    yield "".join(parts)


def _goes_on(before: str, after: str, *, language: str) -> bool:
    """Whether `after`, the text that follows `before`, continues the last sentence of `before`. If so, the two must be
    joined."""
    if len(before) <= _LOOK_BACK and _NUMBER.fullmatch(before) is not None:
        return True
    last = max(0, len(before) - _LOOK_BACK)
    if after[0].islower() and language not in _WITHOUT_CASE and _ORDINAL.search(before, last) is not None:
        return True
    if language not in ("ko", "ja", "th"):
        return False
    if language == "th":
        return _THAI_POINT.search(before, last) is not None
    if language == "ko" and _KOREAN_NUMBER.search(before, last) is not None:
        return True
    if _QUOTED.search(before, last) is None:
        return False
    if language == "ja":
        return _JAPANESE_GOES_ON.match(after) is not None
    goes_on = _KOREAN_SAID if before[-1].isspace() else _KOREAN_GOES_ON
    return goes_on.match(after) is not None


def _pieces(line: str) -> Iterator[str]:
    """Yield the line in pieces of at most MAX_LINE_CHARACTERS, or of at most _FINE_CHARACTERS if the line has many
    quotation marks.

    The line is cut before spaces. A word is cut only if it is longer than the limit. A line with very few spaces is cut
    at full stops first.
    """
    if len(line) <= _FINE_CHARACTERS:
        yield line
        return
    many = sum(map(line.count, _QUOTATION_MARKS)) > MAX_QUOTATION_MARKS
    cap = _FINE_CHARACTERS if many else MAX_LINE_CHARACTERS
    for part in _cut_at_stops(line) if line.count(" ") < len(line) // _LONGEST_WORDS else (line,):
        start = 0
        while len(part) - start > cap:
            space = part.rfind(" ", start, start + cap)
            end = space if space > start else start + cap
            yield part[start:end]
            start = end
        yield part[start:]


def _cut_at_stops(line: str) -> Iterator[str]:
    """Cut `line`, which contains no spaces, at full stops, and yield its pieces.

    A piece ends at the first full stop after at least _FINE_CHARACTERS characters. A full stop inside brackets counts
    only after twice as many characters. Takes linear time.
    """
    start = looked = depth = 0
    for found in _STOP.finditer(line):
        if found.end() - start < _FINE_CHARACTERS:
            continue
        for bracket in _BRACKETS.finditer(line, looked, found.start()):
            depth += 1 if bracket.group(1) else -1 if depth else 0
        looked = found.end()
        if not depth or looked - start > 2 * _FINE_CHARACTERS:
            yield line[start:looked]
            start, depth = looked, 0
    yield line[start:]
