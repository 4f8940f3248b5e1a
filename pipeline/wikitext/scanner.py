"""Turns wikitext into plain text: one paragraph of prose per line, without any markup. Pure.

A full parser handles only 2.5 MB/s and needs unbounded memory on hostile pages. Here every stage passes over the page
once from left to right, so time and memory are linear in the length of any page. A template that cannot be rendered
leaves a hole (a mark for missing text), and the caller drops the sentence around it (`PlainText.hole_in`).
"""

from __future__ import annotations

import html.entities
import re
from dataclasses import dataclass

from pipeline.wikitext.blocks import read_blocks, rest_of_table
from pipeline.wikitext.holes import MARK, hole_number, settle_marks
from pipeline.wikitext.links import quote_free, resolve_external_links, resolve_link
from pipeline.wikitext.names import WikiNames, fold_name
from pipeline.wikitext.quotes import remove_quotes
from pipeline.wikitext.raw import remove_raw
from pipeline.wikitext.sections import LeftOut, Treatment, choose_blocks
from pipeline.wikitext.tags import ASIDE, BREAK, EMPTY, EQUALS, GAP, HOLE, PIPE, RESERVED, resolve_tags
from pipeline.wikitext.templates import TemplatePage, render_template


@dataclass(frozen=True)
class PageBudget:
    """Limits above which a page is skipped. `openings` counts the starts of templates, links, tables and tags. Because
    the limits are counts, not times, every machine skips the same pages.

    MediaWiki itself limits a page to 2 MiB and its templates to a depth of 100.
    """

    num_bytes: int = 4 * 2**20
    openings: int = 200_000
    depth: int = 100


DEFAULT_BUDGET = PageBudget()
_OPENINGS = ("{{", "[[", "{|", "<")


class PageOverBudgetError(ValueError):
    """A page exceeds a limit of its PageBudget. The message gives the page's number and the limit."""


def check_budget(markup: str, *, budget: PageBudget = DEFAULT_BUDGET) -> None:
    """Raise PageOverBudgetError if a page has too many bytes, or too many starts of templates, links, tables and tags.
    The depth is not checked here but during the scan."""
    size = len(markup) if markup.isascii() else len(markup.encode("utf-8", "surrogatepass"))
    if size > budget.num_bytes:
        raise PageOverBudgetError(f"{size} bytes of markup, more than {budget.num_bytes}")
    openings = sum(map(markup.count, _OPENINGS))
    if openings > budget.openings:
        raise PageOverBudgetError(f"{openings} openings of templates, links and tags, more than {budget.openings}")


def wikitext_to_text(
    markup: str,
    *,
    names: WikiNames,
    language: str = "en",
    title: str = "",
    budget: PageBudget = DEFAULT_BUDGET,
    lists: Treatment = "keep",
    tail_sections: Treatment | None = None,
) -> PlainText:
    """Return the prose of the page whose wikitext is `markup`, one paragraph or list item per line, without headings,
    tables, references or files. `names` and `language` are those of the wiki, and `title` is the page's title.

    `lists` says what becomes of list items: "keep" keeps them, "drop" leaves them out, and "sentences" keeps only lines
    that are whole sentences. `tail_sections` says the same for sections like External links. If it is None, `lists`
    holds for these sections too. Raises PageOverBudgetError if the page exceeds `budget`.
    """
    check_budget(markup, budget=budget)
    page = TemplatePage(title=title, language=language, holes=[])
    text = RESERVED.sub("", markup) if RESERVED.search(markup) else markup
    text = remove_raw(text, hole=page.hole)
    text = resolve_tags(text)
    text = _resolve_brackets("\n" + text, names=names, page=page, most_open=budget.depth)
    text = resolve_external_links(text)
    text = _resolve_variants(text, language=language)
    blocks = [block._replace(text=_finish_line(block.text)) for block in read_blocks(text)]
    kept, left_out = choose_blocks(blocks, language=language, lists=lists, tail_sections=tail_sections or lists)
    if page.holes:
        marked = [block.text for block in blocks if HOLE in block.text or ASIDE in block.text]
        left = {hole_number(mark) for text in marked for mark in MARK.findall(text)}
        left_out += [LeftOut(_TEMPLATE_LEFT_OUT, name) for number, name in enumerate(page.holes) if number not in left]
    return PlainText("\n".join(kept), tuple(page.holes), tuple(left_out))


_TEMPLATE_LEFT_OUT = "unrendered_template"  # removed with its parenthesis, as a footnote, or with its own line


@dataclass(frozen=True)
class PlainText:
    """Text with one paragraph per line. A hole (a mark for missing text) stands in the place of each template that
    could not be rendered, and `holes` has the names of these templates."""

    text: str
    holes: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()
    """What `lists` and `tail_sections` left out of the text, and the missing templates that left no hole."""

    def hole_in(self, sentence: str) -> str | None:
        """Return the name of the first template that is missing in a sentence of this text because it could not be
        rendered. Return None if the sentence is complete."""
        found = MARK.search(sentence)
        if found is None:
            return None
        return self.holes[hole_number(found.group())]


# ---- brackets: templates, links, tables ----

_TOKEN = re.compile(r"\{\{|\}\}|\[\[|\]\]|\n[ \t:]*\{\||\n[ \t]*\|\}(?!\})")
_PARAMETER = re.compile(r"\{\{\{[^{}|]*+(?:\|([^{}]*+))?\}\}\}")
_SIMPLE_LINK = re.compile(r"\[\[([^\[\]{}|:#<>_\n]++)(?:\|([^\[\]{}|\n]++))?\]\]")
# Templates that stand for |}. If another template closes a table, the table's end is guessed (rest_of_table).
_ENDS_TABLE = re.compile(
    r"\s*(?:(?:s|tab|table|tabelle|tabella|tabla|tabela)?[ _-]?(?:end|ende)|end[ _-]?(?:tab|table)|"
    r"(?:fin|fim|fine)[ _-](?:tab|table|tableau|tabella|tabla|tabela)|\u043a\u043e\u043d\u0435\u0446)\s*(?:\||\Z)",
    re.I,
)
_TABLE_MARK = re.compile(r"(\{\{\(!\}\}|\{\{\{!\}\})|\{\{!\)\}\}|\{\{!\}\}\}(?!\})")
_TEMPLATE, _LINK, _TABLE = "{{", "[[", "{|"


# "And", "in", "to", "from", "that", "the" ...
_PREFIX = re.compile(
    "(?:\\A|[^\\w])(?:[\u05d5\u05e9\u05db]?[\u05d1\u05d4\u05d5\u05db\u05dc\u05de\u05e9]"
    "|[\u0648\u0641]?[\u0648\u0641\u0628\u0643\u0644]?(?:\u0627\u0644)?)\\Z"
)


class _Frame:
    """An open bracket, or the page itself (`kind` is ""). `start` is the offset in the page where the bracket's content
    starts, and `parts` is the content that was read so far, with inner brackets resolved. If a table in the bracket was
    never closed, its end was guessed, and `own` is the index in `parts` from which on the guess is not made again.
    Otherwise `own` is None."""

    __slots__ = ("_last", "_looked_at", "kind", "own", "parts", "start")

    def __init__(self, kind: str, start: int) -> None:
        self.kind = kind
        self.start = start
        self.own: int | None = None
        self.parts: list[str] = []
        self._last, self._looked_at = "\n", 0

    def last(self) -> str:
        """Return the last character of the content so far, or a line break if there is no content. Each part is looked
        at only once, because a page may have 200,000 empty parts."""
        new = reversed(self.parts[self._looked_at :])
        self._last, self._looked_at = next((part[-1] for part in new if part), self._last), len(self.parts)
        return self._last

    def ends_with_prefix(self) -> bool:
        """Return whether the content so far ends with Hebrew or Arabic words that are written without a space before
        the next word, such as "and" and "the"."""
        return self.last() > "\u0590" and _PREFIX.search("".join(part[-8:] for part in self.parts[-4:])) is not None

    def ends_unfinished(self) -> bool:
        """Return whether the content so far ends with a line of running text whose last sentence is not finished."""
        last = "".join(part[-200:] for part in self.parts[-8:]).removesuffix("\n").rpartition("\n")[2]
        return last[:1] not in "*#:;=|!-{ \t" and (last[-1].isalnum() or last[-1] == ",")


def _resolve_brackets(text: str, *, names: WikiNames, page: TemplatePage, most_open: int) -> str:
    if "[[" in text:
        text = _SIMPLE_LINK.sub(_resolve_simple_link, text)
    if "!)}}" in text or "{{(!" in text or "{{{!}}" in text:
        text = _TABLE_MARK.sub(lambda found: "{|" if found.group(1) else "|}", text)
    if "{{{" in text:
        text = _PARAMETER.sub(lambda found: found.group(1) or "", text)
    frames = [_Frame("", 0)]
    open_of = {_TEMPLATE: 0, _LINK: 0, _TABLE: 0}
    position = 0
    for token in _TOKEN.finditer(text):
        frame = frames[-1]
        frame.parts.append(text[position : token.start()])
        position = token.end()
        mark = token.group().strip(" \t:\n")
        if mark in open_of:
            frames.append(_Frame(mark, token.end()))
            open_of[mark] += 1
            if len(frames) > most_open:
                raise PageOverBudgetError(f"{len(frames)} levels of open templates and links, more than {most_open}")
            continue
        kind = {"}}": _TEMPLATE, "]]": _LINK, "|}": _TABLE}[mark]
        if not open_of[kind] or (kind == _LINK and frame.kind != _LINK):
            # A template may have opened the table that |} closes.
            frame.parts.append(" " if kind == _LINK else "\n|}\n" if kind == _TABLE else "")
            continue
        while frames[-1].kind != kind:
            _give_up(frames, open_of, names=names, page=page)
        closed = frames.pop()
        open_of[kind] -= 1
        parts = frames[-1].parts
        if kind == _TABLE:
            parts.append("\n\n")
        elif kind == _LINK:
            parts.append(_protect(resolve_link("".join(closed.parts), names=names)))
        elif frames[-1].kind == _TABLE and _ENDS_TABLE.match(closed.parts[0]):
            frames.pop()
            open_of[_TABLE] -= 1
            frames[-1].parts.append("\n\n")
        else:
            parts.append(_protect(_close_template(closed, frames[-1], text, token, page=page)))
        if (parts := frames[-1].parts)[-1] in ("", "\n", "\n\n") and text[position : position + 1] in (" ", "\t"):
            parts.append(EMPTY)  # the space does not begin a preformatted line
    frames[-1].parts.append(text[position:])
    while len(frames) > 1:
        _give_up(frames, open_of, names=names, page=page)
    return "".join(frames[0].parts)


def _resolve_simple_link(found: re.Match[str]) -> str:
    target, label = found.groups()
    shown: str = label or target
    return quote_free(shown, is_label=bool(label)) if "'" in shown else shown


_BOX = re.compile(r"[^\n|]*+\n\s*+\|")  # the first argument is on a line of its own


def _give_up(frames: list[_Frame], open_of: dict[str, int], *, names: WikiNames, page: TemplatePage) -> None:
    """Treat the innermost open bracket, the last of `frames`, as unclosed: add its content to the text of the bracket
    around it. `open_of` counts the open brackets of each kind."""
    frame, outer = frames.pop(), frames[-1]
    open_of[frame.kind] -= 1
    if frame.kind == _TEMPLATE and frame.parts:
        name, bar, _ = frame.parts[0].partition("\n")[0].partition("|")
        if _BOX.match(frame.parts[0]) or (bar and outer.last() in ("\n", BREAK)):
            outer.parts.append("\n|=")  # its first line is dropped like a row of a table
        elif bar:
            outer.parts.append(page.hole(name))
    if frame.kind == _LINK and frame.parts:
        prefix, colon, _ = frame.parts[0].partition(":")
        target, bar, label = frame.parts[0].partition("|")
        if colon and fold_name(prefix) in names.invisible:
            outer.parts.append(page.hole(f"[[{prefix}:"))  # the options of a file, and its caption
        elif bar and "\n" not in target:
            frame.parts[0] = label
    own = frame.own
    if frame.kind == _TABLE:
        outer.parts.append(rest_of_table("".join(frame.parts[:own])))
        outer.own = outer.own or len(outer.parts)
        outer.parts.extend(frame.parts[own:] if own is not None else ())
        return
    if own is not None:
        outer.own = outer.own or len(outer.parts) + own
    outer.parts.extend(frame.parts)


def _protect(rendered: str) -> str:
    """Return rendered text with marks in place of | and =, which would otherwise separate arguments of an enclosing
    template."""
    if "|" in rendered:
        rendered = rendered.replace("|", PIPE)
    return rendered.replace("=", EQUALS) if "=" in rendered else rendered


# What follows a box on its line: another template, a file or category, the title in bold, or a new paragraph.
_AFTER_BOX = re.compile(rf"\{{\{{|\[\[[^\[\]{{}}|\n]{{1,40}}:|'''|{BREAK}")


def _close_template(closed: _Frame, outer: _Frame, text: str, token: re.Match[str], *, page: TemplatePage) -> str:
    content = "".join(closed.parts)
    last = outer.last()
    # Unspaced scripts, from Thai on, have no space before a template that wraps text.
    glued = last in ".!?;" or (last.isalnum() and last < "\u0e00" and not outer.ends_with_prefix())
    rendered = render_template(content, page=page, glued=glued)
    end = token.end()
    starts_line = last in ("\n", BREAK)
    ends_line = end == len(text) or text[end] == "\n"
    if rendered == "" and outer.kind == "" and not starts_line:
        return GAP
    if rendered is not None:
        if rendered[:1] in ("*", "#", ":", ";") and "\n" in rendered and not starts_line:
            return "\n" + rendered  # as in MediaWiki, a list starts on a line of its own
        alone = starts_line and ends_line and "\u00b0" in rendered
        return "" if alone and _COORDINATES.fullmatch(rendered) else rendered
    if (
        outer.kind == ""
        and starts_line
        and (ends_line or "\n" in text[closed.start : end] or _AFTER_BOX.match(text, end))
        and not (ends_line and outer.ends_unfinished() and text[end + 1 : end + 2].isalnum())
    ):
        return "\n"  # a box, a notice, an infobox: not inside a sentence
    return page.hole(content.partition("|")[0])


# ---- language variants of Chinese, Serbian ... ----

_VARIANT = re.compile(r"-\{([^{}]*)\}-")
_VARIANT_RULE = re.compile(r"\s*([a-z-]+)\s*:\s*([^;]*)")


def _resolve_variants(text: str, *, language: str) -> str:
    """Return `text` with language variants resolved. -{zh-hans:x;zh-hant:y}- becomes the variant for `language`, or a
    default if there is no such variant, and -{x}- becomes x. -{FLAGS|...}- becomes nothing if FLAGS contain T, H, D, N
    or - but not A."""
    if "-{" not in text:
        return text

    def choose(found: re.Match[str]) -> str:
        flag, bar, rule = found.group(1).replace(PIPE, "|").partition("|")
        if bar and set(flag.upper()) & set("THD-N") and "A" not in flag.upper():
            return ""
        rule = rule if bar else flag
        options = dict(_VARIANT_RULE.findall(rule))
        if not options:
            return rule
        for code in (language, "zh-hans", "zh-cn", "zh", "sr-ec"):
            if code in options:
                return str(options[code])
        return str(next(iter(options.values())))

    return _VARIANT.sub(choose, text)


# ---- lines ----

_ENTITY = re.compile(r"&(?:#(\d{1,7})|#[xX]([0-9A-Fa-f]{1,6})|([A-Za-z][A-Za-z0-9]{1,31}));")
_LEFT_OVER = re.compile(r"\[\[|\]\]|\{\{+|\}\}+|\{\||\|\}")
_BROKEN_TAG = re.compile(r"</?(?:br|ref|small|sup|sub|div|span|center|font|nowiki|p|b|i|u)\b/?<?(?![\w>])", re.I)
_EMPTY_PARENTHESES = re.compile(r"\s?[(\uff08][\s,;:\u060c\u061b\u3001\u2013/-]*[)\uff09]")
_PARENTHESIS_START = re.compile(r"([(\uff08])\s*(?:[,;:\u060c\u061b\u3001]\s*)+")
_PARENTHESIS_END = re.compile(r"(?:\s*[,;:\u060c\u061b\u3001]){0,4}\s*([)\uff09])")
_ODD_PARENTHESIS = re.compile(
    r"[(\uff08][\s,;:)\uff09\u060c\u061b\u3001\u2013/-]|[\s,;:\u060c\u061b\u3001][)\uff09]|[,;]\s?;"
)
_SPACE_BEFORE_POINT = re.compile(
    r" (?:(,(?=[,.](?:\s|$))|[,.](?=[\s\"'\u201d\u00bb)\]]|$))|([\u060c\u06d4\u0964\u3001\u3002\uff0c]))"
)
_SPACED_POINTS = (" \u060c", " \u06d4", " \u0964", " \u3001", " \u3002", " \uff0c")
_COMMA_BEFORE_POINT = re.compile(r"(?<![,;\u060c])[,;\u060c]+([,.\u060c\u06d4])(?=\s|$)")
_COORDINATES = re.compile(r"[\d.\u00b0\u2032\u2033 NSEWO]+")  # shown beside the title
_DOUBLE_POINT = re.compile(r"[,;\u060c]\s*(?=[;)\uff09])")


def _finish_line(line: str) -> str:
    line = settle_marks(line)
    if "''" in line:
        line = "\n".join(map(remove_quotes, line.split("\n")))
    if PIPE in line or EQUALS in line:
        line = line.replace(PIPE, "|").replace(EQUALS, "=")
    if "[[" in line or "]]" in line or "{{" in line or "}}" in line or "{|" in line or "|}" in line:
        line = _LEFT_OVER.sub(" ", _LEFT_OVER.sub("", line))  # "[{|[" leaves "[[" first
    if "<" in line:
        line = _BROKEN_TAG.sub(" ", line)
    if "&" in line:
        line = _ENTITY.sub(_decode_entity, line)
    if EMPTY in line:
        line = line.replace(EMPTY, "")
    line = " ".join(line.split())
    if _ODD_PARENTHESIS.search(line) is not None:
        line = _DOUBLE_POINT.sub("", line)
        line = _PARENTHESIS_START.sub(r"\1", _EMPTY_PARENTHESES.sub("", line))
        line = _PARENTHESIS_END.sub(r"\1", line)
    if " ," in line or " ." in line or (not line.isascii() and any(map(line.__contains__, _SPACED_POINTS))):
        line = _SPACE_BEFORE_POINT.sub(r"\1\2", line)
    if ",," in line or ",." in line or ";," in line or ";." in line or "\u060c" in line:
        line = _COMMA_BEFORE_POINT.sub(r"\1", line)
    return "" if "\u00b0" in line and _COORDINATES.fullmatch(line) else line.strip()


def _decode_entity(found: re.Match[str]) -> str:
    decimal, hexadecimal, name = found.groups()
    if name is not None:
        return html.entities.html5.get(name + ";", found.group())
    code = int(decimal) if decimal else int(hexadecimal, 16)
    return chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else ""
