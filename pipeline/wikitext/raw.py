"""Removes comments and tags with raw content (<nowiki>, <pre>, <ref>, <math> ...) from wikitext. This comes before
other stages.

The page is read from left to right, like in MediaWiki's preprocessor. Inside a comment or such a tag, no other comment
or tag is looked for. So a <!-- in a <nowiki> is text, and a <ref> in a comment is not a footnote. The time is linear in
the page's length, because a search for a missing closing tag is made only once per tag name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from pipeline.wikitext.names import words
from pipeline.wikitext.tags import BREAK, EMPTY

# Character references work in <nowiki> too.
_MARK_OR_REFERENCE = re.compile(r"&#?\w{1,31};|[\[\]{}<>&'|=_*#:;!~\n-]")

# Removed with their content; a sentence is complete without them.
_VANISH = words(
    "ref references indicator section templatestyles templatedata categorytree gallery imagemap timeline "
    "graph mapframe maplink inputbox pagelist syntaxhighlight source pre includeonly listing rss youtube "
)
# The tags of _VANISH that are blocks. A new paragraph follows them.
_BLOCKS = words("gallery imagemap timeline syntaxhighlight source pre graph mapframe categorytree ")
# Replaced by a hole (a mark for missing text), because a sentence is incomplete without their content.
_HOLES = words("math chem ce hiero phonos score ")
# If such a tag is never closed, its content extends to the end of the page. Any other unclosed tag is no tag.
_TO_END = words("includeonly ")

_NAMES = "|".join(sorted(_VANISH | _HOLES | {"nowiki"}, key=lambda name: (-len(name), name)))
_OPENING = re.compile(rf"<(?:!--|({_NAMES})(?=\s|/?>))", re.I)
_COMMENTS_TO_END_OF_LINE = re.compile(r"(?:<!--(?:[^-]|-(?!->))*+-->[ \t]*+)++\n")
_STOPS = tuple(".!?")
_REF = re.compile(r"<(/?)ref(?:\s[^<>]*)?>", re.I)
_SHOWN_IN_LINE = re.compile(r"\binline\b", re.I)


def remove_raw(markup: str, *, hole: Callable[[str], str]) -> str:
    """Return the markup without comments and without the tags whose content is raw (not parsed as wikitext).

    A comment alone on its line is removed with the line; an unclosed comment extends to the end of the page. The
    content of a <nowiki> stays, as characters without any effect on later stages. The content of the other tags is
    removed, or replaced by `hole(name)`, the mark for the missing content of the tag `name`.
    """
    if "<" not in markup:
        return markup
    kept: list[str] = []
    position, line_is_blank = 0, True
    missing: set[str] = set()
    while (found := _OPENING.search(markup, position)) is not None:
        before = markup[position : found.start()]
        kept.append(before)
        line = before.rpartition("\n")
        line_is_blank = (line_is_blank or line[1] != "") and not line[2].strip(" \t")
        if found.group(1) is None:
            whole_line = _COMMENTS_TO_END_OF_LINE.match(markup, found.start()) if line_is_blank else None
            if whole_line is not None:
                kept[-1] = before.rstrip(" \t")
                position = whole_line.end()
            else:
                close = markup.find("-->", found.end())
                position = len(markup) if close < 0 else close + 3
                line_is_blank = False
            continue
        line_is_blank = False
        name = found.group(1).lower()
        tag_end = -1 if ">" in missing else markup.find(">", found.end())
        if tag_end < 0:
            missing.add(">")
            kept.append(found.group())
            position = found.end()
            continue
        attributes = markup[found.end() : tag_end]
        position = tag_end + 1
        content = ""
        if not attributes.endswith("/"):
            end = None if name in missing else _end_of(markup, name, position, has_name="name" in attributes)
            if end is None and name not in _TO_END:
                missing.add(name)
                kept.append(" " if name == "ref" and markup[found.start() - 1 : found.start()] in _STOPS else "")
                continue
            content_end, after = end or (len(markup), len(markup))
            content, position = markup[position:content_end], after
        shown = _show(name, attributes, content, hole=hole)
        if not shown and _would_join(markup, found.start(), position):
            shown = EMPTY
        kept.append(shown)
    kept.append(markup[position:])
    return "".join(kept)


def _show(name: str, attributes: str, content: str, *, hole: Callable[[str], str]) -> str:
    """Return the text that replaces the tag `name` and its raw `content`: the content itself for <nowiki>, and for
    other tags a mark for missing text, a new line, or ""."""
    if name == "nowiki" or (name in ("syntaxhighlight", "source") and _SHOWN_IN_LINE.search(attributes)):
        return _MARK_OR_REFERENCE.sub(_make_inert, content) or EMPTY
    if name in _HOLES:
        return hole(f"<{name}>") if content else ""
    return BREAK if name in _BLOCKS and content else ""


def _make_inert(found: re.Match[str]) -> str:
    mark = found.group()
    return mark if len(mark) > 1 else f"&#{ord(mark)};"


def _would_join(markup: str, start: int, end: int) -> bool:
    """Return whether the characters around `markup[start:end]` would mean something else if they met: two line breaks
    would end a paragraph, a line break and a space begin a preformatted line, and apostrophes make bold text."""
    around = (markup[start - 1 : start] or "\n") + markup[end : end + 1]
    return around in ("\n\n", "\n ", "\n\t", "''")


def _end_of(markup: str, name: str, position: int, *, has_name: bool) -> tuple[int, int] | None:
    """Return (offset where the content ends, offset where the closing tag ends) for the tag `name` that was opened
    before `position`. Return None if the tag is never closed."""
    if name == "ref" and has_name:
        found = _REF.search(markup, position)
        if found is None:
            return None
        # If another <ref> opens first, this <ref name=x> should have been <ref name=x />, and prose follows it.
        return found.span() if found.group(1) else (position, position)
    found = _close_of(name).search(markup, position)
    return None if found is None else found.span()


@cache
def _close_of(name: str) -> re.Pattern[str]:
    return re.compile(rf"</{name}\s*>", re.I)
