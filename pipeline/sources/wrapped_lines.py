"""Rejoins the hard-wrapped lines of a book into paragraphs, in any script. Pure.

First, the whole book is examined, and a book whose lines are not wrapped stays unchanged. In a wrapped book, each block
between blank lines is then examined, so that verse, tables, lists and title pages keep their lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

_BROKEN_WORD = re.compile(r"[^\W\d_]-$")
_COLUMNS = re.compile(r"\S(?: {3,}|\t+| *\| *|(?: ?\.){4,} ?)\S")
_COLUMN_MARKS = ("   ", "\t", "|", "..", ". .")  # every match of _COLUMNS contains one
# Chinese and Japanese characters and punctuation, two columns wide. No space stands between them.
_WIDE = (
    "\u2e80-\u2fff\u3001-\u312f\u31a0-\u4dbf\u4e00-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff60\uffe0-\uffe6"
    "\U0001f200-\U0001f2ff\U00020000-\U0003ffff"
)
_WIDE_CHARACTER = re.compile(f"[{_WIDE}]")
_FIRST_UNIT = re.compile(f"[{_WIDE}]|[^\\s{_WIDE}]+")
_HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]")
_MIXED = re.compile(f"(?:[{_WIDE}](?P<after> ?)(?=[A-Za-z0-9])|[A-Za-z0-9](?P<before> ?)(?=[{_WIDE}]))")
# Thai, Lao, Tibetan, Burmese and Khmer have no spaces between words either, but have them after _SPACED_AFTER.
_UNSPACED = re.compile("[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\ua9e0-\ua9ff\uaa60-\uaa7f]")
_NO_SPACES = re.compile(f"[{_WIDE}{_UNSPACED.pattern[1:]}")
_NEUTRAL = "\u00b7\u2014\u2015\u2018\u2019\u201c\u201d\u2025\u2026"  # narrow punctuation that Chinese uses too
_SPACED_AFTER = "\u0e2f\u0e46\u0eaf\u0ec6\u0f0d\u0f0e\u104a\u104b\u17d4\u17d5\u17d6\u17d7"
_FEWEST_WIDE = 0.3
"""Share of wide characters from which lines are measured in columns."""
_LONGEST_WRAPPED = 120
_ROOM = 0.85
"""A share of the wrap width. If a line, even with the next word added, has at most this share, the line was ended on
purpose."""


def join_wrapped(lines: list[str]) -> list[str]:
    """Return the paragraphs of a book, each on one line. `lines` have no white space at their ends."""
    measure = _columns if _are_wide(lines) else len
    width = _wrap_width(lines, measure=measure)
    return _join_lines(lines, width=width, measure=measure) if width else [line.strip() for line in lines if line]


def _are_wide(lines: list[str]) -> bool:
    """Return whether a text is Chinese or Japanese, by the share of its characters."""
    text = "".join(lines)
    return not text.isascii() and len(_WIDE_CHARACTER.findall(text)) > _FEWEST_WIDE * len(text)


def _columns(line: str) -> int:
    """Return the width of a line, in columns of a screen."""
    return len(line) + len(_WIDE_CHARACTER.findall(line))


def _wrap_width(lines: list[str], *, measure: Callable[[str], int] = len) -> int:
    """Return the width at which the lines of a book are wrapped, or 0 if they are not wrapped. About 5% of the lines
    may be wider. Lines are not wrapped if the width is above _LONGEST_WRAPPED, or if at least half of the lines that
    are followed by another line are shorter than 70% of the width. `measure` returns the width of a line."""
    sizes = [measure(line) for line in lines]
    lengths = sorted(size for size in sizes if size)
    if not lengths:
        return 0
    width = lengths[int(0.95 * (len(lengths) - 1))]
    if width > _LONGEST_WRAPPED:
        return 0
    inner = [size for size, following in pairwise(sizes) if size and following]
    near = sum(1 for length in inner if length >= 0.7 * width)
    return width if 2 * near > len(inner) else 0


def _join_lines(lines: list[str], *, width: int, measure: Callable[[str], int]) -> list[str]:
    """Divide the lines of a book into blocks, rejoin the wrapped lines of each block, and return the paragraphs. A
    block ends before a blank line, or before an indented line that follows a line without indent. `width` is the width
    at which the lines are wrapped. `measure` is len, except for Chinese and Japanese."""
    paragraphs: list[str] = []
    block: list[str] = []
    was_indented = False
    for line in [*lines, ""]:
        indented = line.startswith(("  ", "\t", "\u3000"))
        if block and (not line.strip() or (indented and not was_indented)):
            join = _join_block if measure is len else _join_wide_block
            paragraphs += join(block, width=width)
            block = []
        if line.strip():
            block.append(line)
        was_indented = indented
    return paragraphs


def _join_wide_block(block: list[str], *, width: int) -> list[str]:
    """Return the lines of a Chinese or Japanese block, joined where a line ended only because it was full.

    A line ends a paragraph if the next character or word would have fitted well before the width. A line that begins
    with an ideographic space begins a paragraph. But if all lines of the block are indented, only a line with exactly
    one such space begins a paragraph.
    """
    are_indented = [line.startswith("\u3000") for line in block]
    starts = [0]
    for number, (line, following) in enumerate(pairwise(block), start=1):
        unit = _FIRST_UNIT.search(following)
        ended = _columns(line) + (_columns(unit[0]) if unit else 0) <= _ROOM * width
        begins = are_indented[number] and (not all(are_indented) or not following.startswith("\u3000\u3000"))
        if ended or begins:
            starts.append(number)
    lines = [line.strip() for line in block]
    return [_join(lines[start:stop]) for start, stop in pairwise([*starts, len(lines)])]


def _join_block(block: list[str], *, width: int) -> list[str]:
    """Return the lines of a block, joined where a line was broken only because the next word had no room.

    If most lines look like rows of a table, all lines stay separate. A line was ended on purpose if the next word would
    have fitted well before the width. If at most a third of the lines were ended on purpose, the block is prose and
    becomes one line. Otherwise the block is verse or a list, and it keeps its lines. Only a line that starts with a
    small letter is then joined to the line before.
    """
    lines = [line.strip() for line in block]
    text = "\n".join(lines)
    may_have_columns = len(lines) > 1 and any(mark in text for mark in _COLUMN_MARKS)  # quicker than the pattern
    if may_have_columns and 2 * sum(map(bool, map(_COLUMNS.search, lines))) > len(lines):
        return lines
    room = _ROOM * width - 1
    ended = sum(
        len(line) + len(following.split(None, 1)[0]) <= room for line, following in pairwise(block) if len(line) < room
    )
    if 3 * ended <= len(lines) - 1:
        return [_join(lines)]
    starts = [index for index, line in enumerate(lines) if index == 0 or not line[0].islower()]
    return [_join(lines[start:stop]) for start, stop in pairwise([*starts, len(lines)])]


def _join(lines: list[str]) -> str:
    """Return the lines joined into one line by spaces. No space is put after a dash, after the hyphen of a compound
    word ("well-" before "known"), or between characters of scripts that have no spaces between words."""
    joined = " ".join(lines)
    if "- " not in joined and "\u2014 " not in joined and (joined.isascii() or not _NO_SPACES.search(joined)):
        return joined
    has_hangul = _HANGUL.search(joined) is not None
    mixes_tightly: bool | None = None  # not known yet
    joined = lines[0]
    for line in lines[1:]:
        tight = joined.endswith(("--", "\u2014")) or (_BROKEN_WORD.search(joined[-2:]) and line[:1].islower())
        if not tight and not has_hangul:
            unspaced = _is_unspaced(joined[-1:], line[:1])
            if unspaced is None:
                mixes_tightly = _mixes_tightly(lines) if mixes_tightly is None else mixes_tightly
                unspaced = mixes_tightly
            tight = unspaced
        joined += line if tight else " " + line
    return joined


def _is_unspaced(left: str, right: str) -> bool | None:
    """Return whether no space belongs between the characters `left` and `right`, which stand before and after a line
    break. If only one of them is Chinese or Japanese, return None, because the habit of the text decides (see
    _mixes_tightly)."""
    if _UNSPACED.match(left) and _UNSPACED.match(right):
        return left not in _SPACED_AFTER
    wide = [_WIDE_CHARACTER.match(each) is not None for each in (left, right)]
    if all(wide) or not any(wide):
        return all(wide)
    return True if left in _NEUTRAL or right in _NEUTRAL else None


def _mixes_tightly(lines: list[str]) -> bool:
    """Return whether at least half of the places in `lines` where a Chinese or Japanese character meets a Latin letter
    or digit have no space."""
    found = [bool(match["after"] or match["before"]) for line in lines for match in _MIXED.finditer(line)]
    return 2 * sum(found) <= len(found)
