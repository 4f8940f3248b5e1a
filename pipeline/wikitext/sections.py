"""Leaves out list items and the sections at the end of articles: references, further reading, external links ... Pure.

The BERT paper ignores lists, and these sections consist of lists. tail_sections.tsv has the headings of such sections
by language; the English headings count in every language. A line has a language, `always` or `last`, and case-folded
headings joined by `|`. A section with a heading of kind `last` (Notes, Sources, Literature) may also belong to the
article's subject. So it is left out only if tail_sections.tsv has the headings of all sections after it too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pipeline.config import Treatment
from pipeline.wikitext.blocks import SENTENCE_END, Block
from pipeline.wikitext.names import words


class LeftOut(NamedTuple):
    """A list item or a section that is not in the text. `reason` is the name of the counter that counts it, and
    `detail` says what was left out."""

    reason: str
    detail: str


_LIST_ITEM, _TAIL_SECTION = "list_item", "tail_section"
_DETAIL_CHARACTERS = 80
_FEWEST_WORDS = {"ko": 3}
_FEWEST_WORDS_ELSEWHERE = 5
_FEWEST_CHARACTERS = 15
_WITHOUT_MARKS = ("th", "lo")
# In these languages, a space does not separate words.
_UNSPACED = words("zh zh-yue yue wuu gan hak zh-classical lzh ja my shn mnw km bo dz")
_FEWEST_WITHOUT_MARKS = 60
_COLONS = (":", "\uff1a")
# Numbers of books and pages; a year after authors, before a title; or a year at the end, after a comma and a place.
_CITATION = re.compile(
    r"\b(?:ISBN|ISSN|OCLC|LCCN|JSTOR|PMID|doi|DOI)\b|\b(?:pp|p|vol|Vol|S|ss?|str)\.\s?\d+(?:[-\u2013\u2014]\d+)?\.?\s*\Z"
    r"|(?:\A.{0,80}|,\s[^\W\d_][^,;()]{0,25}\s)\((?:1[5-9]|20)\d\d[a-z]?\)[.:]\s"
    r"|\.\s(?:1[5-9]|20)\d\d[a-z]?[.:]\s|,\s(?:1[5-9]|20)\d\d,\s[\"\u201c]"
    r"|[,:]\s(?:[^\W\d][\w'-]*,?\s)?(?:1[5-9]|20)\d\d\.?\s*\Z"
)
_AND = re.compile(
    r"\s*[,;/&+\u3001\u30fb\u00b7]\s*|\s+(?:and|und|et|y|e|i|og|och|en|ja|a|\u0438|\u0456|\u0442\u0430|\ubc0f|ve|va|dan)\s+"
)
# A number before a heading; something in parentheses, or a copied "[edit]", after it.
_AROUND_HEADING = re.compile(r"\A\d+(?:\.\d+)*[.)]?\s+|\s?(?:[(\uff08][^()\uff08\uff09]*[)\uff09]|\[[^\[\]]*\])\s*\Z")
_AROUND = " \t:.'\"\u00ab\u00bb\u201c\u201d\u2013-"


def choose_blocks(
    blocks: Sequence[Block], *, language: str, lists: Treatment, tail_sections: Treatment
) -> tuple[list[str], list[LeftOut]]:
    """Return the lines of a page that are kept, without headings, and a list of what was left out. `lists` says what
    becomes of list items, and `tail_sections` what becomes of sections like External links."""
    tails = _tail_headings(blocks, language=language) if tail_sections != "keep" else frozenset()
    kept: list[str] = []
    left_out: list[LeftOut] = []
    tail_level = 0  # of the tail section's heading, 0 outside of tail sections
    heading = ""
    follows_label = False  # the block before is a bold line, or a few words and a colon: the title of a list
    for number, (kind, text) in enumerate(blocks):
        if kind[:1] == "=":
            follows_label = False
            if not tail_level or len(kind) <= tail_level:
                tail_level, heading = (len(kind), text) if number in tails else (0, "")
            continue
        if not text:
            continue
        treatment = tail_sections if tail_level else lists if kind in ("*", ":") else "keep"
        if treatment == "drop" and kind == ":" and not tail_level:
            treatment = "sentences"  # quotations are indented, but code, formulas and results too
        if treatment == "keep" or (treatment == "sentences" and is_whole_sentence(text, language=language)):
            kept.append(text)
            if kind == "'":
                follows_label = len(kept) > 1  # the first line of a page names its subject
            else:
                follows_label = not kind and text.endswith(_COLONS) and not _is_long(text, language=language)
            continue
        if not tail_level:
            if follows_label:
                left_out.append(LeftOut(_LIST_ITEM, kept.pop()[:_DETAIL_CHARACTERS]))
            left_out.append(LeftOut(_LIST_ITEM, text[:_DETAIL_CHARACTERS]))
        elif heading:
            left_out.append(LeftOut(_TAIL_SECTION, heading[:_DETAIL_CHARACTERS]))
            heading = ""  # a section counts once
        follows_label = False
    return kept, left_out


def is_whole_sentence(line: str, *, language: str) -> bool:
    """Return whether a line is probably a whole sentence. It must end like a sentence and must not look like an entry
    of a bibliography. It must have at least five words (three in Korean) or, in a script without spaces, 15 characters.
    In Thai and Lao, whose sentences end without a mark, it must have 60 characters instead."""
    if _CITATION.search(line) is not None:
        return False
    if language in _WITHOUT_MARKS:
        return len(line) >= _FEWEST_WITHOUT_MARKS
    return SENTENCE_END.search(line) is not None and _is_long(line, language=language)


def _is_long(line: str, *, language: str) -> bool:
    """Return whether a line is long enough for a short sentence. The length is counted in words, or in characters if
    the script has no spaces between words."""
    if language in _UNSPACED and not line.isascii():
        return len(line) >= _FEWEST_CHARACTERS
    count = line.count(" ") + 1
    return count >= _FEWEST_WORDS.get(language, _FEWEST_WORDS_ELSEWHERE) or len(line) >= _FEWEST_CHARACTERS * count


def _tail_headings(blocks: Sequence[Block], *, language: str) -> frozenset[int]:
    """Return the indices in `blocks` of the headings whose sections are to be left out."""
    always, last = headings_of(language)
    headings = [(number, block) for number, block in enumerate(blocks) if block.kind[:1] == "="]
    top = max(2, min((len(block.kind) for _, block in headings), default=2))
    tails: set[int] = set()
    last_level = top  # headings of kind `last` count if they have at most this level
    for number, (kind, text) in reversed(headings):
        heading = _AROUND_HEADING.sub("", text.casefold().replace("_", " ")).strip(_AROUND)
        parts = {heading} if heading in always else {part.strip(_AROUND) for part in _AND.split(heading)} - {""}
        is_tail = bool(parts) and parts <= always | last and (len(kind) <= last_level or bool(parts & always))
        if is_tail:
            tails.add(number)
        elif len(kind) <= top:
            last_level = 0
    return frozenset(tails)


@cache
def headings_of(language: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return two sets of headings, in `language` and in English. A section is always left out if its heading is in the
    first set. If its heading is in the second set, it is left out only at the end of an article."""
    found: dict[str, set[str]] = {"always": set(), "last": set()}
    codes = {language, language.partition("-")[0], "en"}
    for line in Path(__file__).with_name("tail_sections.tsv").read_text(encoding="utf-8").splitlines():
        code, kind, headings = line.split("\t")
        if code in codes:
            found[kind].update(headings.split("|"))
    return frozenset(found["always"]), frozenset(found["last"])
