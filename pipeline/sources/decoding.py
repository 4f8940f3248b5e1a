"""Bytes of a whole text file to characters by a stated policy; what it cannot say for sure it refuses. Pure.

Guessing is limited to what shows itself: marks, valid UTF-8, single bad bytes, and Latin-1 where letters with accents
are few. Anything else (Cyrillic, Korean, Chinese in an old encoding) would become nonsense, so it needs a name.
"""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

AUTO = "auto"
WINDOWS = "windows-1252"
REPAIRED = "utf-8 with bad bytes left out"
MOST_ACCENTED = 0.2
"""windows-1252 is believed where no more than this share of the bytes but white space is outside ASCII. French and
German have 2 to 5%, Korean, Russian and Chinese over 80%."""

_OUTSIDE_ASCII = re.compile(rb"[\x80-\xff]")
_NOT_SPACE = re.compile(rb"\S")


class Decoded(NamedTuple):
    """Text and how its bytes were read: utf-8, utf-16, REPAIRED, WINDOWS, or the encoding that was asked for.

    `bad_bytes` were left out, the first of them at byte `first_bad` (-1: none).
    """

    text: str
    encoding: str
    bad_bytes: int = 0
    first_bad: int = -1


def decode_text(data: bytes, *, name: str, encoding: str = AUTO) -> Decoded:
    """Decode a whole file; a byte order mark is taken off.

    auto: a byte order mark decides (UTF-8, UTF-16). Else valid UTF-8 is UTF-8. Else, where the file has more
    well-formed multi-byte characters than bad bytes, it is UTF-8 with the bad bytes left out. Else it is windows-1252,
    of which Latin-1 is a part, unless more than MOST_ACCENTED of its bytes are outside ASCII.
    Raises ValueError naming `name`, the byte and the remedy for what the policy, or the encoding asked for, refuses.
    """
    if encoding != AUTO:
        return Decoded(_decode_strictly(data, encoding, name=name), encoding)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return Decoded(_decode_strictly(data, "utf-16", name=name), "utf-16")
    mark = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
    data = data[mark:]
    try:
        return Decoded(data.decode("utf-8"), "utf-8")
    except UnicodeDecodeError as error:
        first = error.start
    kept = data.decode("utf-8", errors="ignore")
    bad = len(data) - len(kept.encode("utf-8"))
    if sum(1 for character in kept if character > "\x7f") > bad:
        return Decoded(kept, REPAIRED, bad, first + mark)
    outside = len(_OUTSIDE_ASCII.findall(data))
    if outside > MOST_ACCENTED * len(_NOT_SPACE.findall(data)):
        raise ValueError(
            f"{name}, byte {first + mark}: not UTF-8 ({data[first : first + 4]!r}), and with {outside} of {len(data)} "
            f"bytes outside ASCII not Latin-1 either; set the source's encoding (such as cp949, windows-1251, gb18030) "
            f"or convert the file with iconv -t utf-8"
        )
    text = data.decode("cp1252", errors="ignore")
    return Decoded(text, WINDOWS, len(data) - len(text))


def _decode_strictly(data: bytes, encoding: str, *, name: str) -> str:
    try:
        return data.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name}, byte {error.start}: not {encoding} ({data[error.start : error.start + 4]!r}: {error.reason}); "
            f"correct the source's encoding, or mend the file"
        ) from error
