"""Templates of countries that are called by a code, {{ROU}}: a flag and the name, of which the name is text. Pure.

Names are in countries.tsv, by language of the wiki; a code that is not there is no template of ours.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pipeline.wikitext.quantities import Arguments


def country_name(code: str, *, language: str) -> str | None:
    """The name that a wiki shows for a code in capitals; None where it is not known for certain."""
    return _names().get((language, code))


def render_country(name: str, arguments: Arguments) -> str | None:
    """The text of {{CODE}}; a flag of another time, {{USA|1912}}, leaves the name. None for any other argument."""
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
