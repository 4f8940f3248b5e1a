"""Renders templates of citations, doubted text and sounds, such as {{harvtxt|Boole|1854}} and {{cn|text}}. Pure.

A template that marks text as doubtful contains this text in most wikis. In the English Wikipedia, such a template
follows the text. A renderer (a function that turns a template's arguments into text) returns "" if the template shows
nothing, or None if it does not understand the arguments.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from pipeline.wikitext.quantities import Arguments, Renderer

_TEXT_NAMES = (
    "text",
    "texte",
    "testo",
    "texto",
    "tekst",
    "besedilo",
    "\u0442\u0435\u043a\u0441\u0442",
    "\u6587",
    "content",
)
_DATE_NAMES = (
    "date",
    "data",
    "datum",
    "fecha",
    "dato",
    "dat",
    "p\u00e4iv\u00e4ys",
    "tarih",
    "\u0434\u0430\u0442\u0430",
    "time",
)
_DATE = re.compile(
    r"(?:19|20)\d\d[-/.]\d\d?(?:[-/.]\d\d?)?|\d\d?[-/.]\d\d?[-/.](?:19|20)\d\d|(?:19|20)\d{6}(?:\d{6})?"
    r"|dat[ae]|datum|fecha|dato|(?:19|20)\d\d\s?[\u5e74\ub144].{0,40}",
    re.DOTALL,
)
_PERHAPS_DATE = re.compile(r"(?:\w+\.?\s){0,4}(?:19|20)\d\d|\d+", re.DOTALL)


def wrapped(arguments: Arguments) -> str | None:
    """Render the text that a template wraps. This is the first argument, or else a named argument such as text=. Return
    None if there is no text."""
    return arguments.at(1) or named_text(arguments) or None


def named_text(arguments: Arguments) -> str | None:
    """Render the text of {{clarify|text=...}}. Return "" if the template has no such argument. In the English
    Wikipedia, the other arguments of a template that marks text as doubtful are reasons and dates."""
    return next((found for name in _TEXT_NAMES if (found := arguments.named.get(name))), "")


def reason_or_text(arguments: Arguments) -> str | None:
    """Render a template such as {{clarify|reason|date=...}} in a wiki where its argument is a reason by the template's
    documentation. Editors also put the doubtful text there. So return None if there is such an argument that is no
    date. Otherwise return the text that is named as such, or ""."""
    first = arguments.at(1)
    is_clear = not first or _DATE.fullmatch(first) or _PERHAPS_DATE.fullmatch(first)
    return named_text(arguments) or ("" if is_clear else None)


def doubted(arguments: Arguments) -> str | None:
    """Return the text that a template such as {{cn|text}} marks as doubtful. Return "" if the template has no text, or
    has only a date.

    Return None if it is not clear whether the argument is a date or a text with a year, as in {{cn|nel 1987}}.
    """
    text = wrapped(arguments) or ""
    filled = arguments.filled()
    if text and any(map(arguments.named.get, _DATE_NAMES)):
        return text
    if not text or _DATE.fullmatch(text) or (len(filled) > 1 and all(value.isdecimal() for value in filled)):
        return ""
    return None if _PERHAPS_DATE.fullmatch(text) else text


# ---- citations inside a sentence ----

_PAGES = (("p", "p. "), ("pp", "pp. "), ("page", "p. "), ("pages", "pp. "), ("s", "s. "), ("loc", ""), ("at", ""))


def _short_citation(arguments: Arguments) -> tuple[str, str, str] | None:
    """Return (authors, year, place) of a short citation. The year and the place are "" if they are missing. Return None
    if there are no authors."""
    filled = arguments.filled()
    year = filled.pop() if len(filled) > 1 and re.match(r"(?:c\. )?\d|n\.d", filled[-1]) else ""
    if not filled:
        return None
    authors = ", ".join(filled[:-1]) + " & " + filled[-1] if 1 < len(filled) < 4 else filled[0]
    place = next((sign + found for name, sign in _PAGES if (found := arguments.named.get(name))), "")
    return authors + (" et al." if len(filled) > 3 else ""), year, place


def textual_citation(arguments: Arguments) -> str | None:
    """Render {{harvtxt|Boole|1854|p=3}} as "Boole (1854, p. 3)"."""
    cited = _short_citation(arguments)
    if cited is None:
        return None
    inside = ", ".join(filter(None, cited[1:]))
    return f"{cited[0]} ({inside})" if inside else cited[0]


def bare_citation(arguments: Arguments) -> str | None:
    """Render {{harvnb|Boole|1854|p=3}} as "Boole 1854, p. 3"."""
    cited = _short_citation(arguments)
    return None if cited is None else ", ".join(filter(None, (f"{cited[0]} {cited[1]}".strip(), cited[2])))


def bracketed_citation(arguments: Arguments) -> str | None:
    """Render {{harv|Boole|1854|p=3}} as "(Boole 1854, p. 3)"."""
    text = bare_citation(arguments)
    return None if text is None else f"({text})"


def harvard_source(arguments: Arguments) -> str | None:
    """Render {{harvs|txt|first=George|last=Boole|year=1854}} as "George Boole (1854)", without "txt" as "(George Boole
    1854)", and with "nb" without brackets. Return None for several authors."""
    named = arguments.named
    author = " ".join(filter(None, (named.get(kind) or named.get(f"{kind}1") for kind in ("first", "last"))))
    years = ", ".join(filter(None, (named.get(name) for name in ("year", "year1", "year2", "year3"))))
    place = next((sign + found for name, sign in _PAGES if (found := named.get(name))), "")
    modes = {"txt", "nb"} & {*arguments.positional, *named}
    if not author or not years or named.get("last2") or len(modes) > 1:
        return None
    if "txt" in modes:
        return f"{author} ({', '.join(filter(None, (years, place)))})"
    text = ", ".join(filter(None, (f"{author} {years}", place)))
    return text if modes else f"({text})"


def cited_work(arguments: Arguments) -> str | None:
    """Render the Italian {{Cita|key|p. 5|label}} as the label and the page. Without a label, the key is shown in its
    place."""
    label = arguments.at(3) or arguments.at(1)
    return ", ".join(filter(None, (label, arguments.at(2)))) if label else None


# ---- verses ----


def verse(separator: str) -> Renderer:
    """Return a renderer (a function that turns a template's arguments into text) for a verse that is given as book,
    chapter and verse. With the separator "," the text is "Mt 5,3"."""

    def render(arguments: Arguments) -> str | None:
        filled = arguments.filled()
        if len(filled) < 2:
            return None
        if len(filled) > 2 and filled[1].isdecimal() and re.match(r"\d", filled[2]):
            return f"{filled[0]} {filled[1]}{separator}{filled[2]}"
        return f"{filled[0]} {filled[1]}"

    return render


def english_verse(arguments: Arguments) -> str | None:
    """Render {{bibleverse|1|Corinthians|13:4|KJV}} as "1 Corinthians 13:4", and {{bibleverse|Matthew|5:3}} as "Matthew
    5:3". If an argument follows the name of the translation (KJV), this argument is a label, and only the label is
    shown."""
    number, book, place, _, label = _parts_of_verse(arguments)
    if label and not label.isdecimal():
        return label
    return f"{number} {book} {place}".strip() if book and place else None


def verse_number(arguments: Arguments) -> str | None:
    """Render {{bibleverse-nb|1|Corinthians|13:4}} as "13:4"."""
    return _parts_of_verse(arguments)[2] or None


def _parts_of_verse(arguments: Arguments) -> tuple[str, ...]:
    """Return (book number, book, place, translation, label), such as ("1", "Corinthians", "13:4", "KJV", ""). Missing
    parts are ""."""
    values = arguments.positional
    numbered = bool(values) and values[0] in ("", "1", "2", "3", "4", "I", "II", "III")
    return tuple([*([] if numbered else [""]), *values, "", "", "", "", ""][:5])


# ---- sounds ----


def sound(position: int) -> Renderer:
    """Return a renderer (a function that turns a template's arguments into text) for a sound. The text is the sound's
    label (argument `position`). It is "" if there is no label, or if the label only says "listen", because such a label
    is a button."""

    return lambda arguments: without_button(arguments.at(position))


def without_button(label: str) -> str:
    """Return the label of a sound, or "" if it only says "listen"."""
    said = label.casefold().strip("[]() ").split()
    return "" if not said or (len(said) < 5 and not _buttons().isdisjoint(said)) else label


@cache
def _buttons() -> frozenset[str]:
    lines = Path(__file__).with_name("sounds.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("# "))
