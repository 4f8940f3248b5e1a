"""Splits paragraphs into sentences. The library sentencex does this by the rules of each language. The modules
sentence_rules and sentence_cuts correct the library's mistakes. Pure.

The time is linear, because lines longer than MAX_LINE_CHARACTERS are cut at white space before sentencex gets them.
Speed: 20 to 35 million characters a second (Korean 13, Italian 9). The corrections take half of the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise

import sentencex

from pipeline.cleaning.characters import normalize_and_look
from pipeline.cleaning.sentence_cuts import cut_more, has_quotations, is_shortened, may_hold_ends
from pipeline.cleaning.sentence_rules import WITH_PARTICLES, EndRules, end_rules, goes_on, is_plain_end, is_plain_mark

MAX_LINE_CHARACTERS = 100_000
# The time of sentencex grows with the square of the number of quotation marks in a line (3 s for 100,000 marks). A line
# with more than this number of marks is cut into pieces of _FINE_CHARACTERS.
MAX_QUOTATION_MARKS = 2_000
# The time also grows with the square of the number of sentences in a line without spaces (Chinese: 1 to 6 s for 100,000
# characters).
_LONGEST_WORDS = 200
_FINE_CHARACTERS = 5_000
# In some languages, the time grows with the square of the number of full stops as well (Italian: 1 s for 10,000). No
# text has a full stop in every 16 characters of a long line. A line that has so many is cut into short pieces.
_FEWEST_CHARACTERS = 16
_DENSE_CHARACTERS = 1_000
_QUOTATION_MARKS = "\"'\u2018\u2019\u201c\u201d\u00ab\u00bb\u300c\u300d\u300e\u300f()[]"


def split_sentences(text: str, *, language: str, keep_reserved: bool = False) -> list[str]:
    """Return the sentences of `text` in order. No sentence is empty, and each run of white space becomes one space.

    A line break ends a sentence. `language` is a code as in Wikipedia's addresses (en, ko, zh-yue). For a language
    without rules, sentencex uses the rules of a related language or of English. An item number (2.) or a closing
    bracket is not a sentence by itself. A Korean or Japanese sentence may continue after a quotation, even within a
    word. `keep_reserved` is passed to normalize_text.
    """
    sentences: list[str] = []
    rules = end_rules(language)
    text, has_plain_space = normalize_and_look(text, keep_reserved=keep_reserved)
    for given in text.split("\n"):
        line = given
        if "  " in line or not has_plain_space:  # the rules know only ends with one space
            line = " ".join(line.split())
        if not line or line.isspace():
            continue
        for piece in _pieces(line) if len(line) > _FINE_CHARACTERS else (line,):
            for sentence in _split_marked(piece, language=language, rules=rules):
                words = sentence.strip()
                if words:
                    sentences.append(words)
    return sentences


def _split_marked(piece: str, *, language: str, rules: EndRules) -> list[str]:
    """Return the sentences of a piece of a line like _split_piece, but do not take a " for a quotation mark if it
    stands inside a Hebrew abbreviation or marks inches."""
    if '"' not in piece:
        return _split_piece(piece, language=language, rules=rules)
    changed = _GERSHAYIM.sub(_OTHER_MARK, piece) if rules.script == "HEBREW" else piece
    changed = _change_inches(changed) if _INCHES.search(changed) is not None else changed
    parts = _split_piece(changed, language=language, rules=rules)
    if changed is piece:
        return parts
    ends = [0, *accumulate(map(len, parts))]
    return [piece[start:end] for start, end in pairwise(ends)]


_INCHES = re.compile(r'\d"(?!\w)')


def _change_inches(piece: str) -> str:
    """Return `piece` with another character for each " that follows a digit where no quotation is open. Takes linear
    time."""
    pieces = piece.split('"')
    changed, is_open = [pieces[0]], False
    for before, after in pairwise(pieces):
        is_inches = not is_open and before[-1:].isdigit() and not (after[:1].isalnum() or after[:1] == "_")
        changed.append((_OTHER_MARK if is_inches else '"') + after)
        is_open ^= not is_inches
    return "".join(changed)


def _split_piece(piece: str, *, language: str, rules: EndRules) -> list[str]:
    """Return the sentences of a piece of a line, with their white space."""
    parts: list[str] = sentencex.segment(language, piece)
    if not piece.isascii() and any(stop in piece for stop in _WIDE_STOPS) and _BEFORE_DIGIT.search(piece) is not None:
        parts = list(_cut_before_digits(parts))
    if len(parts) > 1:
        parts = _mend_ends(parts, rules=rules)
    is_quoting = rules.has_own_marks or has_quotations(piece)
    cuts: list[str] | None = None
    for number, part in enumerate(parts):
        if part[0] == "(" or part.find(". ", 0, -2) >= 0 or (is_quoting and may_hold_ends(part, rules)):
            cuts = parts[:number] if cuts is None else cuts
            cuts += cut_more(part, rules)
        elif cuts is not None:
            cuts.append(part)
    return parts if cuts is None else cuts


_NUMBER = re.compile(r"[(\uff08]?(?:\d{1,4}|[IVXLC]{2,5})[.\u104b]\s*")
_LOOK_BACK = 10
# A word may begin with a mark (!Kung), and so does the code of a comment (<!-- -->). A mark alone is no sentence.
_NO_SENTENCE = re.compile(r"[^\w\s]*[!?\uff01\uff1f]+\s*")
_CODE = ("<!", "<?")
_CLOSING = "\u300d\u300f\u300b\u3009\u3011\u3015)\uff09"
_QUOTED = re.compile(rf"[\"'\u2019\u201d{_CLOSING}]\s*\Z")
# Korean dates are written 2010. 11. 12. or '10. 11. 12., and items of laws may be numbered by syllables (ga., na.).
_KOREAN_NUMBER = re.compile(
    r"(?:(?:\A|[\s(~\u223c'\u2018\u2019\u00b4-])\d{1,4}"
    r"|\A[\uac00\ub098\ub2e4\ub77c\ub9c8\ubc14\uc0ac\uc544\uc790\ucc28\uce74\ud0c0\ud30c\ud558])\.\s*\Z"
)
# After a Korean quotation, a particle follows without a space, but irago, iraneun, hago (said) often follow a space.
_KOREAN_GOES_ON = re.compile(r"[\uac00-\ud7a3]")
_KOREAN_SAID = re.compile(r"(?:\uc774?\ub77c|\ud558)(?:\uace0|\ub294|\uba70|\uba74\uc11c)(?!\w)")
# Thai ends sentences with a space. A point marks an abbreviation (kho so, the year of our era).
_THAI_POINT = re.compile(r"[\u0e01-\u0e4e]\.\s*\Z")
# Japanese particles continue a sentence, but not words that begin like a particle: toki, tokoro, nochi, hajime, nimo,
# moshi, deha, yagate, nao ...
_JAPANESE_GOES_ON = re.compile(
    "\u3063\u3066|\u3068(?![\u304d\u3053\u3066\u308a])|\u306e(?!\u3061)|[\u3092\u304c]|\u306f(?!\u3058)|\u306b(?!\u3082)"
    "|\u3082(?![\u3057\u3061\u3063])|\u3067(?![\u306f\u3082\u304d])|\u3084(?![\u304c\u306f])|\u306a(?![\u304a\u305c\u304b\u3093])"
    "|\u304b(?![\u3064\u308c])"
)
# Names may end with a full stop (Morning Musume). A particle of one letter before a word in other letters shows it.
_AFTER_NAME = re.compile("[\u306f\u304c\u3092\u306e\u306b\u3068\u3082](?=[\u30a1-\u30fa\u4e00-\u9fff])")
# Marks " that are no quotation marks: between the letters of a Hebrew abbreviation, or for inches.
_GERSHAYIM = re.compile('(?<=[\u05d0-\u05ea\u05f0-\u05f2])"(?=[\u05d0-\u05ea\u05f0-\u05f2])')
_OTHER_MARK = "\u2033"


_WIDE_STOPS = "\u3002\uff01\uff1f\uff61"
_NAME_ENDS = _WIDE_STOPS + "!?"
_BEFORE_DIGIT = re.compile(f"[{_WIDE_STOPS}](?=\\d)")
_BRACKETS = re.compile(
    "([(\uff08\u300c\u300e\u300a\u3008\u3010\u3014\u201c])|[)\uff09\u300d\u300f\u300b\u3009\u3011\u3015\u201d]"
)
# Full stops outside ASCII, after which no space is needed. ASCII full stops end a sentence only before a space.
_STOPS = (
    "\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u0f0d\u0f0e\u104b\u1362\u1367\u1368"
    "\u166e\u1735\u1736\u17d4\u17d5\u17da\u1803\u1809\u1944\u1945\u1aa8-\u1aab\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d\u1b7e\u1c3b\u1c3c"
    "\u1c7e\u1c7f\u203c\u203d\u2047-\u2049\u2e2e\u2e3c\u2e53\u2e54\u3002\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf"
    "\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\ufe52\ufe56\ufe57\uff01\uff0e\uff1f\uff61\U00011141-\U00011143"
)
# The brackets and quotation marks that close after a full stop belong to the sentence.
_STOP = re.compile(f"[{_STOPS}][{_CLOSING}\u201d\u2019]*+(?![\"'\u2018\u00ab\u00bb\\]{_CLOSING}])")
# Marks at which sentencex stops that end no sentence: the comma of Burmese and a dot of Armenian.
_HALF_STOPS = "\u104a\u2024"


def _cut_before_digits(sentences: Iterable[str]) -> Iterator[str]:
    """Cut `sentences` after Chinese and Japanese full stops that are followed by a digit, where sentencex does not cut,
    and yield the pieces. A full stop inside brackets is left alone.

    Takes linear time.
    """
    for sentence in sentences:
        start = looked = depth = 0
        for found in _BEFORE_DIGIT.finditer(sentence):
            for bracket in _BRACKETS.finditer(sentence, looked, found.start()):
                depth += 1 if bracket.group(1) else -1 if depth else 0
            looked = found.end()
            if not depth:
                yield sentence[start:looked]
                start = looked
        yield sentence[start:]


def _mend_ends(sentences: Iterable[str], *, rules: EndRules) -> list[str]:
    """Return the sentences, with neighbours joined where sentencex wrongly saw the end of a sentence. Joined together,
    they still give the same text."""
    parts: list[str] = []
    before = ""
    for given in sentences:
        part = given
        if before[-2:] == " '" and is_shortened("'" + part, rules):
            before, part = before[:-1], "'" + part
        rest = part
        is_plain = len(before) > _LOOK_BACK and is_plain_mark(before, part, rules)
        if before and not is_plain and not is_plain_end(before, part, rules):
            rest = part.lstrip(_CLOSING) if part[0] in _CLOSING else part
            before += part[: len(part) - len(rest)]
            if not rest or _goes_on(before, rest, rules=rules):
                before += rest
                continue
        if before:
            parts.append(before)
        before = rest
    parts.append(before)
    return parts


def _goes_on(before: str, after: str, *, rules: EndRules) -> bool:
    """Return whether `after` continues the last sentence of `before`. These are neighbouring parts of a line, which
    must then be joined."""
    if len(before) <= _LOOK_BACK and (_NUMBER.fullmatch(before) or _NO_SENTENCE.fullmatch(before)) is not None:
        return True
    if goes_on(before, after, rules) or before.endswith(_CODE):
        return True
    language = rules.language
    if language not in WITH_PARTICLES:
        return False
    last = max(0, len(before) - _LOOK_BACK)
    if language == "th":
        return _THAI_POINT.search(before, last) is not None
    if language == "ko" and _KOREAN_NUMBER.search(before, last) is not None:
        return True
    if _QUOTED.search(before, last) is None:
        return language == "ja" and before[-1] in _NAME_ENDS and _AFTER_NAME.match(after) is not None
    if language == "ja":
        return _JAPANESE_GOES_ON.match(after) is not None
    said = _KOREAN_SAID if before[-1].isspace() else _KOREAN_GOES_ON
    return said.match(after) is not None


def _pieces(line: str) -> Iterator[str]:
    """Yield the line in pieces that sentencex can split in a short time.

    A piece has at most MAX_LINE_CHARACTERS. If the line has many quotation marks (or other marks at which sentencex
    stops although no sentence ends), the limit is _FINE_CHARACTERS. If more than one in 16 characters is . ! or ?, the
    limit is _DENSE_CHARACTERS.

    The line is cut before spaces. A word is cut only if it is longer than the limit. A line with very few spaces is cut
    at full stops first.
    """
    if len(line) <= _FINE_CHARACTERS:
        yield line
        return
    many = sum(map(line.count, _QUOTATION_MARKS + _HALF_STOPS)) > MAX_QUOTATION_MARKS
    cap = _FINE_CHARACTERS if many else MAX_LINE_CHARACTERS
    if sum(map(line.count, ".!?")) > len(line) // _FEWEST_CHARACTERS:
        cap = _DENSE_CHARACTERS
    for part in _cut_at_stops(line) if line.count(" ") < len(line) // _LONGEST_WORDS else (line,):
        start = 0
        while len(part) - start > cap:
            space = part.rfind(" ", start, start + cap)
            end = space if space > start else start + cap
            yield part[start:end]
            start = end
        yield part[start:]


def _cut_at_stops(line: str) -> Iterator[str]:
    """Cut `line` at full stops, and yield its pieces. This is for a long line with few spaces or none, which cannot be
    cut at spaces.

    A piece ends at the first full stop after at least _FINE_CHARACTERS characters. A full stop inside brackets, or
    before the end of brackets or quotations, counts only after twice as many characters. Takes linear time.
    """
    start = looked = depth = 0
    for found in _STOP.finditer(line):
        if found.end() - start < _FINE_CHARACTERS * len(found.group()[:2]):  # twice, if brackets close there
            continue
        for bracket in _BRACKETS.finditer(line, looked, found.end()):
            depth += 1 if bracket.group(1) else -1 if depth else 0
        looked = found.end()
        if not depth or looked - start > 2 * _FINE_CHARACTERS:
            yield line[start:looked]
            start, depth = looked, 0
    yield line[start:]
