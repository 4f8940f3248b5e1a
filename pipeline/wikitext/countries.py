"""Country templates named by a code, {{ROU}}, which show a flag and the name; only the name is text. Pure.

countries.tsv has the names by language of the wiki; other codes are not treated as country templates.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pipeline.wikitext.quantities import Arguments


def country_name(code: str, *, language: str) -> str | None:
    """Return the name that a wiki shows for a code in capitals, or None if it is not known for certain."""
    return _names().get((language, code))


def render_country(name: str, arguments: Arguments) -> str | None:
    """Return the text of {{CODE}} or, with the flag of another time, {{USA|1912}}; None for other arguments."""
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
