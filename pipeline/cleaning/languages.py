"""The script and the most common words of each language, from tables. Pure.

In running text, the tables distinguish Russian from English (by script) and German from English (by words). This costs
one look-up for each character or word. The tables cannot distinguish languages that share a script and have no word
list.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from pathlib import Path

_SCRIPTS = {
    "CYRILLIC": "ru uk be bg mk kk ky mn tg tt ba cv os ce sah udm kv mhr myv ab av tyv xal bxr rue cu be-tarask",
    "GREEK": "el pnt grc",
    "ARABIC": "ar fa ur ps ckb sd ug azb arz pnb glk mzn ks",
    "HEBREW": "he yi",
    "DEVANAGARI": "hi mr ne sa bh mai new gom dty awa",
    "BENGALI": "bn as bpy",
    "TAMIL": "ta",
    "TELUGU": "te",
    "KANNADA": "kn tcy",
    "MALAYALAM": "ml",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "ORIYA": "or",
    "SINHALA": "si",
    "THAI": "th",
    "LAO": "lo",
    "MYANMAR": "my mnw shn",
    "KHMER": "km",
    "GEORGIAN": "ka xmf",
    "ARMENIAN": "hy hyw",
    "ETHIOPIC": "am ti",
    "TIBETAN": "bo dz",
    "THAANA": "dv",
}
_MIXED = {
    "ko": ("HANGUL", "CJK"),
    "ja": ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "CJK", "IDEOGRAPHIC"),
    **dict.fromkeys(("zh", "zh-yue", "yue", "wuu", "gan", "zh-classical", "lzh"), ("CJK", "BOPOMOFO", "IDEOGRAPHIC")),
    **dict.fromkeys(("sr", "sh", "uz", "az", "crh", "tk"), ("LATIN", "CYRILLIC")),
    "ku": ("LATIN", "ARABIC"),
}
_BY_LANGUAGE = {code: (script,) for script, codes in _SCRIPTS.items() for code in codes.split()}
_WIDTHS = ("FULLWIDTH ", "HALFWIDTH ")


def scripts_of(language: str) -> tuple[str, ...]:
    """Return the Unicode names of a language's scripts, such as CYRILLIC. `language` is a code such as ru. For a
    language that is not in the tables, return only LATIN."""
    for code in (language, language.partition("-")[0]):
        if code in _MIXED:
            return _MIXED[code]
        if code in _BY_LANGUAGE:
            return _BY_LANGUAGE[code]
    return ("LATIN",)


@cache
def script_of(letter: str) -> str:
    """Return the script of a letter: the first word of its Unicode name (LATIN, HANGUL, CJK), or "" if it has no
    name."""
    name = unicodedata.name(letter, "")
    for width in _WIDTHS:
        name = name.removeprefix(width)
    return name.partition(" ")[0]


@cache
def stop_words(language: str) -> frozenset[str]:
    """Return the most common words of a language, in lower case. The set is empty if there is no list for the
    language."""
    return _lists().get(language) or _lists().get(language.partition("-")[0], frozenset())


@cache
def _lists() -> dict[str, frozenset[str]]:
    lines = Path(__file__).with_name("stop_words.tsv").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("\t") for line in lines)
    return {language: frozenset(words.split()) for language, words in pairs}
