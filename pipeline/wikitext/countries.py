"""Renders country templates, which are named by a code. {{ROU}} shows a flag and a name; only the name is text. Pure.

countries.tsv has each country's code and name in the wiki's language. A template whose code is not in that file is not
handled here.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pipeline.wikitext.quantities import Arguments


def country_name(code: str, *, language: str) -> str | None:
    """Return the country name that a wiki in `language` shows for a code in capitals, or None if the name is not known
    for certain."""
    return _names().get((language, code))


def render_country(name: str, arguments: Arguments) -> str | None:
    """Return the text of the template {{CODE}} with `arguments`. The text is the argument "name" if it is given, or
    else `name`, the country's name. Numbers, as in {{USA|1912}}, only choose the flag of a year and do not matter here.
    Return None if there are arguments other than numbers, name, size and variant."""
    if not all(value.isdecimal() for value in arguments.filled()) or set(arguments.named) - {"size", "name", "variant"}:
        return None
    return arguments.named.get("name") or name


@cache
def _names() -> dict[tuple[str, str], str]:
    table: dict[tuple[str, str], str] = {}
    for line in Path(__file__).with_name("countries.tsv").read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            language, codes, name = line.split("\t")
            table.update(dict.fromkeys(((language, code) for code in codes.split("|")), name))
    return table
