"""Hashes every run (13 words in a row) of a text. Texts that share a passage have hashes in common. Pure.

Case and punctuation make no difference. In scripts without spaces between words, a run has as many characters as 13
words usually have: 26 Chinese or Japanese characters, or 52 Thai, Lao, Khmer or Burmese ones. In mixed text, such a
character counts as half or a quarter of a word. Hashes have 64 bits. If the 100 billion runs of a corpus are compared
with 10 million runs of evaluation sets, the probability of a false match is below one in ten.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from pipeline import draws

RUN_WORDS = 13
_PARTS = 4  # of a word: what a character of a script without spaces counts is in quarters
_HALF = "\u3005-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_QUARTER = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\ua9e0-\ua9ff\uaa60-\uaa7f"
_UNSPACED = re.compile(f"[{_HALF}{_QUARTER}]")
_ASCII_WORD = re.compile("[a-z0-9]+")
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that it has an inverse modulo 2**64
_INVERSE = np.uint64(pow(int(_BASE), -1, 1 << 64))
_CHUNK_WORDS = 1 << 16
_MOST_KNOWN = 1 << 18


class Runs(NamedTuple):
    """Some runs (13 words in a row) of a text. `hashes` (uint64[n]) has a hash of each run. Run i has the words
    `words[starts[i]:ends[i]]`."""

    hashes: draws.UInt64s
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    words: list[str]
    is_short: bool = False
    """Whether the text has fewer than 13 words. If so, its only run has all of its words."""


class RunHasher:
    """Hashes the runs (13 words in a row) of texts. For speed, it remembers the hashes of words."""

    def __init__(self) -> None:
        self._known = _Known()

    def hash_text(self, lines: Iterable[str]) -> Iterator[Runs]:
        """Yield the runs (13 words in a row) of a text, about _CHUNK_WORDS words at a time. `lines` are the lines of
        the text. A text of fewer than 13 words is one run, which matches only a text that consists of the same
        words."""
        words: list[str] = []
        is_long = False
        for line in lines:
            words += split_words(line)
            if len(words) >= _CHUNK_WORDS:
                runs = self._hash_words(words)
                if runs.hashes.size:
                    is_long = True
                    yield runs
                    words = words[int(runs.starts[-1]) + 1 :]
        rest = self._hash_words(words) if len(words) >= RUN_WORDS else None
        if rest is not None and rest.hashes.size:
            yield rest
        elif words and not is_long:
            yield _hash_short(words)

    def _hash_words(self, words: list[str]) -> Runs:
        values, sizes = self._values(words)
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        ends = np.searchsorted(total, total[:-1] + RUN_WORDS * _PARTS)
        count = int(np.searchsorted(ends, len(words), side="right"))
        starts, ends = np.arange(count), ends[:count]
        return Runs(_join(values, starts=starts, ends=ends), starts, ends, words)

    def _values(self, words: list[str]) -> tuple[draws.UInt64s, npt.NDArray[np.int64]]:
        """Return two arrays with an entry for each word: a number made from the word, and its size in quarters of a
        word. The size is 4 for most words. It is 2 or 1 for a character of a script without spaces."""
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        found = np.fromiter(map(self._known.__getitem__, words), np.uint64, len(words))
        return draws.mix(found & np.uint64(0xFFFFFFFF)), (found >> np.uint64(32)).astype(np.int64)


def _hash_short(words: list[str]) -> Runs:
    digest = blake2b(" ".join(words).encode(), digest_size=8).digest()
    ends = np.full(1, len(words))
    return Runs(np.frombuffer(digest, "<u8").astype(np.uint64), np.zeros(1, np.int64), ends, words, is_short=True)


class _Known(dict[str, int]):
    def __missing__(self, word: str) -> int:
        size = 2 if _is_of(word, _HALF) else 1 if _is_of(word, _QUARTER) else _PARTS
        value = self[word] = size << 32 | crc32(word.encode())
        return value


def _is_of(word: str, ranges: str) -> bool:
    return len(word) == 1 and re.match(f"[{ranges}]", word) is not None


def _join(values: draws.UInt64s, *, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> draws.UInt64s:
    """Return a hash of values[start:end] for each pair of a start and an end. The hash is a polynomial in _BASE, modulo
    2**64."""
    if not values.size:
        return np.zeros(0, np.uint64)
    powers = np.cumprod(np.full(values.size, _BASE))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values * powers)])
    inverse = np.cumprod(np.full(values.size, _INVERSE))
    return draws.mix((sums[ends] - sums[starts]) * inverse[starts])


def split_words(line: str) -> list[str]:
    """Return the words of a line, in lower case. A word consists of letters and digits with their marks (such as Indic
    vowel signs), or is one character of a script without spaces."""
    if line.isascii():
        return _ASCII_WORD.findall(line.lower())
    # Wide and narrow forms of a letter count as one, and so do the Turkish letters i with and without a dot.
    line = unicodedata.normalize("NFKC", line).casefold().replace("i\u0307", "i").replace("\u0131", "i")
    spaced, mixed = _word_patterns()
    return (mixed if _UNSPACED.search(line) else spaced).findall(line.replace("_", " "))


@cache
def _word_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return two patterns that find words. The first is only for text of scripts with spaces, and is 20 times as fast.
    The second is for any text."""
    marks = [code for code in range(0x300, min(sys.maxunicode, 0x1F000)) if unicodedata.category(chr(code))[0] == "M"]
    bounds = [0, *(place for place, (a, b) in enumerate(pairwise(marks), start=1) if b != a + 1), len(marks)]
    ranges = "".join(f"{chr(marks[start])}-{chr(marks[stop - 1])}" for start, stop in pairwise(bounds))
    ranges += "\u200c\u200d"
    spaced = re.compile(rf"[\w{ranges}]+")
    return spaced, re.compile(rf"[{_HALF}{_QUARTER}]|(?:(?![{_HALF}{_QUARTER}])[\w{ranges}])+")
