"""Recognizes templates without visible text: footnotes, marks of doubt, coordinates, pronunciation, notices, icons.

vanishing.txt lists single names; the patterns here match whole families of names (cite ..., infobox ..., ... needed).
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_BEGINNINGS = (
    "infobox|taxobox|navbox|cite|citation|cita |citar |citeer |citeweb|literatur|internetquelle|ouvrage|"
    "lien web|ipa-|ipac-|sfn|efn|harv|efs|wikidata|geobox|automatic taxobox|speciesbox|chembox|drugbox|"
    "succession|sidebar|s-|pp-|portal|commons|stub|use |epi|coor |geo |bk|isbn|issn|doi|oclc|pmid|lccn|"
    "arxiv|imdb|google|official|allmusic|discogs|gutenberg|webarchive|wayback|internet archive|ref-|refe|"
    "unref|link fa|link ga|r/|\u0431\u0430\u0439\u0440\u0430\u043a/|\u0623\u064a\u0642\u0648\u0646\u0629 "
)
_ENDINGS = "-stub| stub|box|list of refs|footer|sidebar|needed|-inline| inline| icon| ikon| \uc778\uc6a9"
_FAMILIES = re.compile(rf"(?:{_BEGINNINGS}).*|.*(?:{_ENDINGS})", re.DOTALL)


def vanishes(name: str) -> bool:
    """Return whether the template `name` shows no text, so that a sentence is complete without it. The name has the
    form that fold_name returns."""
    return name in _names() or _FAMILIES.fullmatch(name) is not None


@cache
def _names() -> frozenset[str]:
    text = Path(__file__).with_name("vanishing.txt").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return frozenset(name for line in lines for name in line.split("|"))
