"""Cuts resolved wikitext into blocks: headings, paragraphs and list items, without rows of tables. Pure.

As in MediaWiki, only the first character of a line decides whether it is a heading, a list item or preformatted text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipeline.wikitext.tags import BREAK, HOLE


class Block(NamedTuple):
    """A piece of a page. `text` has the lines of a paragraph with line breaks between them. `kind` is "" for a
    paragraph, "'" for a line that is all bold (often the title of a list), and "*" for a list item. It is ":" for a
    line outside of a list that is indented by : or a space (often a quotation or code). For a heading, `kind` is a row
    of = signs, one for each level: "==" for level 2."""

    kind: str
    text: str


_MARKS = "\ufdd0\ufdd4-\ufdef"  # of tags.py, without | and = and line breaks
_HEADING = re.compile(rf"(={{1,6}})(.+?)(={{1,6}})[\s{_MARKS}]*")
# A heading directly followed by text: somebody has lost the line break.
_HEADING_AND_TEXT = re.compile(r"(?<=\n)(={2,6})(?!=)([^=\n]{1,100})\1(?!=)(?=[^\s=])(?![^\n]*=\s*?(?:\n|\Z))")
# The same inside a line, in a page without any line break.
_INNER_HEADING = re.compile(r"(?<=[^\s=])(={2,6})(?!=)([^=\n]{1,100})\1(?!=)(?=[^\s=])")
_SHORTEST_WITHOUT_BREAKS = 2_000
_EQUALS = re.compile(r"={2,}|")
_PARAGRAPHS = re.compile(rf"{BREAK}[ \t]*(?:{BREAK}[ \t]*)+")
_BREAK = re.compile(rf"{BREAK}[ \t]*")
_BREAK_IN_ITEM = re.compile(rf"\n([*#:;]++)[^\n{BREAK}]*+{BREAK}[^\n]*")
_BULLETS = "\u2022\u2023\u25aa\u25cf\u25e6"  # signs in place of * at the start of a line
_BOLD_LINE = re.compile(r"'''[^'\n]{1,80}'''\s*+:?\s*+")
_RULE = re.compile(r"-{4,}")
_ITEM = re.compile(rf"([*#:;]+(?:[ \t]+[*#]++(?=[ \t]))?|[{_BULLETS}])[ \t]*")
_FIRST_OF_OTHERS = f"*#:;=- \t{_BULLETS}"  # first characters of lines that are no paragraph
_DEFINITION = re.compile(r"\s:\s*")  # between a term and its definition on the same line
_MAGIC_WORD = re.compile(r"__([^\W_]+(?:_[^\W_]+)*)__([ \t]*)")
# Parts of the magic words that are all ASCII. In a sentence, other words are text, such as __FILE__.
_KNOWN_MAGIC = re.compile(
    "NO(?:CC|TC|GLOBAL)|.*(?:TOC|TDC|INDE|INDICE|INHALT|INHOUD|SOMMAIRE|SUMARIO|GALER|GALLERY|HIDDENCAT|SECTION"
    "|ABSCHNITT|DISAMBIG|REDIRECT|CATEGORY|TALK|CONVERT)"
)

_ANY_ROW = re.compile(r"\n[ \t:]*(?:[|!]|\{\|)")
_TABLE_LINE = re.compile(r"[ \t:]*(?:\{\||\|\}|\|-+(?:\s|\Z|[a-z]+\s*=)|\|\+(?!\d))")
_ROW = re.compile(r"[ \t:]*(?:[|!]|\{\|)")
_CELLS = re.compile(r"\S\s*(?:\|\||!!)")
# Arguments of a template, options of an image, or no content.
_NO_PROSE = re.compile(r"[ \t]*(?:\|[^|=.,]{0,40}=|\|\s*(?:thumb|left|right|center)\b|.*\b\d+px\b|[|!]\s*\Z)")
_ONLY_FORMULAS = re.compile(rf"[ \t:]*(?:{HOLE}[\ufde0-\ufdef]*+[ \t.,;:]*+)++")
_FORMULA_LINE = re.compile(rf"\n{_ONLY_FORMULAS.pattern}(?=\n|\Z)")
_ONLY_MARKS = re.compile(rf"[\s{_MARKS}]*")
SENTENCE_END = re.compile(
    "[.!?\u2026\u3002\uff01\uff1f\uff0e\uff61\u0964\u0965\u06d4\u061f\u0589\u104a\u104b\u17d4\u17d5\u0f0d\u1362]"
    "[\"'\u2019\u201d\u00bb\u300d\u300f)\\]\uff09\\s]*\\Z"
)


def read_blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page in order. The lines of a paragraph stay one block."""
    if "__" in text:
        text = _MAGIC_WORD.sub(_remove_magic_word, text)
    if "==" in text:
        text = _HEADING_AND_TEXT.sub(r"\n\1\2\1\n", text)
        if "\n" not in text.strip() and len(text) >= _SHORTEST_WITHOUT_BREAKS:
            text = _INNER_HEADING.sub(r"\n\1\2\1\n", text)
    if _ANY_ROW.search(text) is not None:
        text = "\n".join(_drop_rows(text.split("\n")))
    open_lines: list[str] = []
    in_list = False  # an indented line right after a list item continues it
    if BREAK in text:
        text = _BREAK_IN_ITEM.sub(_repeat_item, _PARAGRAPHS.sub("\n\n", text))
    text = _BREAK.sub("\n\n", text)
    lines = text.split("\n")
    for line in _join_formulas(lines) if HOLE in text and _FORMULA_LINE.search(text) is not None else lines:
        first = line[:1]
        if first and first not in _FIRST_OF_OTHERS:
            open_lines.append(line)
            in_list = False
            continue
        if open_lines:
            yield from _paragraph(open_lines)
            open_lines = []
        heading = _HEADING.fullmatch(line) if first == "=" else None
        item = _ITEM.match(line)
        in_list = item is not None and (in_list or item.group(1).strip(":") != "")
        if item is not None:
            content = line[item.end() :]
            if item.group(1).endswith(";") and (found := _DEFINITION.search(content)) is not None:
                yield Block("*", content[: found.start()])
                content = content[found.end() :]
            yield Block("*" if in_list else ":", content)
        elif heading is not None:
            opening, title, closing = heading.groups()
            yield Block(opening[: len(closing)], title)
        elif first == "=":
            open_lines.append(line[_EQUALS.match(line).end() :])  # type: ignore[union-attr]
        elif first == "-" and not _RULE.match(line):
            open_lines.append(line)
        elif first == "-":
            yield Block("", _RULE.sub("", line, count=1))
        elif line and not line.isspace():
            yield Block(":", line)
    if open_lines:
        yield from _paragraph(open_lines)


def _paragraph(lines: list[str]) -> Iterator[Block]:
    """Yield the paragraph of `lines`. If the last line is all bold, and the line before it ends a sentence, yield the
    last line as a block of its own, because it is probably a title."""
    is_bold = (
        lines[-1].startswith("'''")
        and _BOLD_LINE.fullmatch(lines[-1]) is not None
        and (len(lines) == 1 or SENTENCE_END.search(lines[-2]) is not None)
    )
    if text := "\n".join(lines[:-1] if is_bold else lines):
        yield Block("", text)
    if is_bold:
        yield Block("'", lines[-1])


def _repeat_item(found: re.Match[str]) -> str:
    """Return a list item as several items, one for each of its lines."""
    return _BREAK.sub("\n* " if found.group(1).strip(":") else "\n: ", found.group())


def _join_formulas(lines: Sequence[str]) -> list[str]:
    """Return the lines, with some of them joined. A line that has nothing but missing formulas or templates belongs to
    the sentence around it. So it is joined to the line before if that line does not end a sentence. Then the next line
    is joined too if it begins in lower case. The joined sentence contains the marks of what is missing, and is dropped
    and counted later."""
    joined: list[list[str]] = []
    last = -1  # the last line that is not blank
    goes_on = False  # the last line ends with a formula, and no sentence ends there
    for line in lines:
        is_blank = not line or line.isspace()
        is_formula = HOLE in line and _ONLY_FORMULAS.fullmatch(line) is not None
        if is_blank or not (is_formula or goes_on):
            joined.append([line])
        else:
            text = line.lstrip(" \t:")
            if is_formula:
                is_inside = last >= 0 and joined[last][0][0] not in "=|!{" and not SENTENCE_END.search(joined[last][-1])
                goes_on = not SENTENCE_END.search(text)
            else:
                is_inside, goes_on = text[:1].islower(), False
            if is_inside:
                joined[last + 1 :] = []
                joined[last].append(text)
            else:
                joined += [[""], [line]]
        last = last if is_blank else len(joined) - 1
    return [" ".join(pieces) for pieces in joined]


def _remove_magic_word(found: re.Match[str]) -> str:
    if found.group(1) != found.group(1).upper():
        return found.group()
    text = found.string
    starts_line = text[found.start() - 1] == "\n"
    is_alone = starts_line and text[found.end() : found.end() + 1] in ("", "\n", "_")
    if not is_alone and found.group(1).isascii() and not _KNOWN_MAGIC.match(found.group(1)):
        return found.group()
    return found.group(2) if not starts_line else ""


def _drop_rows(lines: Sequence[str]) -> list[str]:
    """Return the lines without stray rows of tables and stray arguments of templates. A row is stray if a template
    opens or closes its table. An argument is stray if its template is never closed. A line that begins with | or ! but
    looks like prose is kept."""
    kept: list[str] = []
    section: list[str] = []
    for line in [*lines, "="]:
        if line.startswith("="):
            kept += _drop_rows_of_section(section)
            kept.append(line)
            section = []
        else:
            section.append(line)
    return kept[:-1]


def _drop_rows_of_section(section: Sequence[str]) -> Iterator[str]:
    has_table = any(_TABLE_LINE.match(line) for line in section)
    group: list[str] = []
    for line in [*section, ""]:
        if line and not line.isspace():
            group.append(line)
            continue
        rows = [number for number, each in enumerate(group) if _ROW.match(each)]
        if rows and has_table:
            # What stands in the lines after a row belongs to its last cell.
            yield from group[: rows[0]]
            yield from rest_after_rows(group[rows[-1] + 1 :])
        else:
            yield from (each for each in group if not _ROW.match(each) or _is_prose(each, alone=len(rows) == 1))
        yield line
        group = []


def _is_prose(line: str, *, alone: bool) -> bool:
    """Return whether a line that begins with | or !, but stands outside of tables, is probably prose. Such a line must
    end like a sentence. A line that is the only such line of its paragraph (`alone`) may instead end in any way, if it
    does not look like several cells."""
    if _NO_PROSE.match(line):
        return False
    return (alone and not _CELLS.search(line)) or SENTENCE_END.search(line) is not None


def rest_after_rows(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines after the end of a table whose end is not marked. The first line that is blank, or has nothing
    but marks of missing templates, is taken for the table's end. Return [] if there is no such line."""
    for number, line in enumerate(lines):
        if _ONLY_MARKS.fullmatch(line):
            return lines[number + 1 :]
    return []


def rest_of_table(content: str) -> str:
    """Return the text that follows a table without a closing |}. `content` is everything after the table's start. The
    returned text begins where the last row ends, or at the next heading if the heading comes first."""
    lines = content.split("\n")
    end = next((number for number, line in enumerate(lines) if _HEADING.fullmatch(line)), len(lines))
    rows = [number for number, line in enumerate(lines[:end]) if _ROW.match(line)]
    start = rows[-1] + 1 if rows else 1
    return "\n\n" + "\n".join([*rest_after_rows(lines[start:end]), *lines[end:]])
