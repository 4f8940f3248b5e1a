"""Where sentences end, by language: abbreviations, ordinals, quotations, and the marks of scripts without spaces.

sentencex cuts first; these rules join what it cut within a sentence, and cut what it left together. The words are in
sentence_ends.tsv. Pure; linear in the text. docs/sentence-ends.md has precision and recall on sentences marked by hand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import sentencex

from pipeline.cleaning.languages import scripts_of, stop_words

_OPENING = "([{\"'\u00ab\u2039\u201e\u201c\u2018\u201a\u00bf\u00a1-\u2013\u2014/"
_CLOSING = ")]}\"'\u00bb\u203a\u201d\u201c\u2019"
_AROUND = _OPENING + _CLOSING + "."
_MARKS = frozenset(".!?\u2026\u0964\u0965\u104b\u3002\uff01\uff1f\uff61\u061f\u06d4\u0589\u1362\u17d4\u17d5" + _CLOSING)
_ITEM = re.compile(r"\(?\w{1,4}\.?\)\s")
_CITATION = re.compile(r"[(\[][^()\[\]]*\d[^()\[\]]*[)\]]")
_DIGITS = "0123456789.,"
_CENTURY = re.compile(r"[IVXLC]+\s[^\W\d_]")
_YEAR = re.compile(r"\d{4} [^\W\d_]")
_ROMAN = re.compile("[IVXLC]+")
_TYPO = re.compile(r"[^\W\d_]{4}[.]\Z")
_PARTICLES_AFTER_BRACKETS = frozenset(("ko", "ja", "th"))
_LONG_WORD = 6
_SHORT_WORD = 4
_SHORT_PART = 4
# A full stop of Myanmar is two strokes; one stroke is its comma, and the genitive particle resembles a mark.
_NO_MARKS_OF_MYANMAR = frozenset("\u104a\u104f")
# Khmer writes "et cetera" as a letter between two full stops.
_KHMER_END = re.compile(
    "(?<!\u17d4\u179b)[\u17d4\u17d5]+(?!\u179b\u17d4)[\u00bb\u201d\"')]*\\s*|(?<=\u17d4\u179b)\u17d4\\s+"
)
# Tibetan marks clauses and items of lists too: what has less than two dots between its syllables ends nothing.
# The stroke is not written behind ka, ga and sha, where the space ends the clause.
_TIBETAN_END = re.compile("(?:[\u0f0d-\u0f12\u0f14]\\s*)+|(?<=[\u0f40\u0f42\u0f64])\\s+")
_TIBETAN_DOT = "\u0f0b"
_QUOTES = {
    '"': '"',
    "\u201d": "\u201c\u201e\u201d",
    "\u201c": "\u201e",
    "\u00bb": "\u00ab",
    "\u00ab": "\u00bb",
}
_PLAIN_MARKS = frozenset('!?"\u201d\u00bb')
_QUOTATION_ENDS = frozenset(_QUOTES)
_INNER_END = re.compile("[.!?\u2026\u0964][\"')\u2019\u201d]* ")
_NESTING = re.compile("[()\\[\\]\"'\u00ab\u00bb\u2018\u2019\u201c\u201d\u201e]")


@dataclass(frozen=True, slots=True)
class EndRules:
    """The words and habits of one language that tell ends of sentences. Words are in lower case, without a last stop.

    A sentence never ends behind `joins`; it may end behind `may_end`, and does behind `closing` before a capital.
    `letters` are names of letters, as initials are written in India. `starters` are words that often begin a sentence.
    """

    language: str
    joins: frozenset[str]
    may_end: frozenset[str]
    closing: frozenset[str]
    letters: frozenset[str]
    starters: frozenset[str]
    habits: frozenset[str]
    """`ordinals`: an ordinal is a number with a stop (19. Jahrhundert, II. Frigyes). `capital_nouns`: nouns have
    capitals. `roman_first`: the language writes II. Frigyes, not Friedrich II.; `number_first` is the same for digits.
    `digit_goes_on`: sentencex never cuts before a digit. `known_abbreviations`: sentencex knows the abbreviations.
    `no_case`: letters have no case.
    """
    titles: frozenset[str]
    """The words in `joins`, capitalised."""
    long_words: frozenset[str]
    """The last five letters of the words in `joins`, `may_end` and `closing` that have as many, in any case."""
    plain_marks: frozenset[str]
    """Marks behind which a sentence of more than ten characters has ended if sentencex cut at the space behind them
    and no small letter follows."""
    plain_ends: tuple[str, ...]
    """The same for longer ends, such as those of Korean verbs."""
    script: str
    has_own_marks: bool
    """sentencex does not know the full stops of the script."""

    def starts(self, text: str) -> bool:
        """Whether `text` begins with a word that often begins a sentence."""
        word = _first_word(text)
        return word.lower() in self.starters and not text.startswith(".", len(word))


@cache
def end_rules(language: str) -> EndRules:
    """Return the rules of a language code as in Wikipedia's addresses; without words where the table has none."""
    code = language.partition("-")[0]
    words = _table().get(code, {})
    known = frozenset[str]().union(*(words.get(kind, ()) for kind in ("joins", "may_end", "closing")))
    return EndRules(
        language=code,
        joins=words.get("joins", frozenset()),
        may_end=words.get("may_end", frozenset()),
        closing=words.get("closing", frozenset()),
        letters=words.get("letters", frozenset()),
        starters=stop_words(language) | words.get("starters", frozenset()),
        habits=words.get("habits", frozenset()),
        titles=frozenset(word.capitalize() for word in words.get("joins", ())),
        long_words=frozenset(form[-5:] for word in known for form in (word, word.capitalize(), word.upper())),
        plain_marks=_plain_marks(code, words.get("habits", frozenset())),
        plain_ends=("\ub2e4. ",) if code == "ko" else (),
        script=scripts_of(language)[0],
        has_own_marks=scripts_of(language)[0] in ("KHMER", "TIBETAN"),
    )


def _plain_marks(code: str, habits: frozenset[str]) -> frozenset[str]:
    if code in _PARTICLES_AFTER_BRACKETS:
        return frozenset()
    return _PLAIN_MARKS | frozenset(".'\u2019)]\u2026") if "known_abbreviations" in habits else _PLAIN_MARKS


@cache
def _table() -> dict[str, dict[str, frozenset[str]]]:
    table: dict[str, dict[str, frozenset[str]]] = {}
    for line in Path(__file__).with_name("sentence_ends.tsv").read_text(encoding="utf-8").splitlines():
        kind, languages, words = line.split("\t")
        for language in languages.split():
            kinds = table.setdefault(language, {})
            kinds[kind] = kinds.get(kind, frozenset()) | frozenset(words.split())
    return table


def is_plain_end(before: str, after: str, rules: EndRules) -> bool:
    """Return whether a sentence certainly ends between two parts: a long word, a mark, a space and a capital. Quick."""
    tail = before[-7:]
    if tail[-1] != " " or tail[-2:-1] != ".":
        return False
    if not tail[:5].isalpha() or tail[:5] in rules.long_words:
        return tail.endswith(rules.plain_ends) and after[0].isalnum()
    return after[0].isupper() or (after[0] in _OPENING and after[1:2].isupper())


def has_quotations(text: str) -> bool:
    """Return whether a text has a quotation mark that may close a quotation. Quick."""
    return '"' in text or (not text.isascii() and any(mark in text for mark in _QUOTES))


def may_hold_ends(part: str, rules: EndRules) -> bool:
    """Return whether cut_more may find an end inside a part without a full stop and a space. Quick."""
    if rules.has_own_marks:
        return True
    if _QUOTATION_ENDS.isdisjoint(part[-3:]):
        return False
    return part.find("! ", 0, -2) >= 0 or part.find("? ", 0, -2) >= 0 or part.find("\u0964 ", 0, -2) >= 0


def _of_all(kind: str) -> frozenset[str]:
    return _table()["*"][kind]


def goes_on(before: str, after: str, rules: EndRules) -> bool:
    """Return whether `after` continues the sentence whose last part is `before`, where sentencex cut the two."""
    head = before.rstrip()
    last, first = head[-1], after[0]
    if last not in _MARKS:
        return last in _NO_MARKS_OF_MYANMAR or _ITEM.match(after) is not None
    token = head[head.rfind(" ") + 1 :]
    if last != ".":
        if last in _CLOSING and first.islower() and "no_case" not in rules.habits:
            return _begins_with_capital(head)
        return last == "\u0964" and len(token) > _SHORT_WORD and token[:-1] in rules.letters
    if len(head) == len(before):
        if first in "([":
            return _CITATION.match(after) is not None
        return (first.isalnum() or first in ",;:-") and not (first.isupper() and _TYPO.search(head) is not None)
    if len(token) > 10 and first.isupper():
        return False
    plain = token[:-1].lstrip(_OPENING)
    word = plain.lower().lstrip(_DIGITS) if plain[:1].isdigit() and not plain[-1].isdigit() else plain.lower()
    if word in rules.joins or word in rules.letters:
        return True
    if rules.language == "ko" and first.isdigit() and plain.isascii() and plain.isalpha():
        return True
    is_small = first.islower() and "no_case" not in rules.habits
    if word in rules.may_end:
        is_short = head.count(" ") < _SHORT_PART - 1
        return is_small or first.isdigit() or (is_short and not rules.starts(after))
    if is_small:
        return _small_letter_goes_on(head, plain, rules)
    return first.isupper() and "ordinals" in rules.habits and _is_ordinal(head, token, after, rules)


def _small_letter_goes_on(head: str, plain: str, rules: EndRules) -> bool:
    """Return whether a small letter behind the word `plain` and its full stop continues the sentence."""
    if plain[-1:].isdigit():
        return True
    if "ordinals" in rules.habits and _ROMAN.fullmatch(plain) is not None:
        return True
    if "known_abbreviations" in rules.habits or plain.lower() in rules.starters:
        return False
    is_abbreviation = len(plain) <= _SHORT_WORD or "." in plain
    return is_abbreviation and _begins_with_capital(head)


def _begins_with_capital(text: str) -> bool:
    """Return whether the first letter is a capital: a small letter then begins no sentence of the text."""
    return next((letter.isupper() for letter in text if letter.isalpha()), False)


def _is_ordinal(head: str, token: str, after: str, rules: EndRules) -> bool:
    """Return whether the number that ends `head` counts the capital word that begins `after`."""
    number = token[:-1].lstrip(_OPENING)
    is_roman = _ROMAN.fullmatch(number) is not None
    if not is_roman and not (number.isdecimal() and len(number) <= 3):
        return False
    if rules.starts(after):
        return False
    century = _CENTURY.match(after)
    if century is not None and century.group()[-1].islower():
        return True
    previous = head[: len(head) - len(token)].rstrip()
    previous = previous[previous.rfind(" ") + 1 :]
    if not previous or previous.lower() in rules.starters:
        return True
    if "capital_nouns" in rules.habits:
        return previous.islower()
    return ("roman_first" if is_roman else "number_first") in rules.habits


def cut_more(part: str, rules: EndRules) -> list[str]:
    """Cut a sentence of sentencex at the ends that it left inside; usually there are none."""
    if rules.has_own_marks:
        return _cut_at_marks(part, rules)
    close = part.find(".) ") + 3 if part[0] == "(" and rules.language not in _PARTICLES_AFTER_BRACKETS else 0
    if close > 2 and part.find("(", 1, close) < 0 and part[close : close + 1].isupper():
        return [part[:close], *cut_more(part[close:], rules)]
    item = _ITEM.match(part) if ")" in part[:7] else None
    if item is not None:
        rest = mend_parts(sentencex.segment(rules.language, part[item.end() :]), rules)
        return [item.group() + rest[0], *rest[1:]] if rest else [part]
    cuts = [part] if _QUOTATION_ENDS.isdisjoint(part[-4:]) else _cut_quotation(part, rules)
    if cuts[0].find(". ", 0, -2) >= 0:
        cuts[:1] = _cut_unquoted(cuts[0], rules)
    return cuts


def _cut_at_marks(part: str, rules: EndRules) -> list[str]:
    """Cut at the full stops of Khmer or Tibetan, which sentencex does not know."""
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
    """Cut the sentences of a quotation with which `part` ends: the sentence around it does not go on behind them."""
    close = len(part.rstrip(" .")) - 1
    openers = _QUOTES.get(part[close : close + 1])
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
    """Cut outside quotations and brackets where the word before a full stop, or the word after it, tells an end."""
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
        if token not in rules.titles and _ends_between(part, at, token, part[begin : begin + 40], rules):
            nesting = nesting or _Nesting(part)
            if nesting.is_outside(at):
                cuts.append(part[start:begin])
                start = begin
        at = part.find(". ", begin, last)
    return [*cuts, part[start:]]


def _ends_between(part: str, at: int, token: str, after: str, rules: EndRules) -> bool:
    """Return whether a sentence ends at the full stop at index `at` between `token` and the words `after`."""
    bare = token.strip(_AROUND)
    word = bare.lower()
    if not word or word in rules.joins:
        return False
    first = after[0]
    if rules.language == "ko":
        return bare.endswith("\ub2e4")
    if first.isdigit():
        if "digit_goes_on" not in rules.habits or word in rules.may_end:
            return False
        if bare.isdecimal():
            return len(bare) == 4 and _YEAR.match(after) is not None
        is_word = len(bare) >= 5 or word in rules.starters or (len(bare) >= 3 and _YEAR.match(after) is not None)
        return token[-1] in _CLOSING or (bare.isalpha() and is_word)
    first = first if first.isalnum() else after[1:2]
    if not first.isupper():
        return False
    if word in rules.closing or part.endswith(("\u0442. \u0434", "\u0442. \u043f"), 0, at):
        return True
    if bare.islower() and len(bare) >= _LONG_WORD:
        return True
    if word in _of_all("units") and part[: at - len(token)].rstrip()[-1:].isdigit():
        return True
    if not rules.starts(after.lstrip(_OPENING)):
        return False
    return len(bare) > 1 or (bare.isupper() and _first_word(after).lower() not in _of_all("particles"))


class _Nesting:
    """Follows brackets and quotation marks through a text, once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._looked = self._brackets = 0
        self._quotes: list[str] = []

    def is_outside(self, at: int) -> bool:
        """Return whether no bracket or quotation is open at index `at`; indices must not decrease."""
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


def mend_parts(parts: list[str], rules: EndRules) -> list[str]:
    """Join the parts of a line that continue one another."""
    if len(parts) == 1:
        return parts
    joined: list[str] = []
    for part in parts:
        before = joined[-1] if joined else ""
        is_plain = before[-1:] == " " and before[-2:-1] in rules.plain_marks and not part[0].islower()
        if before and not is_plain and not is_plain_end(before, part, rules) and goes_on(before, part, rules):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def _first_word(text: str) -> str:
    """Return the letters and digits with which `text` begins."""
    for index, character in enumerate(text):
        if not character.isalnum():
            return text[:index]
    return text
