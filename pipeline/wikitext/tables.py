"""Looks up, by name and wiki, what a template shows. A name can mean different things: {{s|XIX}} is a century in French
and a stub in Italian.

Each line of templates.tsv gives names of templates, the wikis in which they are used, and the renderer for them (a
function that turns a template's arguments into text). The wiki `*` stands for all wikis, because names are copied from
the English Wikipedia to most others. If several lines have the same name, a line for the page's wiki counts first. Next
counts a line for the wiki from which the page's wiki copies templates (_COPIES), and last a line with `*`. The patterns
in this module match whole families of names (infobox ..., ... needed).
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

from pipeline.wikitext.renderers import Renderer, make_renderer, nothing

_COPIES = {
    copy: source
    for source, copies in {
        "en": "simple sco ang",
        "fr": "oc br wa pcd frp nrm co ht ln mg",
        "it": "lmo vec nap scn pms lij eml sc fur rm",
        "es": "ast an ext gl eu qu ay gn nah cbk-zam pap lad",
        "pt": "mwl",
        "ca": "oc",
        "de": "als bar ksh nds pfl pdc stq frr lb hsb dsb gsw",
        "nl": "li fy zea vls nds-nl af",
        "no": "nn nb da",
        "ru": "be be-tarask be-x-old uk rue tt ba cv ce os sah kk ky tg av lez xal mhr mrj myv mdf udm koi kv ady ab "
        "inh krc kbd tyv bxr mn uz",
        "sr": "sh hr bs mk",
        "cs": "sk",
        "lv": "ltg",
        "pl": "szl csb",
        "fa": "mzn glk ckb ps lrc azb",
        "ar": "arz ary",
        "hi": "mr ne sa bh mai new awa",
        "id": "ms jv su min map-bms bjn ban ace bug",
        "zh": "yue zh-yue wuu lzh zh-classical gan hak zh-min-nan nan cdo",
    }.items()
    for copy in copies.split()
}
_NOTHING = re.compile(
    "(?:infobox|taxobox|automatic taxobox|speciesbox|subspeciesbox|chembox|drugbox|navbox|sidebar|succession box|geobox"
    "|portal|stub|use [a-z]+ (?:english|dates)|engvar|pp-|sfn|efn|bots|nobots|link fa|link ga|unref"
    "|\u0431\u0430\u0439\u0440\u0430\u043a/|\u0623\u064a\u0642\u0648\u0646\u0629 ).*"
    "|.*(?:-stub| stub| icon|-icon| ikon|list of refs)|r/.*|ref-[a-z]{2,3}",
    re.DOTALL,
)
_DOUBT = re.compile(".*(?:[a-z] needed|citation needed.*)")
_PRONUNCIATION = re.compile("ipa(?:c?-[a-z]{2,4}(?:-[a-z]+)*|[a-z]?link| link| all| char)")
_WRAPPING = re.compile(".*(?:[ -]span)")


@cache
def wikis_of(language: str) -> tuple[str, ...]:
    """Return the names of the wikis whose lines in templates.tsv apply to the wiki in `language`. The first name is "*"
    (all wikis), and the last is `language`. Between them is the wiki, if any, from which this wiki copies templates."""
    source = _COPIES.get(language)
    return ("*", language) if source is None else ("*", source, language)


def find_renderer(name: str, *, language: str) -> Renderer | None:
    """Return the renderer (a function that turns arguments into text) of the template `name` in the wiki in `language`,
    or None if the template is unknown. `name` is case-folded, as fold_name returns it."""
    renderer = _renderers(language).get(name)
    if renderer is not None:
        return renderer
    if _PRONUNCIATION.fullmatch(name):
        return make_renderer("pronunciation")
    if _NOTHING.fullmatch(name):
        return nothing
    if _WRAPPING.fullmatch(name):
        return make_renderer("wrapped")
    if _DOUBT.fullmatch(name):
        return make_renderer("reason_or_text" if "en" in wikis_of(language) else "doubted")
    return None


def is_listed(name: str, *, language: str) -> bool:
    """Return whether templates.tsv has a line for the template `name` in the wiki of `language`. `name` is case-folded,
    as fold_name returns it. A name that only matches a pattern of names in this module is not listed."""
    return name in _renderers(language)


@cache
def _renderers(language: str) -> dict[str, Renderer]:
    lines = read_table()
    return {
        name: renderer
        for wiki in wikis_of(language)
        for wikis, names, renderer in lines
        if wiki in wikis
        for name in names
    }


@cache
def read_table() -> list[tuple[frozenset[str], tuple[str, ...], Renderer]]:
    """Return the lines of templates.tsv. A line is (wikis, names of templates as fold_name returns them, renderer). The
    renderer is a function that turns the arguments of such a template into text."""
    lines = []
    for line in Path(__file__).with_name("templates.tsv").read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            wikis, kind, parameters, names = line.split("\t")
            renderer = make_renderer(kind, *json.loads(parameters))
            lines.append((frozenset(wikis.split()), tuple(names.split("|")), renderer))
    return lines
