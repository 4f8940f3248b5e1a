"""Removes the marks of bold (''') and italic ('') text, like MediaWiki reads them. Pure."""

from __future__ import annotations

import re

_QUOTES = re.compile("'{2,}")


def remove_quotes(line: str) -> str:
    """Return a line without its bold (''') and italic ('') marks. If a line has an odd number of bold marks and an odd
    number of italic marks, one bold mark is read as an apostrophe and an italic mark, like in MediaWiki."""
    runs = [len(run) for run in _QUOTES.findall(line)]
    bold = sum(1 for run in runs if run in (3, 4) or run >= 5)
    italic = sum(1 for run in runs if run == 2 or run >= 5)
    odd = bold % 2 == 1 and italic % 2 == 1
    chosen = _odd_mark(line) if odd else -1

    def replace(found: re.Match[str]) -> str:
        length = len(found.group())
        if found.start() == chosen:
            return "'"
        return "'" if length == 4 else "'" * max(0, length - 5)

    return _QUOTES.sub(replace, line)


def _odd_mark(line: str) -> int:
    """Return the offset of the ''' that MediaWiki reads as an apostrophe and an italic mark, or -1 if the line has no
    '''. MediaWiki takes the first ''' right after a one-letter word. Without such a ''', it takes the first one right
    after a longer word, or else the first one of the line."""
    best, best_rank = -1, 9
    for found in _QUOTES.finditer(line):
        if len(found.group()) != 3:
            continue
        before, second = line[found.start() - 1 : found.start()], line[max(0, found.start() - 2) : found.start() - 1]
        rank = 2 if before in ("", " ") else 0 if second in ("", " ") else 1
        if rank < best_rank:
            best, best_rank = found.start(), rank
    return best
