"""Finds words in scripts that are written without spaces. Lists of words in the library ICU (its dictionaries: Thai,
Lao, Khmer, Burmese, Han, kana) tell where words start.

This module needs the package icu4py, which brings ICU itself: `pip install 'cloze[words]'`. The dictionaries read 2 to
5 million characters a second.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise

LIBRARY = "icu4py"
BY_TOKENIZER, START, INSIDE = 0, 1, 2
_SPACELESS = (
    *((0x0E00, 0x0E7F), (0x0E80, 0x0EFF), (0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F), (0x1780, 0x17FF)),
    *((0x3005, 0x3007), (0x3031, 0x3035), (0x3040, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F)),
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF)),
)


def has_library() -> bool:
    """Whether icu4py is installed, the package whose dictionaries find words in scripts without spaces."""
    return library_version() is not None


@cache
def library_version() -> str | None:
    """Return the version of icu4py, or None if it is absent. The package's dictionaries, and so the words that are
    found in scripts without spaces, depend on this version."""
    try:
        return version(LIBRARY)
    except PackageNotFoundError:
        return None


class Dictionary:
    """Finds the words in text of one language, with ICU's dictionary (list of words) of that language. The language is
    given as a code such as th."""

    def __init__(self, language: str) -> None:
        from icu4py.breakers import WordBreaker  # an extra

        self._breaker = WordBreaker
        self._language = language.partition("-")[0]
        self._runs = _spaceless_runs()

    def mark(self, text: str) -> bytes:
        """Return a byte for each character of `text`: START if the character starts a word, INSIDE if it continues a
        word, or BY_TOKENIZER if the tokenizer decides.

        Letters and marks of the scripts without spaces are START or INSIDE. The character after a run of such letters
        and marks is START too. All other characters are BY_TOKENIZER.
        """
        marks = bytearray(len(text))
        for run in self._runs.finditer(text):
            at = run.start()
            for word in self._breaker(run.group(), self._language):
                marks[at] = START
                marks[at + 1 : at + len(word)] = bytes([INSIDE]) * (len(word) - 1)
                at += len(word)
            if at < len(text):
                marks[at] = START
        return bytes(marks)

    def cut(self, words: Sequence[str]) -> list[list[str]]:
        """Cut each of `words` where ICU's dictionary finds the start of another word in it, and return the pieces of
        each word. In the text, `words` follow each other without a space. The whole text is looked at, because the
        words around a place help to find it."""
        marks = self.mark("".join(words))
        parts = []
        begin = 0
        for word in words:
            starts = [0, *(place for place in range(1, len(word)) if marks[begin + place] == START), len(word)]
            parts.append([word[one:other] for one, other in pairwise(starts)])
            begin += len(word)
        return parts


@cache
def _spaceless_runs() -> re.Pattern[str]:
    """Return a pattern for runs of letters and marks of the scripts that are written without spaces."""
    ranges = []
    for first, last in _SPACELESS:
        start = None
        for code in range(first, last + 2):
            fits = code <= last and unicodedata.category(chr(code))[0] in "LM"
            if fits and start is None:
                start = code
            elif not fits and start is not None:
                ranges.append(f"{chr(start)}-{chr(code - 1)}")
                start = None
    return re.compile(f"[{''.join(ranges)}]+")
