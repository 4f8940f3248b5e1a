"""Cuts Project Gutenberg's header and licence from a book and rejoins hard-wrapped lines into paragraphs. Pure.

Whether lines are wrapped is first decided for the whole file, so that files with one paragraph per line stay unchanged.
In a wrapped file this is decided again for each block between blank lines, so that verse, tables, lists and title pages
keep their lines.
"""

from __future__ import annotations

import re
from itertools import pairwise

from pipeline.cleaning import normalize_text

# Marks after which a book begins (small print of 1991-2003, or the modern form). The last mark in the head counts.
_START = re.compile(
    r"\W*(?:START OF (?:THE |THIS )?PROJECT GUTENBERG|END\W+THE SMALL PRINT|END OF THE SMALL PRINT"
    r"|THE FULL PROJECT GUTENBERG LICEN[CS]E (?:STANDS|IS) AT THE END)",
    re.I,
)
# Marks at which a book ends. The first mark after the start counts.
_END = re.compile(
    r"\W*(?:END OF (?:THE |THIS )?PROJECT GUTENBERG|END OF (?:\w+ ){0,3}PROJECT GUTENBERG|START: FULL LICENSE"
    r"|START\W+THE SMALL PRINT|This file should be named \S+\.(?:txt|zip)"
    r"|(?:END|FIN|ENDE) (?:OF |DE |DU |DIESES |DES )?(?:THIS |CE |THE )?PROJE[CK]T GUTENBERG"
    r"|ENDE DIESES (?:ETEXTS?|E-?BOOKS?)\b)",
    re.I,
)
_LETTERHEAD = re.compile(
    r"\W*(?:THE )?(?:THIS IS THE )?PROJECT GUTENBERG(?:'S|\u2019S)? (?:E-?TEXT|E-?BOOK|EDITION)\b", re.I
)
_CREDITS = re.compile(
    r"(?:produced by|this (?:e-?text|e-?book|file) was (?:produced|prepared|created)|e-?text prepared by|prepared by"
    r"|transcribed (?:by|from)|html version by|\[?this file last updated)",
    re.I,
)
_ILLUSTRATION = re.compile(r"\[(?:Illustration|Transcriber'?s? note|Sidenote|Frontispiece)\b[^\[\]]{0,2000}\]", re.I)
_UNDERSCORES = re.compile(r"(?<![A-Za-z0-9])_([^_\n]{1,300})_(?![A-Za-z0-9])")
_EMPHASIS = re.compile(r"(?<![\w=*])([=*])([A-Za-z][^=*\n]{0,200}?)\1(?![\w=*])")
_BROKEN_WORD = re.compile(r"[^\W\d_]-$")
_COLUMNS = re.compile(r"\S(?: {3,}|\t+| *\| *|(?: ?\.){4,} ?)\S")
_COLUMN_MARKS = ("   ", "\t", "|", "..", ". .")  # every match of _COLUMNS contains one
_LONGEST_WRAPPED = 120
_ROOM = 0.85
"""A share of the wrap width. If a line, even with the next word added, has at most this share, the line was ended on
purpose."""


def book_paragraphs(text: str) -> list[str]:
    """Return a book's non-empty paragraphs in order, each on one line, without what Project Gutenberg added."""
    lines = [line.rstrip() for line in _cut_boilerplate(normalize_text(text).split("\n"))]
    width = _wrap_width(lines)
    paragraphs = _join_wrapped(lines, width=width) if width else [line.strip() for line in lines if line]
    return [clean for clean in map(_clean_paragraph, paragraphs) if clean]


def _cut_boilerplate(lines: list[str]) -> list[str]:
    """Return the lines between Project Gutenberg's start mark and end mark (see _START and _END), without credits.
    Without a start mark the returned lines begin at the first line, and without an end mark they end at the last line.

    Without a start mark, an end mark counts only in the last fifth of the lines, and the first paragraph is cut if it
    names the e-text.
    """
    head = [index for index, line in enumerate(lines[: max(600, len(lines) // 3)]) if _START.match(line)]
    start = head[-1] + 1 if head else 0
    search = start if head else 4 * len(lines) // 5
    end = next((index for index in range(search, len(lines)) if _END.match(lines[index])), len(lines))
    if head:
        return _cut_credits(lines[start:end])
    first = next((index for index, line in enumerate(lines) if line.strip()), 0)
    if lines[first:] and _LETTERHEAD.match(lines[first]):
        return _cut_credits(_after_paragraph(lines[:end], first))
    return lines[:end]


def _cut_credits(lines: list[str]) -> list[str]:
    """Return the lines without leading credits: up to three paragraphs that say who typed the book."""
    kept = lines
    for _ in range(3):
        first = next((index for index, line in enumerate(kept) if line.strip()), None)
        if first is None or not _CREDITS.match(kept[first].strip()):
            break
        kept = _after_paragraph(kept, first)
    return kept


def _after_paragraph(lines: list[str], first: int) -> list[str]:
    return lines[next((index for index in range(first, len(lines)) if not lines[index].strip()), len(lines)) :]


def _wrap_width(lines: list[str]) -> int:
    """Return the width at which the lines of a file are wrapped, or 0 if they are not wrapped. The width is a length
    that at most about 5% of the lines exceed. The lines are not wrapped if this width is above _LONGEST_WRAPPED. They
    are not wrapped either if at least half of the lines that have another line directly after them are shorter than 70%
    of the width."""
    lengths = sorted(len(line) for line in lines if line)
    if not lengths:
        return 0
    width = lengths[int(0.95 * (len(lengths) - 1))]
    if width > _LONGEST_WRAPPED:
        return 0
    inner = [len(line) for line, following in pairwise(lines) if line and following]
    near = sum(1 for length in inner if length >= 0.7 * width)
    return width if 2 * near > len(inner) else 0


def _join_wrapped(lines: list[str], *, width: int) -> list[str]:
    """Divide the lines into blocks, and return the paragraphs that _join_block makes of each block. A block ends before
    a blank line, or before an indented line that follows a line without indent. `width` is the number of characters at
    which the lines are wrapped."""
    paragraphs: list[str] = []
    block: list[str] = []
    was_indented = False
    for line in [*lines, ""]:
        indented = line.startswith(("  ", "\t"))
        if block and (not line.strip() or (indented and not was_indented)):
            paragraphs += _join_block(block, width=width)
            block = []
        if line.strip():
            block.append(line)
        was_indented = indented
    return paragraphs


def _join_block(block: list[str], *, width: int) -> list[str]:
    """Return the lines of a block, joined where a line was broken only because the next word had no room.

    Rows with columns stay separate. A line was ended on purpose if it ends well before the width although the next word
    would fit. If at most a third of the lines were ended on purpose, the block is prose and becomes one line. Otherwise
    the block is verse or a list. It then keeps its lines, except that a line starting with a small letter continues the
    line before.
    """
    lines = [line.strip() for line in block]
    text = "\n".join(lines)
    may_have_columns = len(lines) > 1 and any(mark in text for mark in _COLUMN_MARKS)  # quicker than the pattern
    if may_have_columns and 2 * sum(map(bool, map(_COLUMNS.search, lines))) > len(lines):
        return lines
    ended = sum(
        1 for line, following in pairwise(block) if len(line) + 1 + len(following.split(None, 1)[0]) <= _ROOM * width
    )
    if 3 * ended <= len(lines) - 1:
        return [_join(lines)]
    starts = [index for index, line in enumerate(lines) if index == 0 or not line[0].islower()]
    return [_join(lines[start:stop]) for start, stop in pairwise([*starts, len(lines)])]


def _join(lines: list[str]) -> str:
    """Return the lines joined into one line by spaces. No space is put after a line that ends in a dash, or in the
    hyphen of a compound word ("well-" before "known")."""
    joined = " ".join(lines)
    if "- " not in joined and "\u2014 " not in joined:
        return joined
    joined = lines[0]
    for line in lines[1:]:
        tight = joined.endswith(("--", "\u2014")) or (_BROKEN_WORD.search(joined[-2:]) and line[:1].islower())
        joined += line if tight else " " + line
    return joined


def _clean_paragraph(text: str) -> str:
    text = _ILLUSTRATION.sub("", text)
    if "_" in text:
        text = _UNDERSCORES.sub(r"\1", text)
    if "=" in text or "*" in text:
        text = _EMPHASIS.sub(r"\2", text)
    return text.strip()
