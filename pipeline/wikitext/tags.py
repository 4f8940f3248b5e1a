"""Resolves the tags of wikitext (<ref>, <math>, <br> ...) in one pass from left to right.

The time is linear in the page's length, because a search for a missing closing tag is made only once per tag name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from pipeline.wikitext.names import words

# Unicode noncharacters that serve as marks while a page is processed. Those in the input are removed first.
HOLE = "\ufdd0"
PIPE = "\ufdd1"
EQUALS = "\ufdd2"
BREAK = "\ufdd3"
GAP = "\ufdda"
ASIDE = "\ufddb"
RESERVED = re.compile("[\ufdd0-\ufdef]")

_COMMENT_ON_ITS_LINE = re.compile(r"\n[ \t]*\Z")
_REST_OF_LINE = re.compile(r"[ \t]*\n")
_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9]*)((?:\s[^<>]*)?/?)>")
_INERT = str.maketrans({mark: f"&#{ord(mark)};" for mark in "[]{}<>&'|=_*#:;!~\n-"})

# Removed with their content; a sentence is complete without them.
_VANISH = words(
    "ref references indicator section templatestyles templatedata categorytree gallery imagemap timeline "
    "graph mapframe maplink inputbox pagelist score syntaxhighlight source pre style script includeonly "
    "table figure noinclude_ listing rss youtube video audio rt rp rtc "
)
# The tags of _VANISH that are blocks. A new paragraph follows them.
_BLOCKS = words("gallery imagemap timeline syntaxhighlight source pre table graph mapframe figure categorytree ")
# Replaced by a hole (a mark for missing text), because a sentence is incomplete without their content.
_HOLES = words("math chem ce hiero phonos ")
# These tags end a line.
_LINES = words("br p div blockquote center poem ul ol li dl dt dd hr h1 h2 h3 h4 h5 h6 tr td th tbody caption thead ")
_SUPERSCRIPTS = str.maketrans(
    "0123456789+-\u2212n", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207a\u207b\u207b\u207f"
)
_SUBSCRIPTS = str.maketrans(
    "0123456789+-\u2212", "\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089\u208a\u208b\u208b"
)
_MOST_RAISED = 8
_RAISABLE = re.compile(r"[0-9+\-\u2212n]{1,8}")
_LOWERABLE = re.compile(r"[0-9+\-\u2212]{1,8}")


def raise_digits(text: str) -> str:
    """Return `text` in superscript characters if it has 1 to 8 characters, all of them digits, signs or n. Return any
    other text unchanged."""
    return text.translate(_SUPERSCRIPTS) if _RAISABLE.fullmatch(text) else text


def lower_digits(text: str) -> str:
    """Return `text` in subscript characters if it has 1 to 8 characters, all of them digits or signs. Return any other
    text unchanged."""
    return text.translate(_SUBSCRIPTS) if _LOWERABLE.fullmatch(text) else text


def remove_comments(markup: str) -> str:
    """Return the markup without HTML comments. A comment alone on its line is removed with the line; an unclosed
    comment extends to the end of the page."""
    if "<!--" not in markup:
        return markup
    kept: list[str] = []
    position = 0
    while (start := markup.find("<!--", position)) >= 0:
        close = markup.find("-->", start + 4)
        end = len(markup) if close < 0 else close + 3
        kept.append(markup[position:start])
        alone = _COMMENT_ON_ITS_LINE.search(kept[-1]) is not None or start == 0
        rest_of_line = _REST_OF_LINE.match(markup, end) if alone else None
        position = end if rest_of_line is None else rest_of_line.end()
    kept.append(markup[position:])
    return "".join(kept)


def resolve_tags(markup: str, *, hole: Callable[[str], str]) -> str:
    """Return the markup without tags. Most tags vanish and their content stays. Some tags are removed with their
    content (ref), or replaced by a hole, which is a mark for missing text (math), or by a BREAK, which is a mark for a
    new line (br). The content of nowiki stays as text, without effect as markup.

    `hole(name)` returns the mark for the missing content of the tag `name`.
    """
    if "<" not in markup:
        return markup
    kept: list[str] = []
    position, length = 0, len(markup)
    missing: set[str] = set()
    while position < length:
        tag = _TAG.search(markup, position)
        if tag is None:
            break
        kept.append(markup[position : tag.start()])
        position = tag.end()
        closing, name, rest = tag.group(1), tag.group(2).lower(), tag.group(3)
        opens = not closing and not rest.endswith("/")
        if name in ("sup", "sub") and opens:
            found = _close_of(name).search(markup, position, position + _MOST_RAISED + len("</sup  >"))
            if found is not None:
                shift = raise_digits if name == "sup" else lower_digits
                kept.append(shift(markup[position : found.start()]))
                position = found.end()
        elif opens and (name in _VANISH or name in _HOLES or name == "nowiki") and name not in missing:
            end = _end_of(markup, name, position)
            if end is None:
                missing.add(name)
                continue
            content_end, position = end
            if name == "nowiki":
                kept.append(markup[tag.end() : content_end].translate(_INERT))
            elif name in _HOLES:
                kept.append(hole(f"<{name}>"))
            elif name in _BLOCKS:
                kept.append(BREAK)
        elif name in _LINES:
            kept.append(BREAK)
    kept.append(markup[position:])
    return "".join(kept)


def _end_of(markup: str, name: str, position: int) -> tuple[int, int] | None:
    """Return (offset where the content ends, offset where the closing tag ends) for the tag `name` that was opened
    before `position`. Return None if the tag is never closed."""
    if name == "ref":
        found = _REF.search(markup, position)
        if found is None:
            return None
        # If another <ref> opens first, this <ref> should have been <ref ... />, and prose follows it.
        return found.span() if found.group(1) else (position, position)
    if name != "table":
        found = _close_of(name).search(markup, position)
        return None if found is None else found.span()
    depth = 1
    for found in _TABLE.finditer(markup, position):
        depth += -1 if found.group(1) else 1
        if depth == 0:
            return found.span()
    return None


_REF = re.compile(r"<(/?)ref(?:\s[^<>]*)?>", re.I)
_TABLE = re.compile(r"<(/?)table\b[^<>]*>", re.I)


@cache
def _close_of(name: str) -> re.Pattern[str]:
    return re.compile(rf"</{name}\s*>", re.I)
