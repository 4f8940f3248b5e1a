"""Renderers of common inline templates. Pure. The file templates.tsv maps the names of templates to renderers.

A renderer turns a template's arguments into text. It returns "" if the template shows nothing, or None if it does not
understand the arguments (the sentence is then dropped).
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.wikitext.centuries import century, french_century, spanish_century
from pipeline.wikitext.citations import (
    bare_citation,
    bracketed_citation,
    cited_work,
    doubted,
    english_verse,
    harvard_source,
    named_text,
    reason_or_text,
    sound,
    textual_citation,
    verse,
    verse_number,
    wrapped,
)
from pipeline.wikitext.countries import country_name
from pipeline.wikitext.names import language_codes
from pipeline.wikitext.quantities import (
    Arguments,
    Renderer,
    age,
    as_of,
    convert,
    coordinates,
    english_date,
    format_number,
    fraction,
    measure,
    money,
    scientific,
    track_gauge,
    unit_fr,
    value,
    words_of_date,
)
from pipeline.wikitext.tags import ASIDE, PARAGRAPH, PIPE, lower_digits, raise_digits


def nothing(arguments: Arguments) -> str | None:
    """Return "", for a template that shows nothing in a sentence."""
    return ""


def _hole(arguments: Arguments) -> str | None:
    """Return None, for a template whose text is not in its arguments. The sentence around the template is then
    dropped."""
    return None


def _pronunciation(arguments: Arguments) -> str | None:
    return ASIDE


def _argument(position: int) -> Renderer:
    return lambda arguments: arguments.at(position) or None


def _last(arguments: Arguments) -> str | None:
    filled = arguments.filled()
    return filled[-1] if filled else None


def _constant(text: str) -> Renderer:
    return lambda arguments: text


def _joined(separator: str) -> Renderer:
    return lambda arguments: separator.join(arguments.filled()) or None


def _items(arguments: Arguments) -> str | None:
    """Render {{unbulleted list|a|b}} as a list with an item for each argument. Return a single argument unchanged,
    because it may be a whole list."""
    filled = arguments.filled()
    return "".join(f"* {item}\n" for item in filled) if len(filled) > 1 else "".join(filled) or None


def _around(before: str, after: str = "") -> Renderer:
    return lambda arguments: before + arguments.at(1) + after if arguments.at(1) else None


def _abbreviation(before: str, separator: str = "\u2013") -> Renderer:
    """Return a renderer (a function that turns a template's arguments into text). The text is the abbreviation
    `before`, and then the first two arguments (a word, or one or two numbers) with `separator` between them. Missing
    arguments are left out."""
    return lambda arguments: (before + separator.join(arguments.filled()[:2])).rstrip()


# ---- names of things ----


def _interlanguage(arguments: Arguments) -> str | None:
    first = arguments.at(1)
    if first in language_codes() and arguments.at(2):  # the old order: {{ill|de|title there|title here|label}}
        return arguments.at(4) or arguments.at(3) or arguments.at(2)
    named = arguments.named
    return named.get("lt") or named.get("display") or named.get("label") or first or None


def _linked_label(position: int) -> Renderer:
    """Return a renderer (a function that turns a template's arguments into text) for a link to another wiki. The text
    is the label (argument `position`), or else the link's target (argument 1)."""
    return lambda arguments: arguments.at(position) or arguments.at(1) or None


def _language_text(arguments: Arguments) -> str | None:
    if len(arguments.positional) == 1 and not arguments.named:
        return ""  # the template only marks a source's language
    return arguments.at(2) or arguments.named.get("text") or arguments.named.get("texte") or None


def _other_language(arguments: Arguments) -> str | None:
    return arguments.at(1) or arguments.named.get("text") or arguments.named.get("script") or None


def _japanese(arguments: Arguments) -> str | None:
    english, *others = [*arguments.positional[:3], ""]
    inside = ", ".join(value for value in others if value)
    if not english:
        return inside or None
    return f"{english} ({inside})" if inside else english


def _chinese(arguments: Arguments) -> str | None:
    shown = [
        value for key, value in arguments.named.items() if value and key not in ("labels", "links", "first", "scase")
    ]
    return ", ".join(dict.fromkeys(shown + arguments.filled())) or None


def _ship(prefix: str) -> Renderer:
    def render(arguments: Arguments) -> str | None:
        first, rest = (prefix, arguments.positional) if prefix else (arguments.at(1), arguments.positional[1:])
        name, hull, form = [*rest, "", "", ""][:3]
        if not name:
            return None
        full = f"{first} {name}".strip()
        if form == "3":
            return hull or None
        if form == "5":
            return name
        return f"{full} ({hull})" if hull and form not in ("2", "4", "6") else full

    return render


def _ship_class(arguments: Arguments) -> str | None:
    name, kind = arguments.at(1), arguments.at(2)
    return (f"{name}-class {kind}" if kind else f"{name} class") if name else None


def _quotation(arguments: Arguments) -> str | None:
    named = arguments.named
    text = arguments.at(1) or named.get("text") or named.get("quote") or named.get("texte") or named.get("citat") or ""
    return f"{PARAGRAPH}{text}{PARAGRAPH}" if text else PARAGRAPH


def _reign(arguments: Arguments) -> str | None:
    years = "\u2013".join(arguments.filled()[:2])
    return f"r. {years}" if years else None


def _circa(arguments: Arguments) -> str | None:
    years = " \u2013 c. ".join(arguments.filled()[:2])
    return f"c. {years}"


def _sic(arguments: Arguments) -> str | None:
    return "".join(arguments.filled()[:2])


def _chemical(arguments: Arguments) -> str | None:
    return "".join(lower_digits(value) if value.isdecimal() else value for value in arguments.positional) or None


def _power_of_ten(arguments: Arguments) -> str | None:
    return "\u00d710" + raise_digits(arguments.at(1).replace("-", "\u2212")) if arguments.at(1) else None


def _spaces(arguments: Arguments) -> str | None:
    return "\u00a0".join(arguments.filled()) or " "


def _number(arguments: Arguments) -> str | None:
    return format_number(arguments.at(1), language=arguments.language) or None


def _superscript(arguments: Arguments) -> str | None:
    return raise_digits(arguments.at(1)) or None


def _subscript(arguments: Arguments) -> str | None:
    return lower_digits(arguments.at(1)) or None


def _stacked(arguments: Arguments) -> str | None:
    return (raise_digits(arguments.named.get("p", "")) + lower_digits(arguments.named.get("b", ""))) or None


def _third_label(arguments: Arguments) -> str | None:
    return arguments.at(3) or arguments.at(2) or None


def _french_link(arguments: Arguments) -> str | None:
    named = arguments.named
    return named.get("texte") or arguments.at(1) or named.get("fr") or named.get("trad") or None


def _flag_country(arguments: Arguments) -> str | None:
    given = arguments.at(1)
    return country_name(given, language=arguments.language) or given or None


def _italian_flag(arguments: Arguments) -> str | None:
    """Render {{Bandiera|ITA|nome}}, which shows a flag and a name, as the name. {{Bandiera|ITA}} shows only a flag, so
    it becomes ""."""
    if arguments.language != "it":
        return arguments.at(1) or None
    if arguments.at(2) != "nome":
        return ""
    name = _flag_country(arguments)
    return None if name is not None and name.isupper() else name


def _shown(arguments: Arguments) -> str | None:
    return arguments.at(1)


def _country(arguments: Arguments) -> str | None:
    return country_name(arguments.at(1), language=arguments.language)


def _music(arguments: Arguments) -> str | None:
    return _MUSIC.get(arguments.at(1).casefold())


_MUSIC = {
    **dict.fromkeys(("flat", "b", "\u266d", "b\u00e9mol", "bemolle"), "\u266d"),
    **dict.fromkeys(("sharp", "#", "\u266f", "di\u00e8se", "diesis"), "\u266f"),
    **dict.fromkeys(("natural", "n", "\u266e", "b\u00e9carre"), "\u266e"),
}


def _second(arguments: Arguments) -> str | None:
    return arguments.at(2)


def _columns(arguments: Arguments) -> str | None:
    text = arguments.named.get("content") or _last(arguments)
    return f"{PARAGRAPH}{text}{PARAGRAPH}" if text else PARAGRAPH


def _twin_town(arguments: Arguments) -> str | None:
    country, town, year = [value.rpartition(PIPE)[2] for value in [*arguments.positional, "", "", ""][:3]]
    return (f"{town}, dal {year}" if year.isdecimal() else town) if town else country or None


def _unless_article(arguments: Arguments) -> str | None:
    """Render the German {{Coordinate|...}}. Return "" if the template has the argument "article" but not "text",
    because then the coordinates are shown beside the title. Otherwise return None."""
    return "" if "article" in arguments.named and "text" not in arguments.named else None


# ---- renderers by kind ----

_PLAIN: dict[str, Renderer] = {
    renderer.__name__.removeprefix("_"): renderer
    for renderer in (
        age, as_of, bare_citation, bracketed_citation, _chemical, _chinese, _circa, cited_work, _columns, convert,
        coordinates, _country, doubted, english_date, english_verse, _flag_country, fraction, _french_link,
        harvard_source, _hole, _interlanguage, _italian_flag, _items, _japanese, _language_text, _last, measure, _music,
        named_text, nothing, _number, _other_language, _power_of_ten, _pronunciation, _quotation, reason_or_text,
        _reign, scientific, _second, _ship_class, _shown, _sic, _spaces, spanish_century, _stacked, _subscript,
        _superscript, textual_citation, _third_label, track_gauge, _twin_town, unit_fr, _unless_article, value,
        verse_number, words_of_date, wrapped,
    )
}  # fmt: skip
_MADE: dict[str, Callable[..., Renderer]] = {
    "abbreviation": _abbreviation,
    "argument": _argument,
    "around": _around,
    "century": century,
    "french_century": french_century,
    "joined": _joined,
    "label": _linked_label,
    "money": money,
    "ship": _ship,
    "sound": sound,
    "text": _constant,
    "verse": verse,
}


def make_renderer(kind: str, *parameters: str | int) -> Renderer:
    """Return a renderer (a function that turns a template's arguments into text). `kind` is the renderer's name in
    templates.tsv, and `parameters` are the values that stand there after the name."""
    return _MADE[kind](*parameters) if kind in _MADE else _PLAIN[kind]
