"""The text of a book file: Project Gutenberg's header and licence cut, hard-wrapped lines rejoined into paragraphs.
Pure.

Whether lines are wrapped is judged from the whole file, so that files with a paragraph a line stay as they are.
"""

from __future__ import annotations

import re
from itertools import pairwise

from pipeline.clean import normalize_text

# Marks after which a book begins; the last one in the head counts (small print of 1993-2003, then the modern form).
_START = re.compile(
    r"\W*(?:START OF (?:THE |THIS )?PROJECT GUTENBERG|END\W+THE SMALL PRINT|END OF THE SMALL PRINT)", re.I
)
# Marks at which it ends; the first one after the start counts.
_END = re.compile(
    r"\W*(?:END OF (?:THE |THIS )?PROJECT GUTENBERG|END OF (?:\w+ ){0,3}PROJECT GUTENBERG|START: FULL LICENSE"
    r"|START\W+THE SMALL PRINT|This file should be named \S+\.(?:txt|zip))",
    re.I,
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
_LONGEST_WRAPPED = 120


def book_paragraphs(text: str) -> list[str]:
    """Paragraphs in order, each on one line, none empty."""
    lines = [line.rstrip() for line in _cut_boilerplate(normalize_text(text).split("\n"))]
    paragraphs = _join_wrapped(lines) if _is_wrapped(lines) else [line.strip() for line in lines if line]
    return [clean for clean in map(_clean_paragraph, paragraphs) if clean]


def _cut_boilerplate(lines: list[str]) -> list[str]:
    """The lines between Gutenberg's marks; all lines where there are none."""
    head = [index for index, line in enumerate(lines[: max(600, len(lines) // 3)]) if _START.match(line)]
    if not head:
        return lines
    start = head[-1] + 1
    end = next((index for index in range(start, len(lines)) if _END.match(lines[index])), len(lines))
    return _cut_credits(lines[start:end])


def _cut_credits(lines: list[str]) -> list[str]:
    """Leading paragraphs that say who typed the book go (the first three are looked at)."""
    kept = lines
    for _ in range(3):
        first = next((index for index, line in enumerate(kept) if line.strip()), None)
        if first is None or not _CREDITS.match(kept[first].strip()):
            break
        blank = next((index for index in range(first, len(kept)) if not kept[index].strip()), len(kept))
        kept = kept[blank:]
    return kept


def _is_wrapped(lines: list[str]) -> bool:
    """Whether lines are broken at a width: few are long, and most that are followed by another come near the width."""
    lengths = sorted(len(line) for line in lines if line)
    if not lengths:
        return False
    width = lengths[int(0.95 * (len(lengths) - 1))]
    if width > _LONGEST_WRAPPED:
        return False
    inner = [len(line) for line, following in pairwise(lines) if line and following]
    near = sum(1 for length in inner if length >= 0.7 * width)
    return 2 * near > len(inner)


def _join_wrapped(lines: list[str]) -> list[str]:
    """Lines up to a blank one, or to one that is indented where its predecessor is not, make a paragraph."""
    paragraphs: list[str] = []
    open_lines: list[str] = []
    was_indented = False
    for line in [*lines, ""]:
        text = line.strip()
        indented = line.startswith(("  ", "\t"))
        if open_lines and (not text or (indented and not was_indented)):
            paragraphs.append(_join(open_lines))
            open_lines = []
        if text:
            open_lines.append(text)
        was_indented = indented
    return paragraphs


def _join(lines: list[str]) -> str:
    """One line; no space after a hyphen inside a word ("well-/known") or a dash at the end of a line."""
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
