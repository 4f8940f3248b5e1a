"""Renders templates inside sentences as a reader sees them. Pure.

`render_template` returns the text, "" for a template that leaves no gap (footnotes, coordinates, notices), or None for
an unknown template. Templates inside the arguments must be rendered before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeline.wikitext.centuries import ordinal_template
from pipeline.wikitext.citations import doubted, named_text, reason_or_text
from pipeline.wikitext.countries import country_name, render_country
from pipeline.wikitext.names import fold_name, language_codes, words
from pipeline.wikitext.quantities import Arguments, Renderer, format_number
from pipeline.wikitext.renderers import make_renderer, nothing
from pipeline.wikitext.tables import find_renderer, is_listed, wikis_of
from pipeline.wikitext.tags import ASIDE, EQUALS, HOLE, PIPE, RESERVED

_DIGITS = str.maketrans("0123456789abcdef", "".join(map(chr, range(0xFDE0, 0xFDF0))))
_CASES = {"lc": str.lower, "uc": str.upper}
_MARKUP_VARIABLES = {"!": PIPE, "=": EQUALS, "(": "(", ")": ")", "!!": "", "!-": "", "-": "", "\\": " "}
_TITLES = words("pagename fullpagename basepagename subpagename pagenamee fullpagenamee articlepagename")
_LANGUAGE_TEMPLATE = re.compile(
    r"(?:lang|lang-|langue-|llang-|lang |dil-|vol-|val-|bi-)([a-z]{2,3}(?:-[a-z0-9]+)*)"
    r"|\u0644\u063a\u0629-\w+"  # Arabic "language-"
)
_GERMAN_LANGUAGE = re.compile(r"[A-Z][a-z]{1,2}S")  # {{EnS|text}}, {{RuS|text}}
_COUNTING = ("number", "pages", "current", "local", "revision", "server", "site", "page")


@dataclass
class TemplatePage:
    """The page that is being rendered. `language` is the wiki's language. `holes` collects the names of the templates
    that could not be rendered."""

    title: str
    language: str
    holes: list[str]

    def hole(self, name: str, *, mark: str = HOLE) -> str:
        """Add `name` to `holes`, and return the characters that stand in the place of the missing template. They are
        `mark` and the index of `name` in `holes`. The index is written in Unicode noncharacters, so that no sentence
        splitter cuts there."""
        self.holes.append(" ".join(RESERVED.sub("", name).split())[:80])
        return mark + f"{len(self.holes) - 1:x}".translate(_DIGITS)


def render_template(content: str, *, page: TemplatePage, glued: bool) -> str | None:
    """Return the text of `{{content}}`, "" if the template shows nothing, or None if the template is unknown or its
    arguments are not understood.

    `glued` is true if the template follows a letter or the end of a sentence without a space. This matters only for
    templates that mark text as doubtful, such as {{clarify|...}}. If the template is glued, the doubtful text is before
    it. Then its argument is a reason, and the result is "". Otherwise the argument is the doubtful text, and is
    returned.
    """
    head, bar, rest = content.partition("|")
    name = fold_name(head)
    if name.startswith(("subst:", "safesubst:", "template:", "msgnw:")):
        name = name.partition(":")[2].strip()
    if not bar:
        if head in _MARKUP_VARIABLES:
            return _MARKUP_VARIABLES[head]
        if name in _TITLES:
            return page.title
    if "fr" in wikis_of(page.language) and (ordinal := ordinal_template(head)) is not None:
        return " ".join([ordinal, *_arguments(rest if bar else None, language=page.language).filled()])
    country = country_name(head.strip(), language=page.language)
    if country is not None:
        return render_country(country, _arguments(rest if bar else None, language=page.language))
    if (":" in name or name.startswith("#")) and not is_listed(name, language=page.language):
        return _render_function(name, head, rest, page=page)
    renderer = find_renderer(name, language=page.language) or _language_renderer(name, head.strip(), page=page)
    if renderer is None:
        return None
    if glued and renderer is doubted:
        return ""
    if glued and renderer is reason_or_text:
        renderer = named_text
    rendered = renderer(_arguments(rest if bar else None, language=page.language))
    return page.hole(head, mark=ASIDE) if rendered == ASIDE else rendered


def _language_renderer(name: str, head: str, *, page: TemplatePage) -> Renderer | None:
    """Return the renderer (a function that turns arguments into text) of a template that is named by a language, such
    as {{lang-de|text}}. Return None for any other template."""
    if name in language_codes() and (
        head == name or ("en" not in wikis_of(page.language) and head[1:] == name[1:])
    ):  # without a text, the template only marks a source's language; {{II}} is a number, {{DE}} a flag
        return make_renderer("shown")
    if _LANGUAGE_TEMPLATE.fullmatch(name) or (page.language == "de" and _GERMAN_LANGUAGE.fullmatch(head)):
        return make_renderer("other_language")
    return None


def _arguments(rest: str | None, *, language: str) -> Arguments:
    """Return the parsed arguments, all trimmed. `rest` is the text after the template's name, or None if there are no
    arguments. Arguments named by a number (`1=`) count as positional."""
    positional: list[str] = []
    named: dict[str, str] = {}
    for argument in rest.split("|") if rest is not None else ():
        key, equals, value = argument.partition("=")
        if not equals:
            positional.append(argument.strip())
            continue
        key = key.strip()
        if key.isdecimal() and 0 < int(key) <= 50:
            index = int(key)
            positional.extend([""] * (index - len(positional)))
            positional[index - 1] = value.strip()
        else:
            named[key.casefold()] = value.strip()
    return Arguments(positional, named, language)


def _render_function(name: str, head: str, rest: str, *, page: TemplatePage) -> str | None:
    """Return the text of a parser function, or of a variable with an argument: {{formatnum:1234}}, {{lc:X}},
    {{DEFAULTSORT:x}}. `head` is the text before the first |, `name` is `head` as fold_name returns it, and `rest` is
    the text after the |. Return "" if the function shows nothing, and None if it is unknown."""
    function = name.partition(":")[0]
    value = head.partition(":")[2].strip()
    if function in _CASES:
        return _CASES[function](value)
    if function == "ucfirst":
        return value[:1].upper() + value[1:]
    if function == "lcfirst":
        return value[:1].lower() + value[1:]
    if function == "formatnum":
        return value if rest.strip().casefold() == "r" else format_number(value, language=page.language)
    if function in _TITLES:
        return value or page.title
    if function in ("urlencode", "anchorencode"):
        return value
    if function in ("ns", "plural", "grammar"):
        return None
    if function == "#tag" and value.casefold() in ("ref", "references"):
        return ""
    # DEFAULTSORT, DISPLAYTITLE and their translations, in capitals, set something and show nothing.
    word = head.partition(":")[0].strip()
    if (word.isupper() and not function.startswith(_COUNTING)) or function in ("defaultsort", "displaytitle"):
        return ""
    renderer = find_renderer(function, language=page.language)
    return "" if renderer is nothing else None
