"""Cuts resolved wikitext into blocks: headings, paragraphs and list items, without rows of tables. Pure.

The order is that of MediaWiki: a line is a heading, a list item or preformatted text by its first character only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipeline.wikitext.tags import BREAK


class Block(NamedTuple):
    """A piece of a page. `kind` is "" for a paragraph, "*" for a list item, and ":" for a line outside of a list that
    is indented by : or a space, often a quotation or code. For a heading, it has as many = as the heading's level.
    `text` has the lines of a paragraph with line breaks between them."""

    kind: str
    text: str


_MARKS = "\ufdd0\ufdd4-\ufdef"  # of tags.py, without | and = and line breaks
_HEADING = re.compile(rf"(={{1,6}})(.+?)(={{1,6}})[\s{_MARKS}]*")
# A heading directly followed by text: somebody has lost the line break.
_HEADING_AND_TEXT = re.compile(r"(?<=\n)(={2,6})(?!=)([^=\n]{1,100})\1(?!=)(?=[^\s=])")
# The same inside a line, in a page without any line break.
_INNER_HEADING = re.compile(r"(?<=[^\s=])(={2,6})(?!=)([^=\n]{1,100})\1(?!=)(?=[^\s=])")
_SHORTEST_WITHOUT_BREAKS = 2_000
_EQUALS = re.compile(r"={2,}|")
_BREAK = re.compile(rf"{BREAK}[ \t]*")
_RULE = re.compile(r"-{4,}")
_ITEM = re.compile(r"([*#:;]+)[ \t]*")
_MAGIC_WORD = re.compile(r"__([^\W_]+(?:_[^\W_]+)*)__([ \t]*)")

_ANY_ROW = re.compile(r"\n[ \t:]*(?:[|!]|\{\|)")
_TABLE_LINE = re.compile(r"[ \t:]*(?:\{\||\|\}|\|-+(?:\s|\Z|[a-z]+\s*=)|\|\+(?!\d))")
_ROW = re.compile(r"[ \t:]*(?:[|!]|\{\|)")
_CELLS = re.compile(r"\S\s*(?:\|\||!!)")
# Arguments of a template, options of an image, or no content.
_NO_PROSE = re.compile(r"[ \t]*(?:\|[^|=.,]{1,40}=|\|\s*(?:thumb|left|right|center)\b|.*\b\d+px\b|[|!]\s*\Z)")
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
    for line in _BREAK.sub("\n\n", text).split("\n"):
        first = line[:1]
        if first and first not in "*#:;=- \t":
            open_lines.append(line)
            in_list = False
            continue
        if open_lines:
            yield Block("", "\n".join(open_lines))
            open_lines = []
        heading = _HEADING.fullmatch(line) if first == "=" else None
        item = _ITEM.match(line)
        in_list = item is not None and (in_list or item.group(1).strip(":") != "")
        if item is not None:
            yield Block("*" if in_list else ":", line[item.end() :])
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
        yield Block("", "\n".join(open_lines))


def _remove_magic_word(found: re.Match[str]) -> str:
    if found.group(1) != found.group(1).upper():
        return found.group()
    starts_line = found.string[found.start() - 1] == "\n"
    return found.group(2) if not starts_line else ""


def _drop_rows(lines: Sequence[str]) -> list[str]:
    """Return the lines without the rows of tables whose beginning or end is in a template, and without the arguments
    of templates that are never closed. A line that begins with | or ! may also be prose."""
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
    """Return whether a line that begins with | or !, outside of tables, looks like a paragraph. If it is not alone, or
    has what looks like several cells, it must end like a sentence."""
    if _NO_PROSE.match(line):
        return False
    return (alone and not _CELLS.search(line)) or SENTENCE_END.search(line) is not None


def rest_after_rows(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines after the first that is blank or has nothing but missing templates, one of which may end the
    table. Return none if there is no such line."""
    for number, line in enumerate(lines):
        if _ONLY_MARKS.fullmatch(line):
            return lines[number + 1 :]
    return []


def rest_of_table(content: str) -> str:
    """Return the text after a table that no |} closes: after its last row, or from the next heading."""
    lines = content.split("\n")
    end = next((number for number, line in enumerate(lines) if _HEADING.fullmatch(line)), len(lines))
    rows = [number for number, line in enumerate(lines[:end]) if _ROW.match(line)]
    start = rows[-1] + 1 if rows else 1
    return "\n\n" + "\n".join([*rest_after_rows(lines[start:end]), *lines[end:]])
