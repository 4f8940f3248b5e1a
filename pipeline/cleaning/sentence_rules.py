"""Decides by the words and habits of each language whether a cut of the library sentencex is the end of a sentence.
Pure.

If the sentence goes on, its parts are joined here. The cuts that sentencex missed are made in sentence_cuts.py. The
words are in sentence_ends.tsv. Takes linear time. docs/sentence-ends.md has precision and recall on sentences marked by
hand.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipeline.cleaning.languages import scripts_of, stop_words

OPENING = "([{\"'\u00ab\u2039\u201e\u201c\u2018\u201a\u00bf\u00a1-\u2013\u2014/"
CLOSING = ")]}\"'\u00bb\u203a\u201d\u201c\u2019"
_NEVER_FIRST = frozenset(",;:/\u060c\u061b\u3001\uff0c\uff1a\uff1b")
_DASHES = frozenset("-\u2013\u2014")
_SAID = re.compile("[-\u2013\u2014]\\s?([^\\W\\d_])")
_MARKS = frozenset(".!?\u2026\u0964\u0965\u104b\u3002\uff01\uff1f\uff61\u061f\u06d4\u0589\u1362\u17d4\u17d5" + CLOSING)
ITEM = re.compile(r"\(?\w{1,4}\.?\)\s")
_CITATION = re.compile(r"[(\[][^()\[\]]*\d[^()\[\]]*[)\]]")
_DIGITS = "0123456789.,"
_CENTURY = re.compile(r"[IVXLC]+\s[^\W\d_]")
ROMAN = re.compile("[IVXLC]+")
# Names of German clubs and leagues begin with a number in every language: 1. FC Union, 2. Bundesliga.
_COUNTED_NAME = re.compile(r"(?:[A-Z]*F[A-Z]*[CV]|\u0424\u041a|Bundesliga|Oberliga|Regionalliga)\b")
_TYPO = re.compile(r"[^\W\d_]{4}[.]\Z")
# A chapter and verse of the Bible, behind the name of its book (Matt. 5:3).
_VERSE = re.compile(r"\d{1,3}:\d{1,3}(?!\d)")
_LONGEST_BOOK = 6
# Without a space, a Korean sentence ends behind the last syllable of a verb, unless a particle (rago, go) quotes it.
_KOREAN_END = re.compile("[\uac00-\ud7a3][\ub2e4\uc694\uc74c\uc784\ud568\uc8e0\ub124]\\.+\\Z")
_KOREAN_NEXT = re.compile("(?!\uc774?\ub77c|[\uace0\ub294\uba70](?!\\w))[\uac00-\ud7a3]")
WITH_PARTICLES = frozenset(("ko", "ja", "th"))
_SHORT_WORD = 4
_SHORT_PART = 4
_LOOK_BACK = 200
_FEW_LETTERS, _VIRAMA = 2, 9
_INITIALS = re.compile(r"[^\W\d_](?:[.-]{1,2}[^\W\d_])*")
_URDU_STOP = "\u06d4"
_LONG_WORDED = frozenset(("KHMER", "TIBETAN", "MYANMAR", "LAO"))
_WITHOUT_CAPITALS = frozenset(("HEBREW", "ARABIC", "GEORGIAN"))
_BEFORE_NAMES = frozenset(".!?\u2026:-\u2013\u2014(")
# A full stop of Myanmar is two strokes; one stroke is its comma, and the genitive particle resembles a mark. In
# Chinese, the last of these closes the title of a book, never a quotation.
_NO_MARKS = frozenset("\u104a\u104f\u300b")
_PLAIN_MARKS = frozenset('!?"\u201d\u00bb')


@dataclass(frozen=True, slots=True)
class EndRules:
    """The words and habits of one language that tell where sentences end. Words are in lower case, without the full
    stop at their end.

    `joins`, `may_end` and `closing` are abbreviations. A sentence never ends after a word in `joins`. It may end after
    a word in `may_end`. It ends after a word in `closing` (such as etc.) if a capital follows. `letters` are names of
    letters, with which initials are written in India. `starters` are words that often begin a sentence.
    """

    language: str
    joins: frozenset[str]
    may_end: frozenset[str]
    closing: frozenset[str]
    letters: frozenset[str]
    starters: frozenset[str]
    words: frozenset[str]
    """Words that sentencex wrongly takes for abbreviations. A sentence may end after them."""
    quoting: frozenset[str]
    """Words that, after a quotation, continue the sentence in which the quotation stands. Used for scripts without
    capitals."""
    habits: frozenset[str]
    """Names of the habits that the language has. `ordinals`: an ordinal is a number with a full stop (19. Jahrhundert,
    II. Frigyes). `capital_nouns`: nouns have capitals. `roman_first`: a Roman number stands before the name (II.
    Frigyes), not after it (Friedrich II.). `number_first`: the same for numbers in digits. `digit_goes_on`: sentencex
    never cuts before a digit. `known_abbreviations`: sentencex knows the abbreviations. `no_case`: letters have no
    case. `initials`: an initial of a name is one syllable. `date_goes_on`: after a word in `may_end`, a sentence ends
    only before `starters`. `year_ends`: a letter with a full stop follows a year (1939 g.), and sentencex never cuts
    there. `danda`: sentences end with a stroke, so a full stop after a short word marks an abbreviation."""
    titles: frozenset[str]
    """The words in `joins`, with a capital first letter."""
    long_words: frozenset[str]
    """The last five letters of each word in `joins`, `may_end` and `closing`: in lower case, with a capital first
    letter, and all in capitals."""
    plain_marks: frozenset[str]
    """Marks after which a cut of sentencex is certainly right. The mark and a space must end a part of more than ten
    characters, and no small letter may follow."""
    plain_ends: tuple[str, ...]
    """Longer ends of a part, such as those of Korean verbs, after which a cut of sentencex is certainly right."""
    script: str
    has_own_marks: bool
    """True for Khmer and Tibetan, whose full stops sentencex does not know."""

    def starts(self, text: str) -> bool:
        """Whether `text` begins with a word that often begins a sentence."""
        word = first_word(text)
        return word.lower() in self.starters and not text.startswith(".", len(word))


@cache
def end_rules(language: str) -> EndRules:
    """Return the rules of a language. `language` is a code as in Wikipedia's addresses (en, zh-yue). If
    sentence_ends.tsv does not have the language, its rules have no abbreviations."""
    code = language.partition("-")[0]
    words = _table().get(code, {})
    known = frozenset[str]().union(*(words.get(kind, ()) for kind in ("joins", "may_end", "closing")))
    return EndRules(
        language=code,
        joins=words.get("joins", frozenset()),
        may_end=words.get("may_end", frozenset()),
        closing=words.get("closing", frozenset()),
        letters=words.get("letters", frozenset()),
        starters=(stop_words(language) | words.get("starters", frozenset())) - words.get("names", frozenset()),
        words=words.get("words", frozenset()),
        quoting=words.get("quoting", frozenset()),
        habits=words.get("habits", frozenset()),
        titles=frozenset(word.capitalize() for word in words.get("joins", ())),
        long_words=frozenset(form[-5:] for word in known for form in (word, word.capitalize(), word.upper())),
        plain_marks=_plain_marks(code, words),
        plain_ends=("\ub2e4. ",) if code == "ko" else (),
        script=scripts_of(language)[0],
        has_own_marks=scripts_of(language)[0] in ("KHMER", "TIBETAN"),
    )


def _plain_marks(code: str, words: dict[str, frozenset[str]]) -> frozenset[str]:
    if code in WITH_PARTICLES:
        return frozenset()
    if "quoting" in words:
        return frozenset("!?")
    knows = "known_abbreviations" in words.get("habits", ())
    return _PLAIN_MARKS | frozenset(".'\u2019)]\u2026") if knows else _PLAIN_MARKS


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
    """Return whether a sentence certainly ends between `before` and `after`, two neighbouring parts of a line. It does
    if `before` ends with a word of five letters or more that is no known abbreviation, a full stop and a space, and
    `after` begins with a capital. This is a quick test: False means unknown."""
    tail = before[-7:]
    if tail[-1] != " " or tail[-2:-1] != ".":
        return False
    if not tail[:5].isalpha() or tail[:5] in rules.long_words:
        return len(before) > _SHORT_PART and tail.endswith(rules.plain_ends) and after[0].isalnum()
    return after[0].isupper() or (after[0] in OPENING and after[1:2].isupper())


def is_plain_mark(before: str, after: str, rules: EndRules) -> bool:
    """Return whether a sentence certainly ends between `before` and `after`, two neighbouring parts of a line. It does
    if `before` ends with a mark such as ! and a space, and `after` does not begin with a small letter, a digit or a
    dash. This is a quick test: False means unknown."""
    if before[-1:] != " " or before[-2] not in rules.plain_marks:
        return False
    first = after[0]
    if first.islower() or first.isdigit() or first in _DASHES:
        return False
    return not before[-3:-2].isdigit() and before[-4:-3] != " "


def lowered(text: str) -> str:
    """Return a text in lower case. The Turkish capital I with a dot becomes a plain i."""
    return text.lower().replace("i\u0307", "i")


def words_of_all(kind: str) -> frozenset[str]:
    """Return the words of one kind that sentence_ends.tsv lists for no single language, because they count in text of
    every language. `kind` is the kind of words, such as "units" (km, kg)."""
    return _table()["*"][kind]


def goes_on(before: str, after: str, rules: EndRules) -> bool:
    """Return whether `after` continues the sentence at the end of `before`. The library sentencex cut a line between
    these two parts, and was then wrong to do so."""
    head = before[-_LOOK_BACK:].rstrip()
    last, first = head[-1:], after[0]
    if first in _NEVER_FIRST or (first in "-\u2013" and after[1:2].isdigit()):
        return True
    if len(after) < _SHORT_WORD and not any(map(str.isalnum, after)):
        return True
    is_small = first.islower() and "no_case" not in rules.habits
    said = _SAID.match(after)
    if said is not None and said.group(1).islower() and "no_case" not in rules.habits:
        return True
    if last not in _MARKS:
        return last in _NO_MARKS or ITEM.match(after) is not None
    token = head[head.rfind(" ") + 1 :]
    if last != ".":
        if is_small and (last in CLOSING or last in "!?\u2026"):
            return _begins_with_capital(before)
        if last in CLOSING:
            return last not in ")]}" and (_is_quoting(after, rules) or (first in "([" and after[1:2].islower()))
        if last == _URDU_STOP:
            return token[:-1] in rules.joins or _is_spelled(head, after, rules)
        return last == "\u0964" and len(token) > _SHORT_WORD and token[:-1] in rules.letters
    if not before[-1].isspace():
        if rules.language == "ko" and _KOREAN_END.search(head) and _KOREAN_NEXT.match(after):
            return False
        if first in "([":
            return _CITATION.match(after) is not None
        return (first.isalnum() or first == "-") and not (first.isupper() and _TYPO.search(head) is not None)
    if len(token) > 10 and first.isupper():
        return False
    plain = token[:-1].lstrip(OPENING)
    word = lowered(plain)
    word = word.lstrip(_DIGITS) if plain[:1].isdigit() and not plain[-1].isdigit() else word
    previous = head[: len(head) - len(token)].rstrip()
    previous = previous[previous.rfind(" ") + 1 :]
    if word in rules.joins or word in rules.letters or _is_syllable(word, previous, rules):
        return True
    if _is_short_word(word, head + after[:_LOOK_BACK], rules):
        return True
    if word not in rules.may_end and _is_initial(plain, previous, after, rules):
        return True
    if first.isdigit() and word in words_of_all("numbered"):
        return True
    if plain.isdecimal() and len(plain) <= len("31") and _is_counted_name(plain, previous, after, rules):
        return True
    if first.isdigit() and len(plain) <= _LONGEST_BOOK and plain[:1].isupper() and _VERSE.match(after) is not None:
        return True
    if rules.language == "ko" and first.isdigit() and plain.isascii() and plain.isalpha():
        return True
    if word in rules.may_end and first in "([":
        return not rules.starts(after[1:])
    if word in rules.may_end:
        is_short = len(before) < _LOOK_BACK and head.count(" ") < _SHORT_PART - 1
        may_go_on = is_short or "date_goes_on" in rules.habits
        return is_small or first.isdigit() or (may_go_on and not rules.starts(after))
    if is_small:
        return _small_letter_goes_on(before, plain, rules)
    return first.isupper() and "ordinals" in rules.habits and _is_ordinal(head, token, after, rules)


def _is_syllable(word: str, previous: str, rules: EndRules) -> bool:
    """Return whether `word` is the initial of a name in an Indian script: one syllable, or several with full stops
    between them.

    A word that often begins a sentence counts as an initial only if `previous`, the word before it, is an initial or an
    abbreviation such as a title.
    """
    if "initials" not in rules.habits or not all(map(_is_one_syllable, word.split("."))):
        return False
    if word not in rules.starters:
        return True
    return previous[-1:] == "." and (previous[:-1] in rules.joins or _is_one_syllable(previous[:-1]))


def _is_one_syllable(word: str) -> bool:
    return len(word) <= _SHORT_WORD - 1 and _count_letters(word) == 1


def _count_letters(word: str) -> int:
    """Return the number of letters in a word of an Indian script, without vowel signs. Joined consonants count as one
    letter."""
    pairs = zip(" " + word, word, strict=False)
    return sum(
        unicodedata.category(letter) == "Lo" and unicodedata.combining(before) != _VIRAMA for before, letter in pairs
    )


def _is_short_word(word: str, text: str, rules: EndRules) -> bool:
    """Return whether `word` is so short that the full stop after it marks an abbreviation. This is possible only in
    languages whose sentences end with another mark, such as a stroke. `text` is the text around the word."""
    if rules.script in _LONG_WORDED and len(word) <= _SHORT_WORD:
        return True
    if "danda" not in rules.habits or word in rules.starters:
        return False
    return 0 < _count_letters(word) <= (_FEW_LETTERS if "\u0964" in text else 1) or ("." in word and "\u0964" in text)


def _is_initial(plain: str, previous: str, after: str, rules: EndRules) -> bool:
    """Return whether the word `plain` is an initial (G., J.-B. or C.S.) of the name that begins `after`.

    A single letter may also be something else, as in vitamin C, 5 V or Karl I. The word before the letter (`previous`)
    tells which it is.
    """
    if _INITIALS.fullmatch(plain) is None:
        return False
    if rules.script not in _WITHOUT_CAPITALS and not (plain.isupper() and after[0].isupper()):
        return False
    if not previous or previous[-1] in _BEFORE_NAMES:
        return True
    if previous[-1].isdigit() or rules.starts(after) or ("." in plain and "-" not in plain):
        return False
    if plain in "IVX" and previous[0].isupper():
        return False
    return not previous.lower().lstrip(OPENING).startswith(tuple(words_of_all("lettered")))


def _is_counted_name(number: str, previous: str, after: str, rules: EndRules) -> bool:
    """Return whether `number` and its full stop belong to a German name that continues in `after`. Examples are 1. FC
    Union and Strasse des 17. Juni. `previous` is the word before the number."""
    if _COUNTED_NAME.match(after) is not None:
        return len(number) == 1
    return previous == "des" and rules.language not in ("fr", "ca", "oc") and after[0].isupper()


def _is_quoting(after: str, rules: EndRules) -> bool:
    """Return whether `after`, the text behind a quotation, begins with a word (such as "said") that continues the
    sentence in which the quotation stands."""
    if rules.script == "MYANMAR":
        return after.startswith(tuple(rules.quoting))
    return after.split(" ", 1)[0].rstrip(",.\u0964\u060c\u06d4") in rules.quoting


def _is_spelled(head: str, after: str, rules: EndRules) -> bool:
    """Return whether `head` ends with the name of a letter in an Urdu abbreviation. Such an abbreviation consists of
    names of letters with a full stop after each, so another name of a letter must stand before or after it."""
    names = head[-_LOOK_BACK:].replace(_URDU_STOP, _URDU_STOP + " ").split()
    if names[-1][:-1] not in rules.letters:
        return False
    following = after.partition(_URDU_STOP)
    if following[1] and following[0] in rules.letters:
        return True
    return len(names) > 1 and names[-2][-1] == _URDU_STOP and names[-2][:-1] in rules.letters


def _small_letter_goes_on(before: str, plain: str, rules: EndRules) -> bool:
    """Return whether a sentence goes on after a full stop that is followed by a small letter. `before` is the text that
    ends with the full stop, and `plain` is its last word."""
    if plain[-1:].isdigit():
        return True
    if "ordinals" in rules.habits and ROMAN.fullmatch(plain) is not None:
        return True
    if "known_abbreviations" in rules.habits or (len(plain) > 1 and plain.lower() in rules.starters):
        return False
    is_abbreviation = len(plain) <= _SHORT_WORD or "." in plain
    return is_abbreviation and _begins_with_capital(before)


def _begins_with_capital(text: str) -> bool:
    """Return whether the first letter of `text` is a capital."""
    return next((letter.isupper() for letter in text if letter.isalpha()), False)


def _is_ordinal(head: str, token: str, after: str, rules: EndRules) -> bool:
    """Return whether `head` ends with an ordinal: a number with a full stop that ends no sentence, as in "19.
    Jahrhundert". `token` is this number with its full stop. `after` is the text behind it, and begins with a capital.
    """
    number = token[:-1].lstrip(OPENING)
    is_roman = ROMAN.fullmatch(number) is not None
    if not is_roman and not (number.isdecimal() and len(number) <= 3):
        return False
    previous = head[: len(head) - len(token)].rstrip()
    previous = previous[previous.rfind(" ") + 1 :]
    if previous[-1:] == "." and previous[:-1].lower().lstrip(OPENING) in words_of_all("numbered"):
        return False
    is_known = lowered(previous[:-1]) in rules.joins | rules.may_end
    if not previous or (previous[-1] in ".!?" and previous[:-1].isalpha() and not is_known):
        return True
    if rules.starts(after):
        return False
    century = _CENTURY.match(after)
    if century is not None and century.group()[-1].islower():
        return True
    if after[:12].lower().startswith(tuple(words_of_all("counted"))):
        return True
    if previous[-1] in ".!?" or previous.lower() in rules.starters:
        return True
    if "capital_nouns" in rules.habits:
        return previous.islower()
    return ("roman_first" if is_roman else "number_first") in rules.habits


def mend_parts(parts: list[str], rules: EndRules) -> list[str]:
    """Return `parts` (what the library sentencex took for the sentences of a line), with neighbours joined if sentencex
    wrongly cut between them."""
    if len(parts) == 1:
        return parts
    joined: list[str] = []
    for part in parts:
        before = joined[-1] if joined else ""
        if not before or is_plain_mark(before, part, rules) or is_plain_end(before, part, rules):
            joined.append(part)
        elif goes_on(before, part, rules):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def first_word(text: str) -> str:
    """Return the letters and digits with which `text` begins."""
    for index, character in enumerate(text):
        if not character.isalnum():
            return text[:index]
    return text
