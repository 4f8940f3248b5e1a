"""Cuts sentences apart that the library sentencex left together. It looks in quotations, after years, and at the full
stops of Khmer and Tibetan. Pure.

Takes linear time. A part (what sentencex took for one sentence) is searched only if it has a quotation, a bracket, or a
full stop before a space. In Khmer and Tibetan, every part is searched.
"""

from __future__ import annotations

import re

import sentencex

from pipeline.cleaning.sentence_rules import (
    CLOSING,
    ITEM,
    OPENING,
    ROMAN,
    WITH_PARTICLES,
    EndRules,
    first_word,
    lowered,
    mend_parts,
    words_of_all,
)

_AROUND = OPENING + CLOSING + "."
_YEAR = re.compile(r"\d{4} [^\W\d_]")
_DAY = re.compile(r"\d{1,2}\. [^\W\d_]")
_ITEM_NUMBER = re.compile(r"\d{1,2}\. [^\W\d_a-z]")
_SHORT_WORD = 2
_LONG_WORD = 6
_SHORT_PART = 3
_LONG_PART = 9
# Dutch and Afrikaans sentences may begin with a word that is shortened to a letter: 's Avonds, 't Was, 'n Man.
_SHORTENED = re.compile("['\u2018\u2019][snt] [A-Z]")
_WITH_SHORTENED = frozenset(("nl", "af", "fy", "nds", "li", "zea", "vls"))
_YEAR_WORD = 2
# Russian and Bulgarian write "and so on" as two words.
_SO_ON = ("\u0442. \u0434", "\u0442. \u043f")
# Khmer writes "et cetera" as a letter between two full stops.
_KHMER_END = re.compile(
    "(?<!\u17d4\u179b)[\u17d4\u17d5\u17da]+(?!\u179b\u17d4)[\u00bb\u201d\"')]*\\s*|(?:(?<=\u17d4\u179b)\u17d4|\u17d8)\\s+"
)
# In Tibetan, a stroke ends clauses and items of lists too. So a piece with less than two dots between its syllables is
# not cut off. No stroke is written behind ka, ga and sha, where a space ends the clause.
_TIBETAN_END = re.compile("(?:[\u0f0d-\u0f12\u0f14]\\s*)+|(?<=[\u0f40\u0f42\u0f64])\\s+")
_TIBETAN_DOT = "\u0f0b"
_QUOTES = {
    '"': '"',
    "\u201d": "\u201c\u201e\u201d",
    "\u201c": "\u201e",
    "\u00bb": "\u00ab",
    "\u00ab": "\u00bb",
}
_QUOTATION_ENDS = frozenset(_QUOTES)
_INNER_END = re.compile("[.!?\u2026\u0964][\"')\u2019\u201d]* ")
_NESTING = re.compile("[()\\[\\]\"'\u00ab\u00bb\u2018\u2019\u201c\u201d\u201e]")


def is_shortened(text: str, rules: EndRules) -> bool:
    """Return whether `text` begins with a Dutch word that is shortened to a letter, and a capital."""
    return _SHORTENED.match(text) is not None and rules.language in _WITH_SHORTENED


def has_quotations(text: str) -> bool:
    """Return whether a text has a mark that may close a quotation."""
    return '"' in text or (not text.isascii() and any(mark in text for mark in _QUOTES))


def may_hold_ends(part: str, rules: EndRules) -> bool:
    """Return whether cut_more may find the end of a sentence inside `part`, which sentencex took for one sentence. This
    is a quick test for a part that has no full stop before a space."""
    if rules.has_own_marks:
        return True
    if _QUOTATION_ENDS.isdisjoint(part[-3:]):
        return False
    return part.find("! ", 0, -2) >= 0 or part.find("? ", 0, -2) >= 0 or part.find("\u0964 ", 0, -2) >= 0


def cut_more(part: str, rules: EndRules) -> list[str]:
    """Return the sentences in `part`, which sentencex took for one sentence. Usually it is one."""
    if rules.has_own_marks:
        return _cut_at_marks(part, rules)
    close = part.find(".) ") + 3 if part[0] == "(" and rules.language not in WITH_PARTICLES else 0
    if close > 2 and part.find("(", 1, close) < 0 and part[close : close + 1].isupper():
        return [*_cut_quotation(part[:close], rules), *cut_more(part[close:], rules)]
    item = ITEM.match(part) if ")" in part[:7] else None
    if item is not None:
        rest = mend_parts(sentencex.segment(rules.language, part[item.end() :]), rules)
        return [item.group() + rest[0], *rest[1:]] if rest else [part]
    cuts = [part] if part[0] != "(" and _QUOTATION_ENDS.isdisjoint(part[-4:]) else _cut_quotation(part, rules)
    if cuts[0].find(". ", 0, -2) >= 0:
        cuts[:1] = _cut_unquoted(cuts[0], rules)
    return cuts


def _cut_at_marks(part: str, rules: EndRules) -> list[str]:
    """Return `part` cut at the full stops of Khmer or Tibetan, which sentencex does not know."""
    is_khmer = rules.script == "KHMER"
    cuts: list[str] = []
    start = 0
    for found in (_KHMER_END if is_khmer else _TIBETAN_END).finditer(part):
        if not is_khmer and part.count(_TIBETAN_DOT, start, found.start()) < 2:
            continue
        cuts.append(part[start : found.end()])
        start = found.end()
    return [*cuts, part[start:]] if start < len(part) else cuts


def _cut_quotation(part: str, rules: EndRules) -> list[str]:
    """Cut `part` between the sentences of a quotation or of brackets. The quotation must be at the end of `part`, and
    the brackets must enclose all of `part`. Return the pieces, or [part] if there is nothing to cut."""
    close = len(part.rstrip(" .")) - 1
    openers = _QUOTES.get(part[close : close + 1])
    if part[0] == "(" and part[close] == ")" and part.find("(", 1) < 0:
        openers = "("
    if openers is None:
        return [part]
    if openers == '"':
        begin = part.rfind('"', 0, close) + 1 if part.count('"', 0, close) % 2 else 0
    else:
        begin = max(part.rfind(opener, 0, close) for opener in openers) + 1
    if not begin or _INNER_END.search(part, begin, close) is None:
        return [part]
    inner = mend_parts(sentencex.segment(rules.language, part[begin:close]), rules)
    if len(inner) == 1:
        return [part]
    return [part[:begin] + inner[0], *inner[1:-1], inner[-1] + part[close:]]


def _cut_unquoted(part: str, rules: EndRules) -> list[str]:
    """Return `part` cut at full stops outside quotations and brackets. A full stop counts if the word before it or the
    word after it shows that a sentence ends."""
    last = len(part) - 2
    at = part.find(". ", 0, last)
    cuts: list[str] = []
    start = 0
    nesting: _Nesting | None = None
    while at >= 0:
        begin = at + 2
        while begin <= last and part[begin] == " ":
            begin += 1
        token = part[part.rfind(" ", 0, at) + 1 : at]
        if token not in rules.titles and _ends_between(part, at, token, part[begin : begin + 40], rules, start=start):
            nesting = nesting or _Nesting(part)
            if nesting.is_outside(at):
                cuts.append(part[start:begin])
                start = begin
        at = part.find(". ", begin, last)
    return [*cuts, part[start:]]


def _ends_between(part: str, at: int, token: str, after: str, rules: EndRules, *, start: int) -> bool:
    """Return whether a sentence ends at the full stop at index `at` of `part`. `token` is the word before the full
    stop, `after` is the text after it, and `start` is the index where the sentence begins."""
    bare = token.strip(_AROUND)
    word = lowered(bare)
    if not word or word in rules.joins or (at - start == len(token) and ROMAN.fullmatch(bare) is not None):
        return False
    first = after[0]
    if rules.language == "ko":
        return bare.endswith("\ub2e4") and len(bare) > 1  # da. alone is an item of a list
    if first.isdigit():
        if "digit_goes_on" not in rules.habits or word in rules.may_end:
            return False
        if _ITEM_NUMBER.match(after) is not None and bare.isalpha() and bare.islower():
            return len(bare) > _SHORT_WORD
        if bare.isdecimal():
            return len(bare) == 4 and (_YEAR.match(after) or _DAY.match(after)) is not None
        is_word = len(bare) >= 5 or (len(bare) == 4 and bare.islower()) or word in rules.starters | rules.words
        is_word = is_word or (len(bare) >= 3 and _YEAR.match(after) is not None)
        return token[-1] in CLOSING or (bare.isalpha() and is_word)
    if is_shortened(after, rules):
        return len(bare) > _SHORT_WORD and bare.isalnum()
    first = first if first.isalnum() else after[1:2]
    if not first.isupper():
        return False
    if (word in rules.closing and (len(bare) > 1 or bare == word)) or part.endswith(_SO_ON, 0, at):
        return True
    if bare.islower() and (len(bare) >= _LONG_WORD or word in rules.words):
        return True
    if part[max(0, at - len(token) - 2) : at - len(token)].rstrip()[-1:].isdigit():
        if word in words_of_all("units") - rules.may_end:
            return True
        is_year = (
            after[0].isupper() and "year_ends" in rules.habits and word in rules.may_end and len(word) <= _YEAR_WORD
        )
        if is_year and not _is_time(part[start:at], rules):
            return True
    if bare in "IVX" and _last_word(part, at - len(token)).lower() in words_of_all("before_numerals"):
        return True
    if not rules.starts(after.lstrip(OPENING)):
        return False
    return (
        len(bare) > 1
        or word in rules.may_end
        or (bare.isupper() and first_word(after).lower() not in words_of_all("particles"))
    )


def _last_word(text: str, end: int) -> str:
    """Return the last word of `text` before index `end`."""
    words = text[max(0, end - 20) : end].split()
    return words[-1] if words else ""


def _is_time(text: str, rules: EndRules) -> bool:
    """Return whether `text`, which ends with a year, is probably only a time ("In May 1939"), so that the sentence goes
    on."""
    words = text.split(" ", _LONG_PART)
    if len(words) > _LONG_PART:
        return False
    first = words[0].strip(_AROUND).lower()
    return len(words) < _SHORT_PART or first[:1].isdigit() or first in rules.starters | words_of_all("times")


class _Nesting:
    """Tells whether brackets and quotations are open at given places in a text. It reads the text only once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._looked = self._brackets = 0
        self._quotes: list[str] = []

    def is_outside(self, at: int) -> bool:
        """Return whether no bracket or quotation is open at index `at`. `at` must not be smaller than in the previous
        call."""
        for found in _NESTING.finditer(self._text, self._looked, at):
            self._take(found.group(), found.start())
        self._looked = at
        return not self._brackets and not self._quotes

    def _take(self, mark: str, index: int) -> None:
        if mark in "([":
            self._brackets += 1
        elif mark in ")]":
            self._brackets = max(0, self._brackets - 1)
        elif mark in "'\u2019":
            before = self._text[index - 1 : index]
            if self._quotes and self._quotes[-1] in "'\u2018":
                self._quotes.pop()
            elif mark == "'" and not before.isalnum() and before not in tuple(".,!?)"):
                self._quotes.append(mark)
        elif self._quotes and self._quotes[-1] in _QUOTES.get(mark, ""):
            self._quotes.pop()
        else:
            self._quotes.append(mark)
