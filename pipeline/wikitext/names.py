"""The names that a Wikipedia's markup goes by: namespaces and redirect words of every language, and interwiki prefixes.

names.tsv holds the known names (language, namespace number or `redirect`, names joined by `|`; case-folded;
from MediaWiki's siteinfo of all Wikipedias, as tabulated by DBpedia in March 2026). What a dump's own siteinfo says is
united with them, since some dumps carry the siteinfo of another wiki.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


_INVISIBLE = (-2, 6, 14)  # media, file, category: a link to one shows no text

_CANONICAL: Mapping[int, tuple[str, ...]] = {
    -2: ("media",),
    -1: ("special",),
    1: ("talk",),
    2: ("user",),
    3: ("user talk",),
    4: ("project", "wikipedia"),
    5: ("project talk", "wikipedia talk"),
    6: ("file", "image"),
    7: ("file talk", "image talk"),
    8: ("mediawiki",),
    9: ("mediawiki talk",),
    10: ("template",),
    11: ("template talk",),
    12: ("help",),
    13: ("help talk",),
    14: ("category",),
    15: ("category talk",),
    100: ("portal",),
    101: ("portal talk",),
    118: ("draft",),
    119: ("draft talk",),
    710: ("timedtext",),
    711: ("timedtext talk",),
    828: ("module",),
    829: ("module talk",),
}
_OLD_CODES = words(
    "be-x-old be-tarask zh-classical lzh fiu-vro vro map-bms nds-nl roa-rup rup roa-tara cbk-zam sgs nan yue gsw nb "
    "minnan zh-cfr zh-cn zh-tw cz dk jp epo"
)
PROJECT_PREFIXES = words(
    "b betawikiversity c c2 commons d foundation incubator m mediawikiwiki meta metawikipedia mw n "
    "outreach phab q s species species testwiki toollabs translatewiki v voy w wikibooks wikicommons "
    "wikidata wikidatawiki wikimedia wikinews wikipedia wikiquote wikisource wikispecies wikitech "
    "wikiversity wikivoyage wikt wiktionary wmf "
)


@dataclass(frozen=True)
class WikiNames:
    """Names in use on one wiki, all by `fold_name`: of namespaces other than 0, of redirects, of other languages.

    `invisible`: prefixes of links that show no text, in this wiki's language and (longer names) in any other, since
    pages are translated from other wikis with their files.
    """

    namespaces: Mapping[str, int]
    redirect_words: frozenset[str]
    language_codes: frozenset[str]
    invisible: frozenset[str] = field(init=False)
    redirect_pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        own = {name for name, number in self.namespaces.items() if number in _INVISIBLE}
        object.__setattr__(self, "invisible", _all_invisible() | own)
        words = "|".join(re.escape(word) for word in sorted(self.redirect_words, key=lambda word: (-len(word), word)))
        object.__setattr__(self, "redirect_pattern", re.compile(rf"\s*[#\uff03]\s*(?:{words})\s*:?\s*\[\[", re.I))

    def namespace_of(self, title: str) -> int:
        """The namespace number that the title's prefix says; 0 where it has none."""
        prefix, colon, _ = title.partition(":")
        return self.namespaces.get(fold_name(prefix), 0) if colon else 0

    def is_redirect(self, markup: str) -> bool:
        """Whether the page begins with #REDIRECT [[...]] in one of the known forms."""
        return self.redirect_pattern.match(markup) is not None


def fold_name(name: str) -> str:
    """A namespace or template name in the form it is compared in: underscores are spaces, case does not count."""
    return " ".join(name.replace("_", " ").split()).casefold()


def wiki_names(languages: Iterable[str], *, siteinfo: Mapping[str, int] | None = None) -> WikiNames:
    """Names of the given languages (unknown ones add nothing) and of a siteinfo ({name: number}), united.

    Where the siteinfo and the known names disagree on a number, the siteinfo counts.
    """
    table = _known_names()
    namespaces = {name: number for number, names in _CANONICAL.items() for name in names}
    words = {"redirect"}
    for language in languages:
        for kind, names in table.get(language, {}).items():
            if kind == "redirect":
                words.update(names)
            else:
                namespaces.update(dict.fromkeys(names, int(kind)))
    for name, number in (siteinfo or {}).items():
        folded = fold_name(name)
        if number == 0:
            namespaces.pop(folded, None)
        elif folded:
            namespaces[folded] = number
    return WikiNames(namespaces, frozenset(words), language_codes())


@cache
def _known_names() -> dict[str, dict[str, list[str]]]:
    table: dict[str, dict[str, list[str]]] = {}
    for line in Path(__file__).with_name("names.tsv").read_text(encoding="utf-8").splitlines():
        language, kind, names = line.split("\t")
        table.setdefault(language, {})[kind] = names.split("|") if names else []
    return table


@cache
def _all_invisible() -> frozenset[str]:
    known = {"file", "image", "media", "category"}
    for kinds in _known_names().values():
        known.update(
            name for number in _INVISIBLE for name in kinds.get(str(number), ()) if len(name) > 2 or not name.isascii()
        )
    return frozenset(known)


@cache
def language_codes() -> frozenset[str]:
    """The codes of all Wikipedias, old ones included."""
    return frozenset(_known_names()) - {"commons"} | _OLD_CODES
