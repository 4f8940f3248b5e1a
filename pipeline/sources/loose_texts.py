"""Reads every text of a file of almost any form: JSON, tables, a token per line, Parquet, plain text, archives.

The files are, for example, evaluation sets. A build leaves out documents that share a passage with such a text. Because
the texts are only compared with the corpus, their order and names do not matter.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline import storage
from pipeline.sources.archives import MOST_MEMBER_BYTES, read_members, split_archive
from pipeline.sources.bytestreams import COMPRESSED, read_whole
from pipeline.sources.decoding import decode_text
from pipeline.sources.listing import is_archive

_XML = (".xml", ".html", ".htm", ".sgm", ".sgml")
_JSON = (".json", ".jsonl", ".ndjson")
_SURROGATES = re.compile("[\ud800-\udfff]")
_ATTRIBUTES = re.compile(r"""=\s*(?:"([^"<>]* [^"<>]*)"|'([^'<>]* [^'<>]*)')""")
_LONGEST_LINE = 200
"""A line with more characters has 13 words or more. Such a line is found as a part of the whole text."""
_TAGS = re.compile(r"<[^<>]{1,1000}>")
_MOST = 0.9
"""Share of the lines that must have the form of a table, for a file to be read as one."""


def read_texts(path: str) -> Iterator[str]:
    """Yield the texts of a file or archive. A text with tags or entities of HTML is yielded twice: as it is, and as
    plain text.

    Raises ValueError naming the file if it cannot be read.
    """
    for text in _read_file(path):
        whole = _SURROGATES.sub(" ", text)  # JSON may hold halves of characters
        yield whole
        if "&" in whole or "<" in whole:
            plain = html.unescape(_TAGS.sub(" ", whole))
            if plain != whole:
                yield plain


def _read_file(path: str) -> Iterator[str]:
    if is_archive(path):
        yield from _read_archive(path)
        return
    stem = Path(path)
    stem = stem.with_suffix("") if stem.suffix.lower() in COMPRESSED else stem
    if stem.suffix.lower() == ".parquet":
        yield from _read_parquet(path)
        return
    data = read_whole(path, most_bytes=MOST_MEMBER_BYTES)
    if data is None:
        raise ValueError(f"{path}: more than {MOST_MEMBER_BYTES} bytes; divide it into smaller files")
    yield from _read_data(data, name=str(stem))


def _read_archive(path: str) -> Iterator[str]:
    """Yield the texts of an archive. Raises ValueError for a member that cannot be read. Links and devices have no text
    of their own."""
    for split in split_archive(path, source=0):
        if split.part:
            continue  # the first share of a file reads all of the file
        for member in read_members(replace(split, parts=1), suffixes=("",)):
            if member.data is not None:
                yield from _read_data(member.data, name=member.name)
            elif member.reason != "not_a_text_file":
                raise ValueError(f"{path}: {member.name}: {member.detail}; unpack the archive, and divide or rename it")


def _read_data(data: bytes, *, name: str) -> Iterator[str]:
    if b"\0" in data[:4096] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(f"{name}: holds NUL bytes, so it is no text; give a text, JSON, CSV or Parquet file")
    text = decode_text(data, name=name).text
    suffix = Path(name).suffix.lower()
    if suffix in _JSON:
        yield from _read_json(text, name=name)
    elif suffix == ".csv":
        csv.field_size_limit(MOST_MEMBER_BYTES)  # a field may be a book
        try:
            yield from (field for row in csv.reader(io.StringIO(text)) for field in row)
        except csv.Error as error:
            raise ValueError(f"{name}: not CSV: {error}; repair it, or rename it to .txt") from error
    elif suffix in _XML:
        yield _TAGS.sub(" ", text)
        yield from filter(_is_line, _TAGS.split(text))
        yield from (double or single for double, single in _ATTRIBUTES.findall(text))
    elif text.lstrip()[:1] in ("{", "[") and (values := _list_json(text, name=name)):
        yield from values
    else:
        yield from _read_lines(text.splitlines())


def _is_line(text: str) -> bool:
    return len(text) <= _LONGEST_LINE and not text.isspace()


def _list_json(text: str, *, name: str) -> list[str]:
    """Return the strings of the JSON values in `text`, or [] if it is not JSON. The file's suffix does not matter."""
    try:
        return list(_read_json(text, name=name))
    except ValueError:
        return []


def _read_json(text: str, *, name: str) -> Iterator[str]:
    """Yield all strings of one JSON value, or of several one after another (JSON lines)."""
    decoder = json.JSONDecoder()
    place = 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            line = text.count("\n", 0, place) + 1
            raise ValueError(f"{name}, line {line}: not JSON: {error}; repair it, or rename it to .txt") from error
        yield from _strings(value)


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings in a value, in order, however deeply they are nested."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            yield from (key for key in each if isinstance(key, str) and " " in key)  # not the names of fields
            waiting.extend(reversed(each.values()))
        elif isinstance(each, list | tuple):
            waiting.extend(reversed(each))


def _read_parquet(path: str) -> Iterator[str]:
    try:
        with storage.open_parquet(path) as file:
            for batch in file.iter_batches(batch_size=256):
                yield from _strings(batch.to_pylist())
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a complete Parquet file: {error}; fetch it again") from error


def _read_lines(lines: Sequence[str]) -> Iterator[str]:
    """Yield the texts of a file of lines. What is yielded depends on what the lines look like: the fields of a table,
    the sentences of a file with a token per line, or the short lines of any other file. A short line may be a text of
    its own, such as a question. If the file is no table, its whole text is yielded too."""
    filled = [line for line in lines if line.strip() and not line.startswith("# ")]
    tabs = sum("\t" in line for line in filled)
    if filled and tabs >= _MOST * len(filled):
        yield from (field for line in lines for field in line.split("\t"))
        yield from _join_tokens([line.split("\t") for line in lines])
        return
    counts = [len(line.split()) for line in filled]
    ((columns, usual),) = Counter(counts).most_common(1) or [(0, 0)]
    has_columns = 2 <= columns <= 10 and usual >= _MOST * len(counts) and len(counts) > 20
    if has_columns and len(filled) < len(lines):
        yield from _join_tokens([line.split() for line in lines])
    elif len(filled) > 1:
        yield from filter(_is_line, filled)
    yield "\n".join(lines)


def _join_tokens(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the sentences of a table that has one token in each row. An empty row ends a sentence. The tokens are
    assumed to be in the column with the most distinct values. If many values in this column have spaces, the values are
    no tokens, and nothing is yielded."""
    rows = list(rows)
    filled = [row for row in rows if len(row) > 1]
    width = max(map(len, filled), default=0)
    columns = [[row[place] for row in filled if len(row) > place] for place in range(width)]
    distinct = [len({cell for cell in column if any(map(str.isalpha, cell))}) for column in columns]
    if not distinct or not max(distinct):
        return
    best = distinct.index(max(distinct))
    if sum(" " in cell.strip() for cell in columns[best]) > (1 - _MOST) * len(columns[best]):
        return
    sentence: list[str] = []
    for row in rows:
        if len(row) > best and row[best].strip():
            sentence.append(row[best])
        elif sentence and not any(cell.strip() for cell in row):
            yield " ".join(sentence)
            sentence = []
    yield " ".join(sentence)
