"""Rows of tables: csv, tsv, json, jsonl and Parquet, the texts also compressed by gzip, bz2 or xz.

Every row comes with its place for messages. Costs memory for one file as text.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import storage
from pipeline.json_text import parse_json
from pipeline.storage import Location
from trainer.finetune.examples import TaskDataError

Row: TypeAlias = tuple[str, Mapping[str, Any]]
"""Where it stands (`file line 3`), and its values by column."""

_OPENERS = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
COMPRESSED = tuple(_OPENERS)


def read_text(path: Location) -> str:
    """Return a text file, decompressed by its ending, without a byte-order mark. TaskDataError if it is not UTF-8."""
    content = storage.read_bytes(path)
    for ending, decompress in _OPENERS.items():
        if str(path).endswith(ending):
            try:
                content = decompress(content)
            except (OSError, EOFError, lzma.LZMAError) as error:
                raise TaskDataError(f"{path}: cannot be decompressed ({error}); copy it again") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskDataError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from error


def read_json(path: Location) -> Any:
    """Return the content of a JSON file. TaskDataError if it is not valid JSON."""
    return to_json(read_text(path), place=str(path))


def to_json(content: str | bytes, *, place: str) -> Any:
    """Return the value of a JSON text. TaskDataError names its place if it is not valid JSON."""
    try:
        return parse_json(content)
    except ValueError as error:
        raise TaskDataError(f"{place}: is not valid JSON ({error}); copy it again") from error


def read_table(path: Location, *, header: Sequence[str] | None = None) -> Iterator[Row]:
    """All rows of a file, by its ending. `header`: the names of the columns of a tsv whose first line is a row.

    tsv: no quotes, as GLUE has it. json: a list of objects, or objects one behind another. TaskDataError names the
    file and line of a row that cannot be read.
    """
    name = str(path)
    for ending in _OPENERS:
        name = name.removesuffix(ending)
    if name.endswith(".parquet"):
        yield from _read_parquet(path)
    elif name.endswith((".jsonl", ".json")):
        yield from _read_objects(path)
    elif name.endswith(".csv"):
        yield from _read_csv(path)
    else:
        yield from _read_tsv(path, header=header)


def take(row: Row, column: str) -> Any:
    """A value of a row; TaskDataError names the columns that there are."""
    place, values = row
    if column not in values:
        raise TaskDataError(f"{place}: has no column '{column}', but {', '.join(map(str, values))}; name it in columns")
    return values[column]


def _read_parquet(path: Location) -> Iterator[Row]:
    try:
        table = pq.read_table(pa.BufferReader(storage.read_bytes(path)))
    except pa.ArrowInvalid as error:
        raise TaskDataError(f"{path}: is not a Parquet file ({error}); write it again") from error
    for number, values in enumerate(table.to_pylist()):
        yield f"{path} row {number}", values


def _read_objects(path: Location) -> Iterator[Row]:
    text, decoder, place, number = read_text(path), json.JSONDecoder(), 0, 0
    while (place := _skip_space(text, place)) < len(text):
        number += 1
        try:
            found, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            line = text.count("\n", 0, place) + 1
            raise TaskDataError(f"{path} line {line}: is not valid JSON ({error}); mend or remove it") from error
        for inner, values in enumerate(found if isinstance(found, list) else [found]):
            where = f"{path} entry {inner if isinstance(found, list) else number - 1}"
            if not isinstance(values, dict):
                raise TaskDataError(f"{where}: is no object with named values; write one object a row")
            yield where, values


def _skip_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _read_csv(path: Location) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # Python's own limit, 131,072 characters, is less than a long context has
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        _refuse_repeated(reader.fieldnames or (), path=path)
        for values in reader:
            place = f"{path} line {reader.line_num}"
            if None in values or None in values.values():
                raise TaskDataError(f"{place}: has not the {len(reader.fieldnames or ())} fields of the first line")
            yield place, values
    except csv.Error as error:
        raise TaskDataError(f"{path} line {reader.line_num}: {error}; mend the quotes of the row") from error


def _read_tsv(path: Location, *, header: Sequence[str] | None) -> Iterator[Row]:
    lines = read_text(path).split("\n")
    names = list(header) if header is not None else lines[0].removesuffix("\r").split("\t")
    _refuse_repeated(names, path=path)
    for number, line in enumerate(lines[header is None :], 1 + (header is None)):
        if not line.strip():
            continue
        fields = line.removesuffix("\r").split("\t")
        if len(fields) < len(names):
            raise TaskDataError(
                f"{path} line {number}: has {len(fields)} fields, {len(names)} are needed ({', '.join(names)})"
            )
        # what follows the last name (SNLI's annotators in MNLI have more in some lines) belongs to no column
        yield f"{path} line {number}", dict(zip(names, fields, strict=False))


def _refuse_repeated(names: Sequence[str], *, path: Location) -> None:
    repeated = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if repeated is not None:
        raise TaskDataError(f"{path} line 1: has two columns named '{repeated}'; rename one")
