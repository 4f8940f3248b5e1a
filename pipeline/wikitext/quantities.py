"""Renders numbers, measures, money and dates of inline templates, with the separators of the wiki's language. Pure.

Measures are not converted: {{convert|1300|mi|km}} becomes "1,300 mi". A renderer (a function that turns a template's
arguments into text) returns None if it does not understand the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from pipeline.wikitext.names import words
from pipeline.wikitext.tags import raise_digits


class Arguments(NamedTuple):
    """The arguments of a template. `positional` has those without a name, in order, and `named` maps case-folded names
    to values. `language` is the wiki's language."""

    positional: list[str]
    named: dict[str, str]
    language: str

    def at(self, position: int) -> str:
        """Return the positional argument at `position` (the first is at 1), or "" if it is missing."""
        return self.positional[position - 1] if len(self.positional) >= position else ""

    def filled(self) -> list[str]:
        """Return the positional arguments that are not empty."""
        return [value for value in self.positional if value]


Renderer: TypeAlias = Callable[[Arguments], str | None]

# ---- numbers, units, money ----

_PLAIN_NUMBER = re.compile(r"([-+\u2212]?)(\d+)(\.\d+)?")
# Separators of thousands and of decimals. In every other language these are "," and ".".
_SEPARATORS = {
    **dict.fromkeys(
        words("de it nl pt da id tr el ca ro hr sr sh bs sl mk vi eu gl is fo lb fy nds scn vec jv su"), (".", ",")
    ),
    **dict.fromkeys(
        words("es ru uk pl cs sv fi no hu bg sk lt lv et nn be be-tarask kk ky ka eo af sq tt ba"), ("\u00a0", ",")
    ),
    "fr": ("\u202f", ","),
}


def format_number(text: str, *, language: str) -> str:
    """Return a plain number with the separators of the language, or any other text unchanged."""
    found = _PLAIN_NUMBER.fullmatch(text.replace(",", "") if language in ("en", "simple") else text)
    if found is None:
        return text
    group, point = _SEPARATORS.get(language, (",", "."))
    sign, whole, fraction = found.groups()
    if len(whole) > 4 or (len(whole) == 4 and group != "\u00a0"):
        whole = f"{int(whole):,}".replace(",", group)
    return sign + whole + (point + fraction[1:] if fraction else "")


_RANGE_WORDS = {
    **{word: f" {word} " for word in ("to", "and", "or", "by", "+", "to about", "through")},
    **dict.fromkeys(("-", "\u2013"), "\u2013"),
    **dict.fromkeys(("xx", "*", "\u00d7"), " \u00d7 "),
    **dict.fromkeys(("+/-", "\u00b1"), " \u00b1 "),
    "x": " by ",
    "to(-)": " to ",
    "and(-)": " and ",
    ",": ", ",
    "/": "/",
}
# Units that are not written like their code.
_UNIT_SIGNS = {
    "C": "\u00b0C",
    "F": "\u00b0F",
    "sqmi": "sq mi",
    "sqkm": "km\u00b2",
    "km2": "km\u00b2",
    "m2": "m\u00b2",
    "m3": "m\u00b3",
    "cm2": "cm\u00b2",
    "cm3": "cm\u00b3",
    "mm2": "mm\u00b2",
    "km3": "km\u00b3",
    "sqft": "sq ft",
    "cuft": "cu ft",
    "cuin": "cu in",
    "sqin": "sq in",
    "kph": "km/h",
    "foot": "ft",
    "mile": "mi",
    "inch": "in",
    "cuyd": "cu yd",
    "usgal": "US gal",
    "impgal": "imp gal",
    "lbs": "lb",
    "PD/sqmi": "/sq mi",
    "PD/km2": "/km\u00b2",
    "ftin": "ft",
    "deg": "\u00b0",
    "oilbbl": "barrels",
    "oilbbl/d": "barrels per day",
}
_FACTOR = re.compile(r"(e3|e6|e9|e12|[KMG](?=oilbbl))(\w.*)")
_FACTORS = {
    **dict.fromkeys(("e3", "K"), "thousand"),
    **dict.fromkeys(("e6", "M"), "million"),
    **dict.fromkeys(("e9", "G"), "billion"),
    "e12": "trillion",
}


def convert(arguments: Arguments) -> str | None:
    """Render a measure with the symbol of its unit, without converting it: 1,300 mi; 5 to 7 km; 6 ft 2 in. Return None
    if there is no unit."""
    values = arguments.positional
    text, position = "", 0
    while position + 1 < len(values):
        text += format_number(values[position], language=arguments.language)
        joint = values[position + 1]
        if joint not in _RANGE_WORDS:
            factor = _FACTOR.fullmatch(joint)
            if factor is not None:
                text, joint = f"{text} {_FACTORS[factor.group(1)]}", factor.group(2)
            unit = _UNIT_SIGNS.get(joint, joint)
            if unit == "ft" and position + 3 < len(values) and values[position + 3] in ("in", "inch"):
                return f"{text} ft {values[position + 2]} in"
            hyphen = arguments.named.get("adj") == "on" and unit.isalpha()
            return f"{text}{'-' if hyphen else ' '}{unit}" if text.strip() and unit else None
        text += _RANGE_WORDS[joint]
        position += 2
    return None


def value(arguments: Arguments) -> str | None:
    """Render a number with its uncertainty, power of ten and unit. Return None if there is no number."""
    number = arguments.at(1)
    if not number:
        return None
    text = format_number(number, language=arguments.language)
    if arguments.at(2):
        text += f" \u00b1 {arguments.at(2)}"
    if arguments.named.get("e"):
        text = f"({text})" if arguments.at(2) else text
        text += "\u00d710" + raise_digits(arguments.named["e"])
    unit = arguments.named.get("u") or arguments.named.get("ul") or arguments.named.get("unit\u00e0") or ""
    return f"{text} {unit}".rstrip()


def measure(arguments: Arguments) -> str | None:
    """Render the Italian {{M|12|k|B}}, a number with a unit and its prefix, or {{M|12|0.1|km}}, with an uncertainty.
    Return None if there is no number."""
    number, error, unit = [*arguments.positional, "", "", ""][:3]
    if not number:
        return None
    text = format_number(number, language=arguments.language)
    if re.match(r"[+-]?\d", error):
        text += f" \u00b1 {error.lstrip('+-')}"
        error = ""
    power = arguments.named.get("e") or ""
    if power:
        text += "\u00d710" + raise_digits(power.replace("-", "\u2212"))
    unit = error.strip("-") + unit.strip("-") or arguments.named.get("u") or arguments.named.get("ul") or ""
    return f"{text} {unit}".rstrip()


def scientific(arguments: Arguments) -> str | None:
    """Render {{exp|1.9|19}} as a number times a power of ten. Return None unless both arguments are given."""
    if not arguments.at(1) or not arguments.at(2):
        return None
    return f"{arguments.at(1)}\u00d710" + raise_digits(arguments.at(2).replace("-", "\u2212"))


def unit_fr(arguments: Arguments) -> str | None:
    """Render a number and its unit, for French templates that give the exponent after each unit: 10 km/h from
    {{unite|10|km||h|-1}}. Return None if there is no number."""
    number, *units = arguments.positional or [""]
    if not number:
        return None
    text = format_number(number, language=arguments.language)
    power = arguments.named.get("e")
    if power:
        text += "\u00d710" + raise_digits(power.replace("-", "\u2212"))
    shown = ""
    for position, unit in enumerate(units):
        if unit.lstrip("-\u2212").isdecimal():
            shown += raise_digits(unit)
        elif unit:
            shown += ("\u22c5" if position and shown else "") + unit
    return f"{text} {shown}".rstrip()


def fraction(arguments: Arguments) -> str | None:
    """Render a fraction from one to three numbers: {{frac|2}} becomes 1/2, {{frac|1|2}} becomes 1/2, and {{frac|3|1|2}}
    becomes 3 1/2. Return None for other arguments."""
    filled = arguments.filled()
    if len(filled) == 1:
        return f"1/{filled[0]}"
    if len(filled) == 2:
        return f"{filled[0]}/{filled[1]}"
    return f"{filled[0]} {filled[1]}/{filled[2]}" if len(filled) == 3 else None


def money(sign: str) -> Callable[[Arguments], str]:
    """Return a renderer (a function that turns a template's arguments into text) for a sum of money. The currency's
    `sign` stands before the sum."""
    return lambda arguments: sign + format_number(arguments.at(1), language=arguments.language)


_GAUGE = re.compile(r"([\d.,]+)\s*(mm|cm|m|ft|in)")


def track_gauge(arguments: Arguments) -> str | None:
    """Render a railway's gauge: {{RailGauge|1435mm}} becomes 1,435 mm. Return None for other forms."""
    found = _GAUGE.fullmatch(arguments.at(1))
    return f"{format_number(found.group(1), language=arguments.language)} {found.group(2)}" if found else None


_DEGREE_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_DEGREES = ("\u00b0", "\u2032", "\u2033")


def coordinates(arguments: Arguments) -> str | None:
    """Render coordinates in a sentence, such as {{coord|13|19|N|169|9|W}} and {{coord|1.5|-2}}. Return "" if they are
    shown beside the title, and None if they are not understood."""
    display = arguments.named.get("display", "inline").replace(" ", "").split(",")
    if not {"inline", "i", "it", "ti"} & set(display):
        return ""
    values = arguments.positional
    if len(values) > 1 and all(map(_DEGREE_NUMBER.fullmatch, values[:2])) and not set(values) & set("NSEWO"):
        pairs = zip(values, ("NS", "EW"), strict=False)
        return " ".join(f"{value.lstrip('-')}\u00b0{sign[value.startswith('-')]}" for value, sign in pairs)
    shown: list[str] = []
    for hemispheres in ("NS", "EWO"):
        end = next((place for place, value in enumerate(values) if value and value in hemispheres), -1)
        if not 1 <= end <= 3 or not all(re.fullmatch(r"[\d.]+", value) for value in values[:end]):
            return None
        shown.append("".join(map("".join, zip(values[:end], _DEGREES, strict=False))) + values[end])
        values = values[end + 1 :]
    return " ".join(shown)


# ---- dates ----

_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def _date_text(year: str, month: str, day: str, *, day_first: bool) -> str | None:
    if not year or (month.isdecimal() and not 1 <= int(month) <= 12):
        return None
    name = _MONTHS[int(month) - 1] if month.isdecimal() else month
    if not name:
        return year
    if not day:
        return f"{name} {year}"
    day = day.lstrip("0") or day
    return f"{day} {name} {year}" if day_first else f"{name} {day}, {year}"


def english_date(arguments: Arguments) -> str | None:
    """Render a date from year, month and day. Return None if the wiki is not in English, or if there is no year."""
    if arguments.language not in ("en", "simple"):
        return None
    day_first = arguments.named.get("df", "").casefold() in ("y", "yes", "true", "1")
    return _date_text(arguments.at(1), arguments.at(2), arguments.at(3), day_first=day_first)


def as_of(arguments: Arguments) -> str | None:
    """Render "As of" (or "Since") and a date, or the argument "alt" in place of both. Return None if there is no
    date."""
    day_first = arguments.named.get("df", "").casefold() != "us"
    date = _date_text(arguments.at(1), arguments.at(2), arguments.at(3), day_first=day_first)
    if date is None:
        return None
    alternative = arguments.named.get("alt")
    word = "since" if arguments.named.get("since") else "as of"
    return alternative or f"{word if arguments.named.get('lc') else word.capitalize()} {date}"


def words_of_date(arguments: Arguments) -> str | None:
    """Render a date that is given as day, month in words, and year, as in the French {{date|1|janvier|1900|...}}.
    Return None for other forms."""
    filled = arguments.filled()
    if len(filled) == 1:
        return filled[0]
    day, month, year = [*arguments.positional, "", ""][:3]
    if not month or month.isdecimal() or not (day or year) or (year and not year[0].isdecimal()):
        return None
    return " ".join(part for part in (day, month, year) if part)


def age(arguments: Arguments) -> str | None:
    """Return how many years lie between two dates, as text. Return None for a person's age today, because the dump does
    not say what date today is."""
    values = arguments.positional[:6]
    if len(values) < 6 or not all(value.isdecimal() for value in values):
        return None
    first, last = list(map(int, values[:3])), list(map(int, values[3:]))
    return str(last[0] - first[0] - (last[1:] < first[1:]))
