"""Measures shortcuts: simple rules that guess the next-sentence label from source, length, place or shared words.

If a shortcut is often right, a model can learn it instead of reading the text. A rule puts each row into a cell, such
as (source of A, source of B), and answers with the label that is more frequent in that cell. The rule is fitted on one
half of the rows and measured on the other half, then the other way round. To measure a rule, one only needs to know how
many rows there are for each (cell, half, label). The counts of several shards are simply added. A million tokens take
20 ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline import draws

RULES: Mapping[str, str] = {
    "source": "sources of the two segments",
    "language": "languages of the two segments",
    "total": "tokens in the row, by source",
    "second": "tokens in the second segment, by source",
    "both": "tokens in the first and in the second segment",
    "place": "tokens before the second segment in its document, and after it",
    "words": "rare tokens that both segments hold",
}
"""Maps every shortcut to what it looks at. The counts of "language"
are derived from those of "source". Only a build can count "place", because stored rows do not record it."""
OF_THE_TEXT = ("words",)
"""Rules that read the text. They are shown but not judged, because a true next segment naturally shares words with the
first."""
WARN_ABOVE, FAIL_ABOVE = 0.55, 0.65
"""A build warns if the accuracy of a rule is above WARN_ABOVE, and fails if it is above FAIL_ABOVE."""
ENOUGH_TO_WARN, ENOUGH_TO_FAIL = 1_600, 400
"""A build warns of a rule only if the rule was measured on at least ENOUGH_TO_WARN rows. It fails only if there were at
least ENOUGH_TO_FAIL. With fewer rows, chance alone can give such an accuracy. With this many, chance would have to
deviate by four standard deviations or more."""
RARE = 10_000
"""A token is rare if it makes up less than one in RARE of all tokens counted."""
_BINS, _COARSE_BINS = 32, 16
_MOST_SHARED, _LENGTHS_OF_WORDS = 7, 8
_DIGITS = 32

Numbers: TypeAlias = npt.NDArray[np.integer[Any]]
Counts: TypeAlias = dict[str, Counter[int]]


class Shortcut(NamedTuple):
    """Says how often a rule guesses the next-sentence label right. `rule` is the rule's name, `rows` is the number of
    rows with a label, and `accuracy` is the share of these rows for which the guess is right."""

    rule: str
    accuracy: float
    rows: int


def count_shortcuts(
    *,
    ids: Numbers,
    offsets: Numbers,
    first_length: Numbers,
    label: Numbers,
    sources: tuple[Numbers, Numbers],
    num_sources: int,
    max_seq_length: int,
    places: tuple[Numbers, Numbers] | None = None,
) -> Counts:
    """Count rows for every shortcut (a rule that guesses the next-sentence label). Return a dict from the name of each
    rule to a Counter: the number of labelled rows by code, where code = 4 * cell + 2 * half + label.

    The cell is the class in which the rule puts the row, and the half (0 or 1) comes from a hash of the row's tokens.
    Row r of n is ids[offsets[r]:offsets[r + 1]]: [CLS] A [SEP] B [SEP]. `first_length` [n] is the number of tokens of
    [CLS] A [SEP]. `label` [n] is negative for rows without a label. `sources` are the indices of the sources of A and
    of B, [n] each. `places` has two arrays, [n] each: how many tokens of B's document come before B, and how many come
    after B. If `places` is None, the rule "place" is left out. Whether a token is rare is decided by its frequency in
    these rows.
    """
    labelled = label >= 0
    first_length = first_length.astype(np.int64)
    lengths = np.diff(offsets)
    half = _halves(ids, offsets)
    step = max_seq_length + 1
    second = lengths - first_length - 1
    cells: dict[str, Any] = {
        "source": sources[0].astype(np.int64) * num_sources + sources[1],
        "total": sources[0].astype(np.int64) * _BINS + lengths * _BINS // step,
        "second": sources[0].astype(np.int64) * _BINS + second * _BINS // step,
        "both": first_length * _COARSE_BINS // step * _COARSE_BINS + second * _COARSE_BINS // step,
        "words": np.minimum(_count_shared(ids, offsets, first_length), _MOST_SHARED)
        + (_MOST_SHARED + 1) * (lengths * _LENGTHS_OF_WORDS // step),
    }
    if places is not None:
        cells["place"] = _digits(places[0]) * _DIGITS + _digits(places[1])
    counts: Counts = {}
    for rule, cell in cells.items():
        codes, found = np.unique((4 * cell + 2 * half + label)[labelled], return_counts=True)
        counts[rule] = Counter(dict(zip(codes.tolist(), found.tolist(), strict=True)))
    return counts


def judge_shortcuts(counts: Counts, *, languages: Sequence[str]) -> list[Shortcut]:
    """Return the accuracy of each shortcut (rule that guesses the label), in the order of RULES.

    `counts` has the counts of each rule except "language", whose counts are computed from those of "source".
    `languages` has the language of each source.
    """
    known = {**counts}
    if "source" in counts:
        known["language"] = _by_language(counts["source"], languages=languages)
    return [Shortcut(rule, *_judge(known[rule])) for rule in RULES if known.get(rule)]


def find_telling(shortcuts: Sequence[Shortcut]) -> tuple[list[Shortcut], list[Shortcut]]:
    """Return two lists: the rules that a build warns of, and the rules that make a build fail. A rule is in a list if
    it guesses right often enough, on enough rows. Rules that read the text (OF_THE_TEXT) are in neither list."""
    judged = [each for each in shortcuts if each.rule not in OF_THE_TEXT]
    failing = [each for each in judged if each.accuracy > FAIL_ABOVE and each.rows >= ENOUGH_TO_FAIL]
    telling = [each for each in judged if each.accuracy > WARN_ABOVE and each.rows >= ENOUGH_TO_WARN]
    return [each for each in telling if each not in failing], failing


def describe_shortcuts(shortcuts: Sequence[Shortcut]) -> str:
    """Return a text that lists each rule with its accuracy."""
    return ", ".join(f"{RULES[each.rule]} {100 * each.accuracy:.1f}%" for each in shortcuts)


def _judge(counts: Counter[int]) -> tuple[float, int]:
    codes = np.array(list(counts), np.int64)
    cells, index = np.unique(codes >> 2, return_inverse=True)
    table = np.zeros((cells.size, 2, 2), np.int64)
    np.add.at(table, (index, codes >> 1 & 1, codes & 1), np.array(list(counts.values()), np.int64))
    right = 0
    for half in (0, 1):
        fitted, measured = table[:, half], table[:, 1 - half]
        usual = int(fitted[:, 1].sum() > fitted[:, 0].sum())
        answer = np.where(fitted[:, 1] == fitted[:, 0], usual, fitted[:, 1] > fitted[:, 0])
        right += int(measured[np.arange(cells.size), answer].sum())
    return right / int(table.sum()), int(table.sum())


def _by_language(counts: Counter[int], *, languages: Sequence[str]) -> Counter[int]:
    names = sorted(set(languages))
    number = [names.index(language) for language in languages]
    found: Counter[int] = Counter()
    for code, count in counts.items():
        first, second = divmod(code >> 2, len(languages))
        found[4 * (number[first] * len(names) + number[second]) + (code & 3)] += count
    return found


def _halves(ids: Numbers, offsets: Numbers) -> npt.NDArray[np.int64]:
    """Divide the rows into two halves by a hash of their tokens, and return the half (0 or 1) of each row, int64[n]. A
    rule is fitted on one half and measured on the other."""
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(ids, dtype=np.int64)])
    keys = draws.mix((sums[offsets[1:]] - sums[offsets[:-1]]).astype(np.uint64))
    return (keys >> np.uint64(63)).astype(np.int64)


def _digits(numbers: Numbers) -> npt.NDArray[np.int64]:
    """Return how many binary digits each number has. A result above _DIGITS - 1 is lowered to _DIGITS - 1."""
    return np.minimum(np.frexp(numbers.astype(np.float64))[1], _DIGITS - 1).astype(np.int64)


def _count_shared(ids: Numbers, offsets: Numbers, first_length: Numbers) -> npt.NDArray[np.int64]:
    """Return int64[n]: for each row, how many different rare tokens (see RARE) occur in both of its segments."""
    rare = np.bincount(ids) * RARE < ids.size
    places = np.flatnonzero(rare[ids])
    row = np.searchsorted(offsets, places, side="right") - 1
    in_second = places - offsets[row] >= first_length[row]
    codes = 2 * (row * np.int64(rare.size) + ids[places]) + in_second
    codes = np.sort(codes.astype(np.min_scalar_type(2 * (offsets.size - 1) * rare.size)))  # short numbers sort faster
    in_both = np.flatnonzero((codes[1:] ^ codes[:-1]) == 1)  # a key of A beside the same key of B
    return np.bincount(codes[in_both] // (2 * rare.size), minlength=offsets.size - 1)
