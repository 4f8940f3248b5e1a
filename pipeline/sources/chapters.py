"""Splits a book at its chapter headings in English, French, German and Korean. Pure.

A heading is a short paragraph of a known form (CHAPTER IV), not prose that merely begins with such a word. If headings
have hardly any text between them (a table of contents, or BOOK I before CHAPTER I), they all begin the same chapter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

LONGEST_HEADING = 100
"""Longest heading, in characters."""
FEWEST_WORDS = 50
"""A chapter with fewer words (a title page, BOOK I with its motto) joins the next chapter, or the previous one if it is
the last."""

_ROMAN = r"(?=[IVXLCM])M{0,3}(?:C[MD]|D?C{0,3})(?:X[CL]|L?X{0,3})(?:I[XV]|V?I{0,3})"
_ENGLISH_NUMBER = (
    r"(?:the\s+)?(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen"
    r"|seventeen|eighteen|nineteen|(?:twenty|thirty|forty|fifty|sixty)(?:[- ](?:one|two|three|four|five|six|seven|eight"
    r"|nine))?|first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|thirteenth|fourteenth"
    r"|fifteenth|sixteenth|seventeenth|eighteenth|nineteenth|(?:twenty|thirty|forty|fifty)[- ]\w+|twentieth|thirtieth"
    r"|fortieth|fiftieth|last)"
)
_FRENCH_NUMBER = (
    r"(?:premier|premi\u00e8re|deux(?:i\u00e8me)?|second|seconde|trois(?:i\u00e8me)?|quatre|quatri\u00e8me|cinq"
    r"|cinqui\u00e8me|six|sixi\u00e8me|sept|septi\u00e8me|huit|huiti\u00e8me|neuf|neuvi\u00e8me|dix|dixi\u00e8me"
    r"|onze|onzi\u00e8me|douze|douzi\u00e8me|treize|treizi\u00e8me|quatorze|quatorzi\u00e8me|quinze|quinzi\u00e8me"
    r"|seize|seizi\u00e8me|dix-\w+|vingt\S*|trente\S*|quarante\S*|dernier|derni\u00e8re)"
)
_GERMAN_ORDINAL = (
    r"(?:erste|zweite|dritte|vierte|f\u00fcnfte|sechste|siebente|siebte|achte|neunte|zehnte|elfte|zw\u00f6lfte"
    r"|dreizehnte|vierzehnte|f\u00fcnfzehnte|sechzehnte|siebzehnte|achtzehnte|neunzehnte"
    r"|(?:\w+und)?(?:zwanzig|drei\u00dfig|vierzig|f\u00fcnfzig)ste|letzte)[srn]?"
)
_GERMAN_NUMBER = (
    r"(?:eins|zwei|drei|vier|f\u00fcnf|sechs|sieben|acht|neun|zehn|elf|zw\u00f6lf|dreizehn|vierzehn|f\u00fcnfzehn"
    r"|sechzehn|siebzehn|achtzehn|neunzehn|(?:\w+und)?(?:zwanzig|drei\u00dfig|vierzig|f\u00fcnfzig))"
)
_KOREAN_NUMBER = (
    r"(?:\d{1,4}|[\uc77c\uc774\uc0bc\uc0ac\uc624\uc721\uce60\ud314\uad6c\uc2ed\ubc31]{1,6}"
    r"|[\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d\u5341\u767e]{1,6})"
)
_WORDS = rf"""
    (?:chapter|chap\.|stave|canto|letter|book|part|volume|act|section)\s+(?:\d{{1,4}}|{_ROMAN}|{_ENGLISH_NUMBER})
  | (?:{_ENGLISH_NUMBER})\s+(?:chapter|book|part)
  | (?:chapitre|livre|partie|tome|lettre|acte)\s+(?:\d{{1,4}}|{_ROMAN}|{_FRENCH_NUMBER})
  | {_FRENCH_NUMBER}\s+(?:chapitre|partie|livre|lettre)
  | (?:kapitel|buch|teil|band|abschnitt|brief|akt)\s+(?:\d{{1,4}}|{_ROMAN}|{_GERMAN_NUMBER})
  | (?:\d{{1,4}}\.|{_ROMAN}\.|{_GERMAN_ORDINAL})\s+(?:kapitel|buch|teil|band|abschnitt|brief|akt)
  | \uc81c\s?{_KOREAN_NUMBER}\s?(?:\uc7a5|\ubd80|\uad8c|\ud3b8|\ud68c|\uc808|\ub9c9)
  | \d{{1,4}}\s?(?:\uc7a5|\ubd80|\uad8c|\ud654)
"""
# After the number come nothing, punctuation and a title, or a title that begins like a title (see is_heading).
_HEADING = re.compile(rf"(?P<words>{_WORDS})(?![^\W_])(?P<rest>.*)", re.I | re.X | re.S)
_ALONE = re.compile(
    r"(?:prologue|epilogue|preface|introduction|conclusion|afterword|foreword|l'envoi|appendix"
    r"|\u00e9pilogue|pr\u00e9face|avant-propos|postface"
    r"|prolog|epilog|vorwort|nachwort|einleitung|vorrede"
    r"|\ud504\ub864\ub85c\uadf8|\uc5d0\ud544\ub85c\uadf8|\uba38\ub9ac\ub9d0|\uc11c\ubb38|\uc11c\uc7a5|\uc885\uc7a5"
    r"|\ub9fa\uc74c\ub9d0|\ud6c4\uae30)[.:]?",
    re.I,
)
_NUMERAL = re.compile(rf"[-\u2014\u2013\[( ]*({_ROMAN}|\d{{1,3}})[-\u2014\u2013\]). ]*")
_TITLED_NUMERAL = re.compile(rf"({_ROMAN})(?:\.\s+|\s{{2,}})[^\W\d_a-z].{{0,60}}(?<![.,;?!])")
_MARK = re.compile(r"\s*(?:[.:)\]\u2014\u2013]|--)|\s+-\s")
_PROSE = re.compile(r"[,;]$")
_FEWEST_NUMERALS = 3


def split_chapters(paragraphs: Sequence[str]) -> list[list[str]]:
    """Return the chapters of a book. Each chapter is the list of its paragraphs, headings included. A book without
    chapters gives one list.

    Text before the first heading begins the first chapter. Numerals alone on a line (I, II, III or 1, 2, 3) and Roman
    numerals before a title may be headings too. They are headings if at least three of them count up from one, and if
    the book has fewer than two other headings.
    """
    starts = [index for index, text in enumerate(paragraphs) if is_heading(text)]
    if len(starts) < 2:
        starts = sorted({*starts, *_numerals(paragraphs)})
    if len(starts) < 2:
        return [list(paragraphs)]
    bounds = [0, *starts, len(paragraphs)]
    chapters: list[list[str]] = []
    waiting: list[str] = []
    for start, stop in pairwise(bounds):
        waiting += paragraphs[start:stop]
        if sum(len(text.split()) for text in waiting) >= FEWEST_WORDS:
            chapters.append(waiting)
            waiting = []
    if waiting and chapters:
        chapters[-1] += waiting
    return chapters or [waiting]


def is_heading(text: str) -> bool:
    """Return whether a paragraph is a heading with a word, such as CHAPTER IV, 2. Kapitel, Livre premier or Epilogue. A
    paragraph with only a numeral does not count."""
    if len(text) > LONGEST_HEADING:
        return False
    if _ALONE.fullmatch(text):
        return True
    found = _HEADING.match(text)
    if found is None:
        return False
    rest = found["rest"]
    if not rest.strip(" .:"):
        return True
    if _PROSE.search(rest):
        return False
    if _MARK.match(rest):
        return True
    title = rest.strip()
    return rest[0].isspace() and not title[0].islower() and not title.endswith((".", "?", "!"))


def _numerals(paragraphs: Sequence[str]) -> list[int]:
    """Return the indices of the paragraphs that are headings with a numeral. The numeral stands alone or before a
    title. The numerals must count up from one, and may start again in each part of the book. Return [] if there are
    fewer than three such headings."""
    found = [
        (index, _value(match[1]))
        for index, text in enumerate(paragraphs)
        if len(text) <= LONGEST_HEADING and (match := _NUMERAL.fullmatch(text) or _TITLED_NUMERAL.fullmatch(text))
    ]
    kept: list[int] = []
    last = 0
    for index, value in found:
        if value in (last + 1, 1):
            kept.append(index)
            last = value
    return kept if len(kept) >= _FEWEST_NUMERALS else []


def _value(numeral: str) -> int:
    if numeral.isdecimal():
        return int(numeral)
    values = [{"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}[letter] for letter in numeral]
    return sum(-one if one < following else one for one, following in zip(values, [*values[1:], 0], strict=True))
