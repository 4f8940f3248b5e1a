"""Decodes a whole text file by a fixed policy, and refuses a file if its encoding is not certain. Pure.

The policy recognizes byte order marks, valid UTF-8, UTF-8 with a few bad bytes, and Latin-1 with few accented letters.
Other files (Cyrillic, Korean or Chinese in an old encoding) would become nonsense, so the user must name the encoding.
"""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

AUTO = "auto"
WINDOWS = "windows-1252"
REPAIRED = "utf-8 with bad bytes left out"
MOST_ACCENTED = 0.2
"""A file is read as windows-1252 only if at most this share of its bytes is outside ASCII (white space not counted).
French and German have 2 to 5%, Korean, Russian and Chinese over 80%."""

_OUTSIDE_ASCII = re.compile(rb"[\x80-\xff]")
_NOT_SPACE = re.compile(rb"\S")


class Decoded(NamedTuple):
    """A text and its encoding. `encoding` is utf-8, utf-16, REPAIRED (utf-8 with bad bytes left out), WINDOWS
    (windows-1252), or the requested encoding.

    `bad_bytes` says how many bytes were left out. `first_bad` is the position of the first byte left out. It is -1 if
    no byte was left out, or if the encoding is WINDOWS.
    """

    text: str
    encoding: str
    bad_bytes: int = 0
    first_bad: int = -1


def decode_text(data: bytes, *, name: str, encoding: str = AUTO) -> Decoded:
    """Return the text of a whole file, without its byte order mark, and the encoding.

    If `encoding` is auto, the first rule that fits decides. A UTF-16 byte order mark means UTF-16. Valid UTF-8 is
    UTF-8. A file with more well-formed multi-byte characters than bad bytes is UTF-8 without the bad bytes. Any other
    file is windows-1252, which includes Latin-1, unless the share of its bytes outside ASCII exceeds MOST_ACCENTED.
    Raises ValueError naming `name`, the byte and the remedy if no rule fits, or if the data do not have the requested
    encoding.
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
            f"correct the source's encoding, or repair the file"
        ) from error
