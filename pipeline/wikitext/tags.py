"""Tags of wikitext: what to do with <ref>, <math>, <br> and the rest, in one pass from left to right.

Linear in the page: a closing tag that is not there is looked for once per tag name.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pipeline.wikitext.names import words

# Noncharacters of Unicode that stand in the text for something while a page is worked on; none may come in with it.
HOLE = "\ufdd0"
PIPE = "\ufdd1"
EQUALS = "\ufdd2"
BREAK = "\ufdd3"
RESERVED = re.compile("[\ufdd0-\ufdef]")

_COMMENT_ON_ITS_LINE = re.compile(r"\n[ \t]*\Z")
_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9]*)((?:\s[^<>]*)?/?)>")
_INERT = str.maketrans({mark: f"&#{ord(mark)};" for mark in "[]{}<>&'|=_*#:;!~\n-"})

# Content and all goes; a sentence it stood in lacks nothing.
_VANISH = words(
    "ref references indicator section templatestyles templatedata categorytree gallery imagemap timeline "
    "graph mapframe maplink inputbox pagelist score syntaxhighlight source pre style script includeonly "
    "table figure noinclude_ listing rss youtube video audio rt rp rtc "
)
# Of these, the ones that are blocks by themselves: what follows is a new paragraph.
_BLOCKS = words("gallery imagemap timeline syntaxhighlight source pre table graph mapframe figure categorytree ")
# Content goes and leaves a hole: the sentence cannot be read without it.
_HOLES = words("math chem ce hiero phonos ")
# The tag ends a line.
_LINES = words("br p div blockquote center poem ul ol li dl dt dd hr h1 h2 h3 h4 h5 h6 tr td th tbody caption thead ")
_SUPERSCRIPTS = str.maketrans(
    "0123456789+-\u2212n",
    "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207a\u207b\u207b\u207f",
)
_SUBSCRIPTS = str.maketrans(
    "0123456789+-\u2212", "\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089\u208a\u208b\u208b"
)
_MOST_RAISED = 8
_RAISABLE = re.compile(r"[0-9+\-\u2212n]{1,8}")
_LOWERABLE = re.compile(r"[0-9+\-\u2212]{1,8}")


def raise_digits(text: str) -> str:
    """Digits and signs as superscript characters where all of `text` has such a form; else unchanged."""
    return text.translate(_SUPERSCRIPTS) if _RAISABLE.fullmatch(text) else text


def lower_digits(text: str) -> str:
    """Digits and signs as subscript characters where all of `text` has such a form; else unchanged."""
    return text.translate(_SUBSCRIPTS) if _LOWERABLE.fullmatch(text) else text


def remove_comments(markup: str) -> str:
    """HTML comments go; one that stands alone on its line takes the line with it; an open one runs to the end."""
    if "<!--" not in markup:
        return markup
    kept: list[str] = []
    position = 0
    while (start := markup.find("<!--", position)) >= 0:
        close = markup.find("-->", start + 4)
        end = len(markup) if close < 0 else close + 3
        before = markup[position:start]
        kept.append(before)
        rest = end
        while rest < len(markup) and markup[rest] in " \t":
            rest += 1
        alone = _COMMENT_ON_ITS_LINE.search(before) is not None or (start == 0)
        if alone and markup[rest : rest + 1] == "\n":
            end = rest + 1
        position = end
    kept.append(markup[position:])
    return "".join(kept)


def resolve_tags(markup: str, *, hole: Callable[[str], str]) -> str:
    """Every tag resolved: content removed, kept, kept inert (nowiki), or a BREAK or a hole in its place.

    `hole(name)` gives the text that stands for missing content.
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
    """Where the content of a tag opened before `position` ends, and where its closing tag ends; None if it has none."""
    if name == "ref":
        found = _REF.search(markup, position)
        if found is None:
            return None
        # Another one opens first: this one should have been <ref ... />, and the prose between is prose.
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
_CLOSES: dict[str, re.Pattern[str]] = {}


def _close_of(name: str) -> re.Pattern[str]:
    if name not in _CLOSES:
        _CLOSES[name] = re.compile(rf"</{name}\s*>", re.I)
    return _CLOSES[name]
