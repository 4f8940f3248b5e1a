"""Puts text of unknown origin into Markdown, so that it is shown as it is and starts no markup, link or HTML."""

from __future__ import annotations

import re

_SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|~&!$]")
_LINE_START = re.compile(r"[-+=:]")


def escape_markdown(text: object) -> str:
    """Return `text` as one line of Markdown that shows it literally. Line breaks and other control characters become
    spaces."""
    line = _SPECIAL.sub(r"\\\g<0>", _one_line(str(text)))
    return f"\\{line}" if _LINE_START.match(line) else line


def code_span(text: object) -> str:
    """Return `text` as one line of code in Markdown, between as many backticks as it needs."""
    line = _one_line(str(text))
    ticks = "`" * (_longest_run(line) + 1)
    pad = " " if len(ticks) > 1 else ""
    return f"{ticks}{pad}{line}{pad}{ticks}"


def code_block(text: str, *, language: str) -> list[str]:
    """Return the lines of a block of code in Markdown. Its fence is longer than every run of backticks in `text`, so
    nothing in `text` ends the block."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return [f"{fence}{language}", text, fence]


def _one_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
