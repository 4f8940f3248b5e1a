"""Finds the books in a file of one or several e-texts of Project Gutenberg, and returns their paragraphs. Pure.

The text that Project Gutenberg added (header, licence, small print) is left out.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice, pairwise, zip_longest
from operator import attrgetter
from typing import NamedTuple

from pipeline.cleaning import normalize_text
from pipeline.sources.wrapped_lines import join_wrapped

# The lines that tell where e-texts begin and end. Small print and licence stand before or after a book.
_START = re.compile(r"\W*START OF (?:THE |THIS )?PROJECT GUTENBERG", re.I)
_PRINT = re.compile(r"\W*START\W+THE SMALL PRINT", re.I)
_PRINT_END = re.compile(
    r"\W*(?:END\W+THE SMALL PRINT|END OF THE SMALL PRINT"
    r"|THE FULL PROJECT GUTENBERG LICEN[CS]E (?:STANDS|IS) AT THE END)",
    re.I,
)
_END = re.compile(
    r"\W*(?:END OF (?:THE |THIS )?PROJECT GUTENBERG|END OF (?:\w+ ){0,3}PROJECT GUTENBERG|START: FULL LICEN[CS]E"
    r"|THE FULL PROJECT GUTENBERG(?:\W*TM|\u2122)? LICEN[CS]E\W*$|UPDATED EDITIONS WILL REPLACE THE PREVIOUS ONE"
    r"|(?:END|FIN|ENDE) (?:OF |DE |DU |DIESES |DES )?(?:THIS |CE |THE )?PROJE[CK]T GUTENBERG"
    r"|ENDE DIESES (?:ETEXTS?|E-?BOOKS?)\b)",
    re.I,
)
_LICENCE_END = re.compile(r".*\bnewsletter to hear about new e-?(?:books|texts)\W*$", re.I)
_FILE_NAME = re.compile(r"\W*This file should be named \S+\.(?:txt|zip)", re.I)
_LETTERHEAD = re.compile(
    r"\W*(?:THE )?(?:THIS IS THE )?PROJECT GUTENBERG(?:'S|\u2019S)? (?:E-?TEXT|E-?BOOK|EDITION)\b"
    r"|\W*PROJECT GUTENBERG(?:'S|\u2019S) .*\bBY\b",
    re.I,
)
_SURE_LETTERHEAD = re.compile(
    r"\W*(?:THE )?(?:THIS IS THE )?PROJECT GUTENBERG(?:'S|\u2019S)? (?:(?:E-?TEXT|E-?BOOK|EDITION) OF \S|.*, BY [A-Z])",
    re.I,
)
_KINDS = {
    "start": _START,
    "print": _PRINT,
    "print_end": _PRINT_END,
    "end": _END,
    "licence_end": _LICENCE_END,
    "file_name": _FILE_NAME,
}
# Every mark contains one of these.
_IN_MARKS = (
    *("gutenberg", "small print", "full licen", "updated editions", "ende dieses", "file should be named"),
    "newsletter to hear",
)
_OF_GUTENBERG = re.compile(r"PROJE[CK]?T GUTENBERG|GUTENBERG\.(?:ORG|NET)", re.I)
_LONGEST_HEADER, _LONGEST_LETTERHEAD, _FEWEST_BEFORE_LETTERHEAD = 600, 30, 10
_FEWEST_LINES = 50
"""Text outside of all e-texts is a book of its own if it has at least this number of lines that are not blank."""
_CREDITS = re.compile(
    r"(?:produced by|this (?:e-?text|e-?book|file) was (?:produced|prepared|created)|e-?text prepared by|prepared by"
    r"|transcribed (?:by|from)|html version by|\[?this file last updated)",
    re.I,
)
_HEADER_FIELD = re.compile(
    r"\W*(?:(?:title|author|editor|translator|illustrator|release date|posting date|last updated|most recently updated"
    r"|original publication|language|character set encoding|edition|credits)(?: ?: |:$)"
    r"|this e-?book is for the use of)",
    re.I,
)
_ILLUSTRATION = re.compile(r"\[(?:Illustration|Transcriber'?s? note|Sidenote|Frontispiece)\b[^\[\]]{0,2000}\]", re.I)
_UNDERSCORES = re.compile(r"(?<![A-Za-z0-9])_([^_\n]{1,300})_(?![A-Za-z0-9])")
_EMPHASIS = re.compile(r"(?<![\w=*])([=*])([A-Za-z][^=*\n]{0,200}?)\1(?![\w=*])")


def file_books(text: str) -> list[list[str]]:
    """Return the books of a file, each as a list of its non-empty paragraphs. A paragraph is one line.

    A file with several e-texts of Project Gutenberg has several books. Any other file is one book. What Project
    Gutenberg added is left out.
    """
    text = normalize_text(text.replace("\r\r\n", "\n"))  # line breaks that were converted twice
    lines = [line.rstrip() for line in text.split("\n")]
    marks = _find_marks(lines, among=_lines_with(text.lower(), words=_IN_MARKS))
    return [_list_paragraphs(book) for book in _cut_boilerplate(lines, marks=marks)] or [[]]


def book_paragraphs(text: str) -> list[str]:
    """Return the paragraphs of all books of a file (see file_books)."""
    return [paragraph for book in file_books(text) for paragraph in book]


def _list_paragraphs(lines: list[str]) -> list[str]:
    return [clean for clean in map(_clean_paragraph, join_wrapped(lines)) if clean]


class _Mark(NamedTuple):
    """A line that Project Gutenberg added, such as the beginning of its licence. `kind` is a key of _KINDS, or
    "letterhead" (the title line of an e-text). The end of the file is a mark too, with the kind "last"."""

    line: int
    kind: str


class _Stretch(NamedTuple):
    """The lines between two marks (lines that Project Gutenberg added). `opening` is the mark before the lines, or None
    at the beginning of the file, and `closing` is the mark after the lines. `first` is the index of the first line.

    `letterheads` has the indices of those lines that are title lines of e-texts. `follows_book` is True if a book ended
    before the stretch, and no title line of an e-text came after that book.
    """

    first: int
    opening: _Mark | None
    closing: _Mark
    letterheads: tuple[int, ...]
    follows_book: bool


def _cut_boilerplate(lines: list[str], *, marks: list[_Mark]) -> list[list[str]]:
    """Return the lines of each book of a file, without what Project Gutenberg added.

    A book follows a start mark or the end of small print. It ends at the next mark, or at the letterhead (title line)
    of the next e-text. If the licence stands directly after the start mark, the book follows the licence. A short text
    before a longer one, such as a title between small print and start mark, is front matter and is left out. A text
    outside of all e-texts is a book too if it has at least _FEWEST_LINES lines.
    """
    books: list[list[str]] = []
    has_start = any(mark.kind in ("start", "print_end") for mark in marks)
    stretches = list(_list_stretches(lines, marks=marks)) if has_start else []
    is_missing = True  # no book was found yet, or none after the last start mark
    for number, stretch in enumerate(stretches):
        opening, rest = stretch.opening, stretches[number + 1 : number + 3]
        part = lines[stretch.first : stretch.closing.line]
        if opening is not None and opening.kind in ("start", "print_end"):
            found = _split_stretch(lines, stretch=stretch)
            is_missing = len(found) == 1 and not _count_lines(found[0])
            if len(found) > 1 or not _is_front_matter(found[0], stretch=stretch, lines=lines, rest=rest):
                books += map(_cut_credits, found)
        elif opening is not None and opening.kind == "print":
            continue
        elif stretch.letterheads and stretch.closing.kind == "end":
            books.append(_cut_early_text(lines, stretch.letterheads[0], stretch.closing.line, marks=[]))
        elif _follows_licence(stretch) and is_missing and _count_lines(part):
            books.append(_cut_credits(part))
            is_missing = False
        else:
            unmarked = _find_unmarked(part)
            is_missing = is_missing and not unmarked
            books += unmarked
    if not any(map(_count_lines, books)):
        books = [_cut_early_text(lines, start, stop, marks=marks) for start, stop in _find_early_texts(lines, marks)]
    if not any(map(_count_lines, books)):
        books = _find_unmarked(lines)
    return [book for book in books if _count_lines(book)]


def _follows_licence(stretch: _Stretch) -> bool:
    """Return whether a stretch (the lines between two marks of Project Gutenberg) follows a licence and may be a book.
    A stretch that is the header of another e-text is no book."""
    is_after = stretch.opening is not None and stretch.opening.kind == "licence_end"
    return is_after and stretch.closing.kind != "start" and not stretch.letterheads


def _lines_with(text: str, *, words: tuple[str, ...]) -> list[int]:
    """Return the indices of the lines that contain at least one of the words. Takes a millisecond for a megabyte."""
    found = set()
    for word in words:
        place = number = 0
        while (next_place := text.find(word, place)) >= 0:
            number += text.count("\n", place, next_place)
            found.add(number)
            place = next_place + 1
    return sorted(found)


def _find_marks(lines: list[str], *, among: list[int]) -> list[_Mark]:
    """Return the marks (lines that Project Gutenberg added), in order. Only the lines whose indices are in `among` are
    examined. A letterhead (title line of an e-text) usually names the work. If it does not, it counts only at the
    beginning of a paragraph."""
    found = []
    for number in among:
        line = lines[number]
        kind = next((kind for kind, pattern in _KINDS.items() if pattern.match(line)), None)
        if kind is not None:
            found.append(_Mark(number, kind))
        elif _SURE_LETTERHEAD.match(line) or (_LETTERHEAD.match(line) and (number == 0 or not lines[number - 1])):
            found.append(_Mark(number, "letterhead"))
    return found


def _list_stretches(lines: list[str], *, marks: list[_Mark]) -> Iterator[_Stretch]:
    opening: _Mark | None = None
    first, letterheads, follows_book = 0, [], False
    for mark in [*marks, _Mark(len(lines), "last")]:
        is_open = opening is not None and opening.kind in ("start", "print_end")
        if mark.kind == "letterhead":
            letterheads.append(mark.line)
            follows_book = follows_book and is_open
        elif mark.kind != "file_name" or is_open or (opening is not None and opening.kind == "licence_end"):
            # Otherwise it is an early e-text, which names the file in its header.
            yield _Stretch(first, opening, mark, tuple(letterheads), follows_book)
            first, opening, letterheads = mark.line + 1, mark, []
            follows_book = mark.kind in ("end", "file_name") or (follows_book and mark.kind != "start")


def _split_stretch(lines: list[str], *, stretch: _Stretch) -> list[list[str]]:
    """Return the books of a stretch, which is the text between two marks of Project Gutenberg. A stretch has several
    books if e-texts without end marks follow one another.

    A letterhead (title line of an e-text) after some text begins the next book. If the stretch ends with the header of
    another e-text, this header is left out. A header begins with a letterhead. After the letterhead, it mentions
    Project Gutenberg or gives the name of the file.
    """
    start, stop = stretch.first, stretch.closing.line
    books = []
    for line in stretch.letterheads:
        size = stop - line - 1
        names_file = stretch.closing.kind == "file_name" and size <= _LONGEST_LETTERHEAD
        may_speak = stretch.closing.kind not in ("end", "last") and size <= _LONGEST_HEADER
        if names_file or (may_speak and any(map(_OF_GUTENBERG.search, lines[line + 1 : stop]))):
            stop = line
            break
        if _count_lines(lines[start:line]) >= _FEWEST_BEFORE_LETTERHEAD:
            books.append(lines[start:line])
            start = line
    return [*books, lines[start:stop]]


def _is_front_matter(book: list[str], *, stretch: _Stretch, lines: list[str], rest: list[_Stretch]) -> bool:
    """Return whether a text is empty or only front matter, such as a title. The text is `book`. It comes from
    `stretch`, the lines between two marks of Project Gutenberg, and `rest` has the stretches that follow."""
    assert stretch.opening is not None
    size = _count_lines(book)
    if size == 0 or size >= _FEWEST_LINES:
        return size == 0
    if stretch.closing.kind == "last":
        return stretch.follows_book
    opens_again = stretch.closing.kind == "print" or (stretch.closing.kind, stretch.opening.kind) == (
        "start",
        "print_end",
    )
    if not opens_again or (stretch.letterheads and stretch.letterheads[-1] >= stretch.first + len(book)):
        return False  # an end or the header of another e-text follows
    # The next mark begins the book, or begins small print that stands before it.
    following = rest[1:2] if stretch.closing.kind == "print" else rest[:1]
    return any(
        _count_lines(lines[each.first : min(each.letterheads, default=each.closing.line)]) >= size for each in following
    )


def _find_unmarked(lines: list[str]) -> list[list[str]]:
    """Return the texts in `lines` if no mark of Project Gutenberg says where they begin and end. They are the texts
    between the paragraphs that mention Project Gutenberg. Short texts are left out: a text at the beginning or the end
    of `lines` needs at least _FEWEST_LINES lines, and any other text four times as many."""
    places = [number for number, line in enumerate(lines) if _OF_GUTENBERG.search(line)]
    bounds = [-1, *places, len(lines)]
    found = []
    for before, after in pairwise(bounds):
        part = lines[before + 1 : after]
        if before >= 0:
            part = _cut_header_fields(part[_end_of_paragraph(part, 0) :])
        if after < len(lines):
            part = part[: next((number for number in range(len(part), 0, -1) if not part[number - 1]), 0)]
        fewest = _FEWEST_LINES if before < 0 or after == len(lines) else 4 * _FEWEST_LINES
        if len(part) >= fewest and _count_lines(part) >= fewest:
            found.append(part)
    return found


def _count_lines(lines: list[str]) -> int:
    return sum(map(bool, lines))


def _find_early_texts(lines: list[str], marks: list[_Mark]) -> Iterator[tuple[int, int]]:
    """Yield (index of the first line, index after the last line) of each e-text in a file without start marks. The
    first letterhead (title line of an e-text) after an end mark begins another e-text."""
    start, ended = 0, False
    for mark in marks:
        if mark.kind == "letterhead" and ended:
            yield start, mark.line
            start, ended = mark.line, False
        ended = ended or mark.kind in ("end", "print")
    yield start, len(lines)


def _cut_early_text(lines: list[str], start: int, stop: int, *, marks: list[_Mark]) -> list[str]:
    """Return the lines from `start` to `stop`, which are an e-text without a start mark. The letterhead (title line)
    and what follows the end mark are left out.

    A mark counts as the end mark in three cases. It is in the last fifth of the lines, or at least three lines after it
    mention Project Gutenberg, or it begins small print whose end is marked too. If nothing but a header stands before
    the licence, the text after the licence is returned.
    """
    first, last = (bisect_left(marks, line, key=attrgetter("line")) for line in (start, stop))
    own = [mark for mark in marks[first:last] if mark.kind != "letterhead"]
    begin = 0  # the first of the marks after `start`
    for number, mark in enumerate(own):
        if mark.kind == "licence_end":
            if _count_lines(_cut_letterhead(lines[start : own[begin].line])):
                break
            start, begin = mark.line + 1, number + 1
    own = own[begin:]
    mentions = (line for line in range(stop - 1, start - 1, -1) if _OF_GUTENBERG.search(lines[line]))
    third_last = next(islice(mentions, 2, None), -1) if own else -1
    for mark, following in zip_longest(own, own[1:]):
        is_print = mark.kind == "print" and following is not None and following.kind == "print_end"
        if is_print or 5 * (stop - mark.line - 1) <= stop - start or third_last > mark.line:
            stop = mark.line
            break
    return _cut_letterhead(lines[start:stop])


def _cut_letterhead(lines: list[str]) -> list[str]:
    """If the lines begin with a letterhead (title line of an e-text), cut it off, with the credits and the header
    fields after it. Return the lines that are left."""
    first = next((line for line in lines if line), "")
    return _cut_credits(lines) if _LETTERHEAD.match(first) else lines


def _cut_credits(lines: list[str]) -> list[str]:
    """Cut off the letterhead (title line of an e-text) and the credits with which the lines may begin, and return the
    lines that are left. Credits are paragraphs that name the e-text or say who typed it. Letterhead and credits
    together are at most four paragraphs. After a letterhead, the fields of the header (title, author, date) are cut off
    too."""
    kept = lines
    has_letterhead = False
    for _ in range(4):
        first = next((index for index, line in enumerate(kept) if line.strip()), None)
        if first is None or not (_CREDITS.match(kept[first].strip()) or _LETTERHEAD.match(kept[first])):
            break
        has_letterhead = has_letterhead or _LETTERHEAD.match(kept[first]) is not None
        kept = kept[_end_of_paragraph(kept, first) :]
        if has_letterhead:
            kept = _cut_header_fields(kept)
    return kept


def _cut_header_fields(lines: list[str]) -> list[str]:
    """Cut off the paragraphs at the beginning that mention Project Gutenberg, or give the title, the author, the date
    and the like. Return the lines that are left."""
    start = 0
    while (first := next((index for index in range(start, len(lines)) if lines[index]), None)) is not None:
        end = _end_of_paragraph(lines, first)
        if not _HEADER_FIELD.match(lines[first]) and not any(map(_OF_GUTENBERG.search, lines[first:end])):
            break
        start = end
    return lines[start:]


def _end_of_paragraph(lines: list[str], first: int) -> int:
    """Return the index of the first blank line from index `first` on, or the number of lines if there is none."""
    return next((index for index in range(first, len(lines)) if not lines[index].strip()), len(lines))


def _clean_paragraph(text: str) -> str:
    text = _ILLUSTRATION.sub("", text)
    if "_" in text:
        text = _UNDERSCORES.sub(r"\1", text)
    if "=" in text or "*" in text:
        text = _EMPHASIS.sub(r"\2", text)
    return text.strip()
