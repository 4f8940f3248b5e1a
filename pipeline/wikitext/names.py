"""Names in a Wikipedia's markup: namespaces and redirect words of every language, and interwiki prefixes.

names.tsv has the known names, from MediaWiki's siteinfo of all Wikipedias, as tabulated by DBpedia in March 2026. A
line has a language, a namespace number or `redirect`, and case-folded names joined by `|`. A dump begins with its own
list of names (siteinfo). Both are used together, because some dumps carry the siteinfo of another wiki.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path


def words(text: str) -> frozenset[str]:
    """Return the set of words, separated by white space, in a text."""
    return frozenset(text.split())


_INVISIBLE = (6, 14)  # file, category: a link to such a page shows no text
_MEDIA = -2

_WITH_TALK = {
    **{"user": 2, "project": 4, "wikipedia": 4, "file": 6, "image": 6, "mediawiki": 8, "template": 10, "help": 12},
    **{"category": 14, "portal": 100, "draft": 118, "timedtext": 710, "module": 828},
}
_CANONICAL: Mapping[str, int] = {
    **{"media": -2, "special": -1, "talk": 1},
    **_WITH_TALK,
    **{f"{name} talk": number + 1 for name, number in _WITH_TALK.items()},
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
    """The names of one wiki, all as fold_name returns them: the namespaces other than 0 with their numbers, the
    redirect words, and the codes of other languages.

    `invisible` has the prefixes of links that show no text, such as "file". It includes the prefixes of other
    languages, because translated pages keep links to the files of the original page. But it has no ASCII prefixes of
    one or two letters from other languages. `media` has the prefixes of links to sounds and films, in the same way.
    """

    namespaces: Mapping[str, int]
    redirect_words: frozenset[str]
    language_codes: frozenset[str]
    invisible: frozenset[str] = field(init=False)
    media: frozenset[str] = field(init=False)
    redirect_pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        for attribute, numbers in (("invisible", _INVISIBLE), ("media", (_MEDIA,))):
            own = {name for name, number in self.namespaces.items() if number in numbers}
            object.__setattr__(self, attribute, _names_of(numbers) | own)
        words = "|".join(re.escape(word) for word in sorted(self.redirect_words, key=lambda word: (-len(word), word)))
        object.__setattr__(self, "redirect_pattern", re.compile(rf"\s*[#\uff03]\s*(?:{words})\s*:?\s*\[\[", re.I))

    def namespace_of(self, title: str) -> int:
        """Return the number of the namespace that the title's prefix names, or 0 if it names none."""
        prefix, colon, _ = title.partition(":")
        return self.namespaces.get(fold_name(prefix), 0) if colon else 0

    def is_redirect(self, markup: str) -> bool:
        """Return whether the page begins with #REDIRECT [[...]] in one of the known forms."""
        return self.redirect_pattern.match(markup) is not None


def fold_name(name: str) -> str:
    """Return the name of a namespace or template in the form used for comparison: case-folded, with spaces for
    underscores and with single spaces."""
    return " ".join(name.replace("_", " ").split()).casefold()


def wiki_names(languages: Iterable[str], *, siteinfo: Mapping[str, int] | None = None) -> WikiNames:
    """Return the names in the markup of a wiki: the namespaces and redirect words that are known for the given
    languages (an unknown language adds nothing), and the namespaces in `siteinfo` ({name: number}), the head of a dump.

    If a language and the siteinfo disagree on a namespace's number, the siteinfo counts.
    """
    table = _known_names()
    namespaces = dict(_CANONICAL)
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
def _names_of(numbers: tuple[int, ...]) -> frozenset[str]:
    """Return the names that namespaces have in any language. `numbers` are the numbers of the namespaces."""
    known = {name for name, number in _CANONICAL.items() if number in numbers}
    for kinds in _known_names().values():
        known.update(
            name for number in numbers for name in kinds.get(str(number), ()) if len(name) > 2 or not name.isascii()
        )
    return frozenset(known)


@cache
def language_codes() -> frozenset[str]:
    """Return the language codes of all Wikipedias, including old codes."""
    return frozenset(_known_names()) - {"commons"} | _OLD_CODES
