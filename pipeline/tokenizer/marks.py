"""Counts the marks (vowel signs, tones, voicing) of a text that a tokenizer's normalizer removes, by script.

In scripts such as Devanagari, Thai and kana these marks are letters: without them, different words become one. Marks of
Latin, Greek and Cyrillic are accents, which the published vocabularies remove, so they are not counted.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

# First words of Unicode names whose marks are accents, optional points, or not part of a script.
_NOT_LETTERS = {
    *("LATIN", "GREEK", "CYRILLIC", "COPTIC", "GLAGOLITIC", "COMBINING", "ENCLOSING", "VEDIC", "MUSICAL", "ZNAMENNY"),
    *("SIGNWRITING", "IDEOGRAPHIC", "HANGUL", "SYRIAC", "ETHIOPIC", "OLD", "BYZANTINE"),
}
_ARABIC_LETTERS = frozenset("\u0653\u0654\u0655")
"""Madda and hamza, which make other letters of alef, waw and yeh. Other Arabic marks are vowel points that most text
leaves out."""
_KANA = frozenset(("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"))
_MARKS = ("Mn", "Mc")
_BEYOND_BASIC = (0x10000, 0x1E960)


class MarkCount(NamedTuple):
    """Three counts of the marks (such as vowel signs) of a text, each of them by script. `found` counts the marks,
    `lost` counts the marks that the normalizer removes, and `letters` counts letters and marks together."""

    found: Counter[str]
    lost: Counter[str]
    letters: Counter[str]


class LostMarks:
    """Counts the marks (such as vowel signs) of a text that a tokenizer's normalizer removes. `scripts` lists the
    scripts that lose marks. If it is empty, counting costs nothing."""

    def __init__(self, normalizer: Any | None) -> None:
        """Find the marks (such as vowel signs) that `normalizer` removes, by trying it on every letter with a mark (20
        ms). `normalizer` is an object of the `tokenizers` library."""
        marked = letters_with_marks()
        self._lost: dict[str, int] = {}
        """How many marks are lost of each letter that loses marks."""
        if normalizer is not None:
            for letter, found in marked.items():
                lost = found.total() - _find_marks(normalizer.normalize_str(letter)).total()
                if lost > 0:
                    self._lost[letter] = lost
        every, lost_by_script = Counter[str](), Counter[str]()
        for letter, found in marked.items():
            script = next(iter(found))
            every[script] += marked[letter].total()
            lost_by_script[script] += self._lost.get(letter, 0)
        self.scripts: dict[str, float] = {
            script: lost / every[script] for script, lost in lost_by_script.items() if lost
        }
        """For each script that loses marks, the share of its marks that is lost if all letters are equally frequent."""
        self._scripts = {letter: script for letter, script in letters_by_script().items() if script in self.scripts}
        self._marks = {letter: marked[letter].total() for letter in self._scripts if letter in marked}

    def may_lose(self, text: str) -> bool:
        """Return whether `text` has a letter of a script that loses marks. If not, `count` returns None for every part
        of `text`."""
        return not text.isascii() and not self._scripts.keys().isdisjoint(text)

    def count(self, text: str) -> MarkCount | None:
        """Return how many marks (such as vowel signs) `text` has, and how many of its marks the normalizer removes.
        `text` is not normalized yet. Only scripts that lose marks are counted. Return None if `text` has no letter of a
        script that loses marks."""
        if not self.may_lose(text):
            return None
        counts = MarkCount(Counter(), Counter(), Counter())
        for letter, number in Counter(text).items():
            script = self._scripts.get(letter)
            if script is None:
                continue
            counts.found[script] += number * self._marks.get(letter, 0)
            counts.lost[script] += number * self._lost.get(letter, 0)
            counts.letters[script] += number
        return counts


@cache
def letters_with_marks() -> dict[str, Counter[str]]:
    """Return a dict with a key for every character that contains marks, which its decomposition (NFD) shows. The value
    counts the character's marks by script. Marks that are mere accents do not count, but those that change a letter do,
    such as the vowel signs of Devanagari."""
    found = {}
    for letter in _every_letter():
        if unicodedata.decomposition(letter) or unicodedata.category(letter) in _MARKS:
            marks = _find_marks(letter)
            if marks:
                found[letter] = marks
    return found


@cache
def letters_by_script() -> dict[str, str]:
    """Return a dict from each letter or mark to its script. It has all scripts in which marks change a letter, such as
    Devanagari with its vowel signs. A script is named by the first word of its letters' Unicode names; all kana is
    KANA."""
    scripts = {script for found in letters_with_marks().values() for script in found}
    named = {}
    for letter in _every_letter():
        script = unicodedata.name(letter, "").partition(" ")[0]
        script = "KANA" if script in _KANA else script
        if script in scripts and unicodedata.category(letter)[0] in "LM":
            named[letter] = script
    return named | {letter: next(iter(found)) for letter, found in letters_with_marks().items()}


def _every_letter() -> Iterator[str]:
    """Yield every character that may be a letter or mark, except Latin, Greek, Cyrillic and Chinese ones and Hangul
    syllables."""
    for code in (*range(0x530, 0x3400), *range(0xA000, 0xAC00), *range(0xF900, 0xFFFE), *range(*_BEYOND_BASIC)):
        yield chr(code)


def _find_marks(text: str) -> Counter[str]:
    """Decompose a text (NFD), and return how many marks it then has, by script. Marks that are mere accents do not
    count, but those that change a letter do, such as the vowel signs of Devanagari."""
    scripts = (_script_of(mark) for mark in unicodedata.normalize("NFD", text))
    return Counter(script for script in scripts if script is not None)


@cache
def _script_of(character: str) -> str | None:
    """Return the script of a mark, named by the first word of the mark's Unicode name. Return None if the character is
    not a mark, or is only an accent or an optional point."""
    if unicodedata.category(character) not in _MARKS:
        return None
    name = unicodedata.name(character, "").removeprefix("COMBINING KATAKANA").removeprefix("-")
    if "VARIATION SELECTOR" in name:
        return None
    script = name.partition(" ")[0]
    if script in _KANA:
        return "KANA"
    if script == "ARABIC" and character not in _ARABIC_LETTERS:
        return None
    return None if not script or script in _NOT_LETTERS else script
