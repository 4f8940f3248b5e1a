"""Removes the marks of templates from a line, except where words may be missing. Pure.

A mark is a character that stands in the place of a template. A GAP stands for a template that shows nothing, an ASIDE
for a pronunciation or a sound, and a HOLE for a template that cannot be rendered. Every GAP is removed. A sentence that
keeps an ASIDE or a HOLE is dropped later. So an ASIDE or HOLE is removed only where no words can be missing: after a
full stop, where footnotes stand, or together with the parenthesis around it.
"""

from __future__ import annotations

import re

from pipeline.wikitext.names import words
from pipeline.wikitext.tags import ASIDE, GAP, HOLE

MARK = re.compile(f"[{HOLE}{ASIDE}][\ufde0-\ufdef]*")
_MARKS = f"(?:[{HOLE}{ASIDE}][\ufde0-\ufdef]*+)++"
_FOOTNOTE = re.compile(
    rf"([.,;!?\u2026\u060c\u061b\u061f](?:'{{2,5}}|[\"\u201d\u00bb])?){_MARKS}(?=[\s.,;:!?)\]\u2026]|'{{2}}|$)"
    rf"|([\u3002\uff01\uff1f\u0964\u06d4][\u300d\u300f]?){_MARKS}"
)
_AFTER_SENTENCES = re.compile(
    rf"(?<=[.!?\u2026\u3002\uff01\uff1f\u0964\u06d4])\s++(?:[{HOLE}{ASIDE}][\ufde0-\ufdef]*+\s*+)++$"
)
_MARKS_BEFORE_TITLE = re.compile(rf"(?:[{HOLE}{ASIDE}][\ufde0-\ufdef]*+\s*+)++(?=''')")
_NO_WORD = re.compile(r"\W*")  # marks are not word characters
_GAP_BEFORE_POINT = re.compile(
    rf"(?<![ {GAP}])[ {GAP}]++(?<={GAP})(?=[.,;:!?)\]\u2026\u060c\u061b\u061f\u06d4\u0964\u3001\u3002\uff0c])"
)
_GAP_BETWEEN_POINTS = re.compile(rf"[,;\u060c\u3001\uff0c]\s*{GAP}[\s{GAP}]*(?=[,;.\u060c\u06d4\u3001\u3002\uff0c])")
_GAP_BETWEEN_SENTENCES = re.compile(rf"(?<=[^\W\d_A-Z][.!?]){GAP}+(?=[^\W\d_a-z])")
_POINTS = ",;\u060c\u061b\u3001\uff0c\uff1b"
_POINT = re.compile(f"[{_POINTS}]")
_PIECE = re.compile(rf"[(\uff08\[]|[)\uff09\]]|{_POINT.pattern}|[{HOLE}{ASIDE}]")
_CLOSING = {"": "", "(": ")\uff09", "\uff08": ")\uff09", "[": "]"}
_MOST_OPEN = 8
_MOST_CHARACTERS = 600
_WORD = re.compile(r"\w+")
_STARTS_WORD = re.compile(r"-?(?=[^\W_])[^\u0e00-\uffff]")
_LAST_WORD = re.compile(r"(\w+)\W*$")
_PRONUNCIATION = words(
    "ipa afi api mfa \u043c\u0444\u0430 pron pronounced prononce prononcent prononc\u00e9 prononc\u00e9e ausgesprochen "
    "pronuncia pronunciado pronunciada pronunciato pronunciata uttalas uttalat uttales udtales uitgesproken wymawia "
    "wymawiane \u043f\u0440\u043e\u0438\u0437\u043d\u043e\u0441\u0438\u0442\u0441\u044f"
)


def hole_number(mark: str) -> int:
    """Return the number that is written in the mark of a missing template. It is the index of the template's name in
    `TemplatePage.holes`."""
    return int("".join(f"{ord(digit) - 0xFDE0:x}" for digit in mark[1:]), 16)


def settle_marks(line: str) -> str:
    """Return a line without its superfluous marks. A mark is a character in the place of a template. A mark that may
    stand for missing words stays. Return "" if the line has no words besides marks."""
    if GAP in line:
        line = _GAP_BETWEEN_SENTENCES.sub(" ", _GAP_BETWEEN_POINTS.sub("", line))
        line = _GAP_BEFORE_POINT.sub("", line).replace(GAP, "")
    if HOLE not in line and ASIDE not in line:
        return line
    title = _MARKS_BEFORE_TITLE.match(line)
    line = _remove_parentheses(line if title is None else line[title.end() :])
    line = _AFTER_SENTENCES.sub("", line)
    line = _FOOTNOTE.sub(lambda found: found.group(1) or found.group(2), line)
    if _NO_WORD.fullmatch(line):
        return ""
    return line


class _Parenthesis:
    """An open parenthesis, or the whole line if `opening` is "". `items` are the parts of its text between commas. Each
    item is a list of strings, and begins with the comma before it. `asides` says for each item whether it has an ASIDE
    (a mark for a pronunciation or a sound)."""

    __slots__ = ("asides", "has_hole", "items", "opening")

    def __init__(self, opening: str) -> None:
        self.opening = opening
        self.items: list[list[str]] = [[]]
        self.asides = [False]
        self.has_hole = False

    def text(self) -> str:
        return self.opening + "".join("".join(item) for item in self.items)

    def add(self, text: str) -> None:
        if text:
            self.items[-1].append(text)

    def take(self, inner: _Parenthesis, text: str) -> None:
        """Add `text`, the text of the parenthesis `inner`, to this outer parenthesis. If `inner` has a HOLE or an ASIDE
        (characters that stand for missing text), note that the outer parenthesis now has it too."""
        self.add(text)
        self.asides[-1] |= any(inner.asides)
        self.has_hole |= inner.has_hole

    def ends_with_letter(self) -> bool:
        """Return whether the text of this parenthesis so far ends with a letter or digit. Letters of the scripts from
        Thai to Korean do not count, because these scripts need no space before a parenthesis."""
        last = self.items[-1][-1][-1] if self.items[-1] else ""
        return last.isalnum() and last < "\u0e00"

    def introduces(self, opening: str) -> bool:
        """Return whether the text so far introduces the pronunciation in the next parenthesis, which begins with
        `opening`. It does if its last word is one such as "pronounced". It also does if `opening` is [, unless the text
        ends with a title in bold or italics, or with a parenthesis."""
        text = "".join(self.items[-1][-4:])[-60:].rstrip()
        last = _LAST_WORD.search(text)
        if last is not None and last.group(1).casefold() in _PRONUNCIATION:
            return True
        return opening == "[" and not text.endswith(("''", ")", "\uff09", "]"))

    def remove_space(self) -> None:
        """Remove the white space at the end of the string that was added last. Earlier strings keep their white
        space."""
        if self.items[-1]:
            self.items[-1][-1] = self.items[-1][-1].rstrip()
            if not self.items[-1][-1]:
                self.items[-1].pop()


def _remove_parentheses(line: str) -> str:
    """Return the line without the parentheses that have a HOLE (a mark for a template that cannot be rendered), and
    without the parts of parentheses that only give a pronunciation. A parenthesis glued to a word, such as f(x), is
    part of the sentence and stays."""
    opened = [_Parenthesis("")]
    position = 0
    for found in _PIECE.finditer(line):
        piece = found.group()
        innermost = opened[-1]
        innermost.add(line[position : found.start()])
        position = found.end()
        if piece in _CLOSING and len(opened) <= _MOST_OPEN:
            opened.append(_Parenthesis(piece))
        elif any(piece in _CLOSING[outer.opening] for outer in opened):
            while piece not in _CLOSING[opened[-1].opening]:
                _give_up(opened)
            _close(opened.pop(), piece, outer=opened[-1], is_glued=_STARTS_WORD.match(line, position) is not None)
        elif _POINT.match(piece) and innermost.opening:
            innermost.items.append([piece])
            innermost.asides.append(False)
        else:
            innermost.add(piece)
            innermost.asides[-1] |= piece == ASIDE
            innermost.has_hole |= piece == HOLE
    opened[-1].add(line[position:])
    while len(opened) > 1:
        _give_up(opened)
    return opened[0].text()


def _give_up(opened: list[_Parenthesis]) -> None:
    """Treat the innermost parenthesis as unclosed: add its text to the parenthesis around it."""
    inner = opened.pop()
    opened[-1].take(inner, inner.text())


def _close(inner: _Parenthesis, closing: str, *, outer: _Parenthesis, is_glued: bool) -> None:
    """Add to `outer` what remains of the parenthesis `inner`, which the character `closing` has just closed. `is_glued`
    says that a word follows without a space, as in "(Z)-2-butene". A parenthesis with a HOLE (a mark for a template
    that cannot be rendered) is removed. A parenthesis with an ASIDE (a mark for a pronunciation or a sound) loses the
    parts that only give a pronunciation. If the sentence may need the parenthesis, it stays with its marks."""
    if inner.has_hole:
        text = inner.text()
        if inner.opening == "[" or len(text) > _MOST_CHARACTERS or is_glued or outer.ends_with_letter():
            outer.take(inner, text + closing)
        else:
            outer.remove_space()
        return
    if not any(inner.asides):
        outer.add(inner.text() + closing)
        return
    items = ["".join(item) for item in inner.items]
    kept = [_without_aside(item) if aside else item for item, aside in zip(items, inner.asides, strict=True)]
    text = "".join(kept).lstrip(_POINTS + " ").rstrip()
    if text and not ("" in kept and all(map(_names_languages, filter(None, kept)))):
        outer.add(inner.opening + text + closing)
        return
    if not outer.opening and outer.introduces(inner.opening):  # "pronounced [...]" is not complete without it
        outer.take(inner, inner.text() + closing)
        return
    outer.remove_space()
    if inner.opening == "[" and outer.opening:  # "also [...]" says nothing without its pronunciation
        outer.add(ASIDE)
        outer.asides[-1] = True


def _names_languages(item: str) -> bool:
    """Return whether a part of a parenthesis has two to four words in lower case and nothing else. Beside a
    pronunciation, such words name the language of the pronunciation, like the Italian "anche in inglese"."""
    parts = item.strip(_POINTS + " ").split()
    return 1 < len(parts) < 5 and all(part.isalpha() and part.islower() for part in parts)


def _without_aside(item: str) -> str:
    """Return a part of a parenthesis without its pronunciation. Return "" if the rest would only introduce the
    pronunciation, as in "pronounced ..."."""
    start = MARK.search(item)
    before = "" if start is None else item[: start.start()].rstrip(" [/(")
    first, last = _WORD.search(before), _LAST_WORD.search(before[-60:])
    if first is None or last is None or before.endswith(":") or last.group(1).casefold() in _PRONUNCIATION:
        return ""
    if before.endswith("''") or ":" in before or not first.group()[0].islower():  # a name, and no "pronounced"
        return MARK.sub("", item).rstrip()
    return ""
