"""Renders centuries and ordinals: the French {{s2|XVI|XVII}} and {{Ier}}, the Spanish {{siglo|XIX||s}}. Pure.

A renderer (a function that turns a template's arguments into text) returns None if it does not understand the
arguments.
"""

from __future__ import annotations

import re

from pipeline.wikitext.quantities import Arguments, Renderer

_ROMAN = re.compile("[IVXLCDM]+")
_ORDINAL = "(?:[IVXLCDM]+|\\d{1,4})(?:ers?|res?|e|es|\u00e8mes?|nde?s?|vet)"
_ORDINAL_TEMPLATE = re.compile(
    rf"{_ORDINAL}(?: (?:et|au|ou|-|\u2013) {_ORDINAL})?(?: [a-z\u00e9\u00fb\u00e8]+\.?){{0,2}}(?: (?:av|ap)\. J\.-C\.)?"
)
_BEFORE_CHRIST = {"a": "a.\u00a0C.", "a.c.": "a.\u00a0C.", "ac": "a.\u00a0C.", "d": "d.\u00a0C.", "d.c.": "d.\u00a0C."}


def ordinal_template(head: str) -> str | None:
    """Return the text of French templates that are named by what they show, such as {{Ier}} and {{2e}}, or None for any
    other name."""
    name = " ".join(head.replace("_", " ").split())
    return name if _ORDINAL_TEMPLATE.fullmatch(name) else None


def french_century(noun: str, after: str = "") -> Renderer:
    """Return a renderer (a function that turns a template's arguments into text) for one or two centuries, such as
    "XIXe siecle" and "IIIe et IXe siecles". `noun` is the word for century (with its accent), and `after` follows it.
    The renderer expects numbers, each with or without its ending, and the words between the numbers."""

    def render(arguments: Arguments) -> str | None:
        shown: list[str] = []
        numbers = 0
        plural = False
        for value in arguments.positional:
            number = value.upper()
            if _ROMAN.fullmatch(number):
                if numbers and _ROMAN.fullmatch(shown[-1].rstrip("er")):
                    shown.append("et")
                    plural = True
                shown.append(number + ("er" if number == "I" else "e"))
                numbers += 1
            elif value == "s":
                plural = True
            elif value and value not in ("e", "er", "\u00e8me", "eme", noun):
                shown.append("\u2013" if value in ("-", "--") else value)
        if not numbers or not _ROMAN.fullmatch(shown[-1].rstrip("er")):
            return None
        unit = f" {noun}{'s' if plural and len(noun) > 2 else ''}" if noun else ""
        return " ".join(shown) + unit + after

    return render


def spanish_century(arguments: Arguments) -> str | None:
    """Render {{siglo|XIX||s}} as "siglo XIX" and {{siglo|I|a}} as "I a. C.". Return None for two centuries."""
    if not arguments.at(1) or _ROMAN.fullmatch(arguments.at(2)):
        return None
    noun = {"s": "siglo ", "S": "Siglo "}.get(arguments.at(3), "")
    era = _BEFORE_CHRIST.get(arguments.at(2).replace(" ", "").casefold(), "")
    return f"{noun}{arguments.at(1)} {era}".rstrip()


def century(noun: str) -> Renderer:
    """Return a renderer (a function that turns a template's arguments into text) for one century. The text is `noun`
    and then the century's number: "segle XIX". For two centuries the renderer returns None."""

    def render(arguments: Arguments) -> str | None:
        numbers = [value for value in arguments.filled() if _ROMAN.fullmatch(value)]
        return f"{noun} {numbers[0]}" if len(numbers) == 1 else None

    return render
