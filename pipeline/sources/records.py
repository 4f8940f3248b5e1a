"""Reads records with a text column from JSON lines and Parquet files.

Either each row is a document, or each row is one sentence. In the second case, the source's settings say where a
document ends: at a new value in document_column, at a blank row, or after a number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import storage
from pipeline.cleaning import normalize_line, split_sentences
from pipeline.config import SourceConfig
from pipeline.documents import Document, Drop, Split, shown_name
from pipeline.json_text import parse_json
from pipeline.parquet_bounds import PageError, read_metadata, refuse_bomb, refuse_expansion, start_of
from pipeline.sources import parquet_pages
from pipeline.sources.assembly import MOST_CHARACTERS, assemble
from pipeline.sources.groups import Stretches
from pipeline.sources.textlines import next_line, read_lines, split_lines

_ROWS_AT_ONCE = 32
_HEADERS_BYTES = 1 << 16  # requested from a store at a time, to read headers of pages
_LARGE_BYTES = 32 << 20
"""A column chunk with more text is read by parquet_pages, because pyarrow would hold all of it several times."""
_SPLIT_BYTES = 32 << 20
_MOST_PARTS = 8


class _Row(NamedTuple):
    """One row. `place` says where the row is, for messages. `text` is None if the column is null. `key` is the row's
    value in document_column, which is the same for all rows of a document, or None if the source has no
    document_column."""

    place: str
    text: str | None
    key: object
    is_skipped: bool = False
    """Whether the row has no text_column, and skip_without_text is set."""


def split_records(
    path: str | Path, *, source: int, config: SourceConfig, split_bytes: int | None = None
) -> list[Split]:
    """Return the splits of a file (its parts, each for one worker). `source` is the source's index in the config.

    If a row is a document, a split is a range of lines or row groups. If a document has several rows, several splits
    share the file: each split reads the whole file and takes some of the documents. Likewise, several splits share a
    row group that is large.
    """
    if config.kind == "jsonl":
        boundary = next_line if config.row == "document" else None
        return split_lines(path, source=source, boundary=boundary, split_bytes=split_bytes)
    file = _open_parquet(path)
    _check_columns(path, file.schema_arrow, config=config)
    leaf = [file.metadata.schema.column(i).path for i in range(file.metadata.num_columns)].index(config.text_column)
    groups = [file.metadata.row_group(index).column(leaf) for index in range(file.num_row_groups)]
    if not any(file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)):
        raise ValueError(f"{path}: has no rows; remove it or give another file")
    splits: list[Split] = []
    first = packed = text = 0
    for index, group in enumerate(groups):
        packed += group.total_compressed_size
        text += group.total_uncompressed_size
        last = index == len(groups) - 1
        if last or (config.row == "document" and text >= (split_bytes or _SPLIT_BYTES)):
            splits.append(Split(source, str(path), first, index + 1, packed, text))
            first, packed, text = index + 1, 0, 0
    if split_bytes is None:
        return [part for split in splits for part in split.share(_MOST_PARTS, part_bytes=_SPLIT_BYTES)]
    return splits


def read_records(split: Split, *, source: SourceConfig) -> Iterator[Document | Drop]:
    """Yield the documents of a split, and a Drop (a counted omission) for each row or sentence that is left out.
    Depending on the source's settings, each row is a document, or each row is a sentence and neighbouring rows form a
    document."""
    rows = _jsonl_rows(split, config=source) if source.kind == "jsonl" else _parquet_rows(split, config=source)
    if source.row == "sentence":
        yield from _join_rows(rows, split=split, config=source)
        return
    for row in rows:
        if row.text is None:
            yield Drop("no_text_field" if row.is_skipped else "null_text", row.place)
        else:
            yield from assemble(row.place, split_sentences(row.text, language=source.language))


def _join_rows(rows: Iterable[_Row], *, split: Split, config: SourceConfig) -> Iterator[Document | Drop]:
    """Join neighbouring rows, each with one sentence, into documents. Yield the documents that belong to the split, and
    a Drop (a counted omission) for each row or sentence that is left out. Raises ValueError for a document of more than
    MOST_CHARACTERS."""
    sentences: list[str] = []
    place, num_rows, characters, key = "", 0, 0, object()
    number = 0
    stretches = Stretches() if config.rows_per_document is not None else None
    for row in rows:
        if row.is_skipped:
            if split.takes(number):
                yield Drop("no_text_field", row.place)
            continue
        row_key = row.key if row.key == row.key else None  # NaN (a missing value in pandas) differs from itself
        text = normalize_line(row.text or "")
        ends = (
            (config.document_column is not None and num_rows > 0 and row_key != key)
            or (config.blank_row_ends_document and not text)
            or num_rows == config.rows_per_document
        )
        if ends and num_rows:
            group = b"" if stretches is None else stretches.end_document()
            if split.takes(number):
                yield from assemble(place, sentences, group=group)
            sentences, num_rows, characters = [], 0, 0
            number += 1
        place = place if sentences else row.place
        key = row_key
        if stretches is not None:
            stretches.add(text)
        if not text:
            if not config.blank_row_ends_document:
                num_rows += 1
                if split.takes(number):
                    yield Drop("null_text" if row.text is None else "empty_row", row.place)
            continue
        num_rows += 1
        sentences.append(text)
        characters += len(text)
        if characters > MOST_CHARACTERS:
            raise ValueError(
                f"{split.path}: the document that begins at {place} does not end within {MOST_CHARACTERS} characters; "
                "check document_column, put a blank row between documents, or set rows_per_document"
            )
    if num_rows and split.takes(number):
        yield from assemble(place, sentences, group=b"" if stretches is None else stretches.end_document())


# ---- JSON lines ----


def _jsonl_rows(split: Split, *, config: SourceConfig) -> Iterator[_Row]:
    where = f" after byte {split.start}" if split.start else ""
    for number, line in read_lines(split):
        place = f"{split.path}, line {number}{where}"
        # With index rows, only every second line is a document. Both lines of a pair belong to the same part.
        turn = (number + 1) // 2 if config.skip_without_text else number
        if not line.strip() or (config.row == "document" and not split.takes(turn)):
            continue
        try:
            record = parse_json(line)
        except ValueError as error:  # also for a number of more than 4,300 digits
            raise ValueError(f"{place}: not JSON: {error}; a .jsonl file has one object per line") from error
        if not isinstance(record, dict):
            raise ValueError(f"{place}: contains {type(record).__name__}, not an object with '{config.text_column}'")
        if config.skip_without_text and config.text_column not in record:
            yield _Row(f"{shown_name(split.path)}, line {number}{where}", None, None, is_skipped=True)
            continue
        text = _field(record, config.text_column, place=place, setting="text_column")
        if text is not None and not isinstance(text, str):
            raise ValueError(f"{place}: '{config.text_column}' contains {text!r:.40}, not text; check text_column")
        key = None
        if config.document_column is not None:
            key = _field(record, config.document_column, place=place, setting="document_column")
        yield _Row(f"{shown_name(split.path)}, line {number}{where}", text, key)


def _field(record: dict[str, object], name: str, *, place: str, setting: str) -> object:
    if name not in record:
        known = ", ".join(shown[:80] for shown in list(record)[:20]) or "nothing"
        skip = ", or skip_without_text: true to leave such objects out" if setting == "text_column" else ""
        raise ValueError(f"{place}: has no field '{name}' (it has {known}); set {setting}{skip}")
    return record[name]


# ---- Parquet ----


def _open_parquet(path: str | Path) -> pq.ParquetFile:
    try:
        with storage.name_errors(path, of_content=True):
            is_stored = storage.is_url(path)
            file = storage.open_native(path) if is_stored else path
            with storage.open_input(path) as stream:
                metadata = read_metadata(stream)
            return pq.ParquetFile(file, metadata=metadata, page_checksum_verification=True, pre_buffer=is_stored)
    except storage.StorageError:
        raise
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: not a complete Parquet file: {error}; remove it and fetch it again") from error


def _check_columns(path: str | Path, schema: pa.Schema, *, config: SourceConfig) -> None:
    for name, setting in ((config.text_column, "text_column"), (config.document_column, "document_column")):
        if name is not None and name not in schema.names:
            known = ", ".join(shown[:80] for shown in schema.names[:20])
            raise ValueError(f"{path}: has no column '{name}' (it has {known}); set {setting}")
        if schema.names.count(name) > 1:
            raise ValueError(f"{path}: has {schema.names.count(name)} columns '{name}'; rename all but one of them")
    if config.document_column is not None and _holds_lists(schema.field(config.document_column).type):
        raise ValueError(
            f"{path}: column '{config.document_column}' is {str(schema.field(config.document_column).type)[:200]}, not "
            "one value a row; set document_column"
        )
    kind = schema.field(config.text_column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise ValueError(f"{path}: column '{config.text_column}' is {kind}, not text; set text_column")


def _holds_lists(kind: pa.DataType) -> bool:
    """Whether a value of the type may hold any number of values. A dictionary stores a long one once for all of them,
    so a row of a few bytes could take gigabytes."""
    fields = [kind.field(index).type for index in range(kind.num_fields)]
    return pa.types.is_nested(kind) and (not pa.types.is_struct(kind) or any(map(_holds_lists, fields)))


def _parquet_rows(split: Split, *, config: SourceConfig) -> Iterator[_Row]:
    file = _open_parquet(split.path)
    _check_columns(split.path, file.schema_arrow, config=config)
    groups = range(split.start, file.num_row_groups if split.end < 0 else split.end)
    number = sum(file.metadata.row_group(index).num_rows for index in range(split.start))
    name = shown_name(split.path)
    try:
        with storage.name_errors(split.path, of_content=True):
            for text, key in _values(file, path=split.path, groups=groups, config=config):
                if config.row == "sentence" or split.takes(number):
                    yield _Row(f"{name}, row {number}", text if isinstance(text, str | None) else text.decode(), key)
                number += 1
    except storage.StorageError:
        raise
    except _KeyError as error:
        raise ValueError(
            f"{split.path}: column '{config.document_column}' has a value that Python cannot represent, near row "
            f"{number}: {error}; cast it to text, or set another document_column"
        ) from error
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError, PageError) as error:
        raise ValueError(
            f"{split.path}: cannot be read near row {number}: {error}; remove it and fetch it again"
        ) from error


def _values(
    file: pq.ParquetFile, *, path: str, groups: Iterable[int], config: SourceConfig
) -> Iterator[tuple[str | bytes | None, object]]:
    """Yield (text, key) for each row of some row groups. The key is the row's value in document_column, or None without
    this column. The text of a large row group comes as UTF-8 bytes."""
    for group in groups:
        texts = _texts(file, path=path, group=group, column=config.text_column)
        if config.document_column is None:
            yield from ((text, None) for text in texts)
        else:
            for leaf in _leaves(file, config.document_column):
                _refuse_bomb(path, chunk=file.metadata.row_group(group).column(leaf))
            batches = file.iter_batches(batch_size=_ROWS_AT_ONCE, row_groups=[group], columns=[config.document_column])
            keys = (key for batch in batches for key in _list_keys(batch.column(0)))
            yield from zip(texts, keys, strict=True)


def _leaves(file: pq.ParquetFile, column: str) -> list[int]:
    """Return the indices of the column chunks that hold `column`; several if it has fields."""
    schema = file.metadata.schema
    paths = [schema.column(index).path for index in range(len(schema))]
    return [index for index, path in enumerate(paths) if path == column or path.startswith(f"{column}.")]


def _refuse_bomb(path: str, *, chunk: Any) -> None:
    with storage.open_input(path, read_ahead=_HEADERS_BYTES) as file:
        refuse_bomb(chunk, name=path, file=file)


def _bounded(texts: Iterable[str | bytes | None], *, path: str, stored: int, end: int) -> Iterator[str | bytes | None]:
    """Yield `texts`, the rows of a row group whose column takes `stored` bytes up to byte `end` of the file `path`.
    Raises ValueError if these rows are more than text can be (see refuse_expansion): a dictionary holds a long text
    once for any number of rows."""
    given = 0
    for text in texts:
        given += 1 + len(text or "")
        refuse_expansion(given, taken=stored, name=path, offset=end)
        yield text


def _texts(file: pq.ParquetFile, *, path: str, group: int, column: str) -> Iterator[str | bytes | None]:
    (leaf,) = _leaves(file, column)
    chunk = file.metadata.row_group(group).column(leaf)
    _refuse_bomb(path, chunk=chunk)
    texts = _unbounded_texts(file, path=path, group=group, column=column, leaf=leaf)
    end = start_of(chunk) + chunk.total_compressed_size
    return _bounded(texts, path=path, stored=chunk.total_compressed_size, end=end)


def _unbounded_texts(
    file: pq.ParquetFile, *, path: str, group: int, column: str, leaf: int
) -> Iterator[str | bytes | None]:
    schema = file.metadata.schema
    chunk = file.metadata.row_group(group).column(leaf)
    given = 0
    if chunk.total_uncompressed_size > _LARGE_BYTES and parquet_pages.can_read(chunk, schema.column(leaf)):
        try:
            for value in parquet_pages.read_values(
                path, chunk=chunk, nullable=schema.column(leaf).max_definition_level > 0
            ):
                yield value
                given += 1
            return
        except parquet_pages.UnreadableFormatError:
            pass  # pyarrow can, with more memory
    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, row_groups=[group], columns=[column]):
        for text in batch.column(0).to_pylist():
            if given:
                given -= 1
            else:
                yield text


class _KeyError(Exception):
    """Raised for a value of document_column that Arrow can represent and Python cannot, such as an unknown time zone or
    a year above 9999."""


def _list_keys(column: pa.Array) -> list[object]:
    try:
        return list(column.to_pylist())
    except (ValueError, LookupError, OverflowError) as error:
        raise _KeyError(error) from error
