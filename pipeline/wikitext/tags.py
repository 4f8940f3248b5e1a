"""Resolves the tags of HTML in wikitext (<br>, <sup>, <table> ...) in one pass from left to right.

The time is linear in the page's length, because a search for a missing closing tag is made only once per tag name.
"""

from __future__ import annotations

import re
from functools import cache

from pipeline.wikitext.names import words

# Unicode noncharacters that serve as marks while a page is processed. Those in the input are removed first.
HOLE = "\ufdd0"
PIPE = "\ufdd1"
EQUALS = "\ufdd2"
BREAK = "\ufdd3"
"""Stands for a new line. In a list item, the item goes on after it."""
PARAGRAPH = BREAK * 2
EMPTY = "\ufdd4"
"""Stands for a tag that shows nothing but keeps the characters around it apart, such as the quotes of '<nowiki/>'."""
GAP = "\ufdda"
ASIDE = "\ufddb"
RESERVED = re.compile("[\ufdd0-\ufdef]")

_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9]*)((?:\s[^<>]*)?/?)>")

# Removed with their content; a sentence is complete without them.
_VANISH = words("script style table figure video audio rt rp rtc ")
# The tags of _VANISH that are blocks. A new paragraph follows them.
_BLOCKS = words("table figure ")
# These tags end a line.
_LINES = words("br p div blockquote center poem ul ol dl hr tr td th tbody caption thead ")
# The tags of _LINES after which a list item goes on.
_IN_ITEMS = words("br p div center ")
_HEADINGS = words("h1 h2 h3 h4 h5 h6 ")
# These tags begin an item of a list.
_ITEMS = words("li dt dd ")
# Other tags of HTML and MediaWiki are removed without their content; anything else in angle brackets is text.
_OTHERS = words(
    "a abbr b bdi bdo big button cite code col colgroup data del dfn em figcaption font form i iframe img input ins "
    "kbd label link mark meta nobr option q rb ruby s samp select small source span strike strong sub sup textarea "
    "tfoot time tt u var wbr nowiki pre ref references gallery math chem ce hiero phonos noinclude includeonly "
    "onlyinclude indicator section templatestyles templatedata categorytree imagemap timeline graph mapframe maplink "
    "inputbox pagelist score syntaxhighlight listing rss youtube languages translate tvar "
)
_KNOWN = _VANISH | _LINES | _HEADINGS | _ITEMS | _OTHERS
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


def resolve_tags(markup: str) -> str:
    """Return the markup without the tags of HTML. Their content is kept, except that of tables, scripts and a few
    others. The mark BREAK, which stands for a new line, replaces the tags that end a line.

    Comments and the tags with raw content must be removed first, by `remove_raw`.
    """
    if "<" not in markup:
        return markup
    kept: list[str] = []
    position, length = 0, len(markup)
    missing: set[str] = set()
    unclosed: set[str] = set()
    while position < length:
        tag = _TAG.search(markup, position)
        if tag is None:
            break
        name = tag.group(2).lower()
        if name not in _KNOWN:
            kept.append(markup[position : tag.start() + 1])
            position = tag.start() + 1
            continue
        kept.append(markup[position : tag.start()])
        position = tag.end()
        opens = not tag.group(1) and not tag.group(3).endswith("/")
        if name in ("sup", "sub") and opens:
            found = _close_of(name).search(markup, position, position + _MOST_RAISED + len("</sup  >"))
            if found is not None and "<" not in markup[position : found.start()]:
                shift = raise_digits if name == "sup" else lower_digits
                kept.append(shift(markup[position : found.start()]))
                position = found.end()
        elif opens and name in _VANISH and name not in missing:
            end = None if name in unclosed else _end_of(markup, name, position)
            if end is None and name == "table":
                unclosed.add(name)
                end = _end_of_rows(markup, position)
            if end is None:
                missing.add(name)
                continue
            position = end
            if name in _BLOCKS:
                kept.append(BREAK)
        elif name == "table" and tag.group(1):
            kept.append("\n|}\n")  # it may close a {|
        elif name in _LINES:
            kept.append(BREAK if name in _IN_ITEMS else PARAGRAPH)
        elif name in _HEADINGS:
            marks = "=" * int(name[1])
            kept.append(f"\n{marks}" if opens else f"{marks}\n")
        elif name in _ITEMS:
            kept.append(PARAGRAPH)
            if opens:
                kept.append("*")
                position = _SPACE.match(markup, position).end()  # type: ignore[union-attr]
        elif markup[tag.start() - 1 : tag.start()] in ("", "\n") and markup[position : position + 1] in (" ", "\t"):
            kept.append(EMPTY)  # the space does not begin a preformatted line
    kept.append(markup[position:])
    return "".join(kept)


def _end_of(markup: str, name: str, position: int) -> int | None:
    """Return the offset where the closing tag ends, for the tag `name` that was opened before `position`. Return None
    if the tag is never closed."""
    if name != "table":
        found = _close_of(name).search(markup, position)
        return None if found is None else found.end()
    depth = 1
    for found in _TABLE.finditer(markup, position):
        depth += -1 if found.group(1) else 1
        if depth == 0:
            return found.end()
    return None


def _end_of_rows(markup: str, position: int) -> int | None:
    """Return the offset at which a table probably ends. Its own </table>, or that of a table inside it, is missing. So
    the table ends with the next </table>, or, if a heading comes first, with the line of the last row before the
    heading. Return None if there is neither a </table> nor a row."""
    heading = markup.find("\n=", position)
    end = 0
    for found in _ROW.finditer(markup, position, len(markup) if heading < 0 else heading):
        end = found.end()
        if found.group(1):
            return end
    line_end = markup.find("\n", end)
    return None if not end else len(markup) if line_end < 0 else line_end


_SPACE = re.compile(r"\s*")
_ROW = re.compile(r"</?(?:tr|td|th)\b[^<>]*>|(</table\b[^<>]*>)", re.I)
_TABLE = re.compile(r"<(/?)table\b[^<>]*>", re.I)


@cache
def _close_of(name: str) -> re.Pattern[str]:
    return re.compile(rf"</{name}\s*>", re.I)
