"""Splits a text file and reads its numbered lines, for sources with a record or sentence per line.

A line ends at \\n, \\r\\n, \\r, or \\r\\r\\n (in files that were converted twice). A split is a range of bytes and has
the lines that start in it. A file that is compressed, or cannot be cut at a line, is divided into shares
(documents.Split). Each share reads the whole file and takes some of the documents. Because of this cost, MOST_PARTS
limits the number of shares.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import IO

from pipeline import storage
from pipeline.documents import Split
from pipeline.sources.bytestreams import compression_of, read_pieces

SPLIT_BYTES = 32 << 20
MOST_PARTS = {"": 8, "zstd": 16, "gzip": 8, "xz": 4, "bz2": 2}
LONGEST_LINE = 64 << 20
_LINE = re.compile(rb"[^\r\n]*(?:\r{0,2}\n|\r)|[^\r\n]+")
_LOOK_BYTES = 1 << 16  # more than enough for the end of a line
TEXT_SHARE = {"bz2": 4.0, "gzip": 3.0, "xz": 4.5, "zstd": 3.5, "": 1.0}
"""For each compression, the estimated bytes of plain text per byte of a file. It affects only how work is divided."""


def split_lines(
    path: str | Path, *, source: int, boundary: Callable[[IO[bytes], int], int] | None, split_bytes: int | None = None
) -> list[Split]:
    """Return the splits of a file, as ranges of about `split_bytes` (default: SPLIT_BYTES). `source` is the source's
    index in the config.

    `boundary(file, position)` returns the first offset at or after `position` where the file may be cut. If `boundary`
    is None or the file is compressed, the file cannot be cut. It then stays one split if `split_bytes` is given.
    Otherwise it is divided into shares (each reads the whole file and takes some of the documents).
    """
    compression = compression_of(path)
    size = storage.size_of(path)
    step = split_bytes or SPLIT_BYTES
    cuts = [0]
    if boundary is not None and not compression:
        with storage.open_input(path, read_ahead=_LOOK_BYTES) as file:
            while cuts[-1] + step < size:
                cut = boundary(file, cuts[-1] + step)
                if cut >= size:
                    break
                cuts.append(cut)
    splits = cut_file(path, cuts=[*cuts, size], source=source)
    if (boundary is None or compression) and split_bytes is None:
        return splits[0].share(MOST_PARTS[compression], part_bytes=SPLIT_BYTES)
    return splits


def cut_file(
    path: str | Path, *, cuts: Sequence[int], source: int, text_share: Mapping[str, float] = TEXT_SHARE
) -> list[Split]:
    """Return one split for each range of bytes between neighbouring offsets in `cuts`. `text_share` says, for each
    compression, about how many bytes of plain text a byte of the file gives."""
    share = text_share[compression_of(path)]
    return [Split(source, str(path), a, b, b - a, round(share * (b - a))) for a, b in pairwise(cuts)]


def next_line(file: IO[bytes], position: int) -> int:
    """Return the offset of the first line that starts at or after `position`, or the file's size if there is none."""
    return position - 1 + len(next(_lines_from(file, position - 1), b""))


def after_blank_line(file: IO[bytes], position: int) -> int:
    """Return the offset after the first blank line that starts at or after `position`, or the file's size if there is
    none."""
    end = position - 1
    for number, line in enumerate(_lines_from(file, end)):
        end += len(line)
        if number > 0 and not line.strip():
            break
    return end


def _lines_from(file: IO[bytes], position: int) -> Iterator[bytes]:
    file.seek(position)
    return break_lines(iter(lambda: file.read(_LOOK_BYTES), b""), name=file.name)


def read_lines(split: Split, *, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """Yield each line of a split as (number, text). The number counts from 1 within the split, and the text has no line
    break.

    Raises ValueError naming file, line and byte if a line cannot be decoded from `encoding`, and ValueError naming the
    file for a line above LONGEST_LINE bytes.
    """
    pieces = read_pieces(split.path, start=split.start, end=split.end)
    offset = split.start
    where = "" if split.start == 0 else f" after byte {split.start}"
    for number, line in enumerate(break_lines(pieces, name=split.path), start=1):
        data = line.removeprefix(b"\xef\xbb\xbf") if number == 1 and split.start == 0 else line
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError as error:
            marked = number == 1 and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            remedy = "utf-16 -t utf-8" if marked else "ENCODING -t utf-8, or for kind text set the source's encoding"
            raise ValueError(
                f"{split.path}, line {number}{where} (byte {offset + error.start} of the text): not "
                f"{encoding.upper()} ({data[error.start : error.start + 4]!r}); convert it with iconv -f {remedy}"
                f"{'' if marked else ' (such as cp949, shift_jis, gb18030, windows-1252)'}"
            ) from error
        yield number, text.rstrip("\r\n")
        offset += len(line)


def break_lines(pieces: Iterator[bytes], *, name: str) -> Iterator[bytes]:
    """Yield the lines of a text, each with its line break. `pieces` are the bytes of the text, cut at any place. At
    most one piece and one line are in memory.

    Raises ValueError naming `name` for a line above LONGEST_LINE bytes.
    """
    rest: list[bytes] = []
    held = 0
    begun = b""  # at most two carriage returns, which may begin a line break that continues in the next piece
    for piece in pieces:
        data = begun + piece
        length = max(len(data.rstrip(b"\r")), len(data) - 2)
        lines, begun = _split(data[:length]), data[length:]
        end = lines.pop() if lines and not lines[-1].endswith((b"\n", b"\r")) else b""
        if lines:
            yield b"".join((*rest, lines[0]))
            yield from islice(lines, 1, None)
            rest.clear()
            held = 0
        rest.append(end)
        held += len(end)
        if held > LONGEST_LINE:
            raise ValueError(
                f"{name}: a line is longer than {LONGEST_LINE} bytes; is this a text file with line breaks?"
            )
    yield from _split(b"".join(rest) + begun)


def _split(data: bytes) -> list[bytes]:
    """Return the lines of `data` with their line breaks. splitlines is eight times as fast as the pattern _LINE, so it
    is used where possible. But it takes \\r\\r\\n for two line breaks. Therefore data with \\r\\r\\n are split by
    _LINE."""
    return _LINE.findall(data) if b"\r\r\n" in data else data.splitlines(keepends=True)
