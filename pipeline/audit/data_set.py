"""Reads a data set of this pipeline and checks its files: manifest, tokenizer and shards. The row groups of a shard are
read as blocks (flat arrays).

Page checksums are verified at every read.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import storage
from pipeline.audit.blocks import Block, Bools, Facts, Int64s, Vocabulary, offsets_of
from pipeline.audit.findings import Findings, Place
from pipeline.audit.rows import Counts
from pipeline.audit.words import describe_tokens
from pipeline.dataset import (
    MANIFEST_NAME,
    TOKEN_COUNTS_NAME,
    TOKENIZER_FOLDER,
    DataSetError,
    Manifest,
    Shard,
    file_sha256,
    resolve_inside,
    schema,
    verify_shard,
)
from pipeline.output import PUBLISHED
from pipeline.tokenizer import WordTokenizer, read_tokenizer

KNOWN_FILES = {MANIFEST_NAME, *PUBLISHED}
"""Files that belong to a data set although the manifest does not list them."""


def describe_set(manifest: Manifest) -> Facts:
    """Return the facts of the data set that `manifest` describes. Settings that are not in the manifest, because an
    older release of this package wrote it, get the defaults."""
    config = manifest.config
    published = config.get("mode", "strict") == "reference"
    return Facts(
        published=published,
        max_seq_length=manifest.max_seq_length,
        max_predictions=manifest.max_predictions,
        mask_sets=manifest.mask_sets,
        next_sentence=manifest.next_sentence,
        masking=config.get("masking", "whole_word"),
        draw=config.get("replacement_draw") or ("piece" if published else "word"),
        masked_probability=config.get("masked_probability", 0.15),
        most_passes=tuple(
            max(1, math.ceil(source.get("weight", 1.0) * config.get("passes", 1)))
            for source in manifest.statistics.get("sources", [])
        ),
        dictionary_sources=tuple(
            index
            for index, source in enumerate(manifest.statistics.get("sources", []))
            for language in source["language"].split(", ")
            if {language, language.partition("-")[0]} & set(config.get("dictionary_words", []))
        ),
    )


def load_vocabulary(root: str, manifest: Manifest, *, findings: Findings) -> tuple[Vocabulary, Any]:
    """Read the tokenizer folder and check it against the manifest. Return the vocabulary and the tokenizer (a
    tokenizers.Tokenizer).

    If the folder cannot be read, the vocabulary is made from the size and the special ids in the manifest, and None is
    returned in place of the tokenizer.
    """
    special = {name: getattr(manifest.special, name) for name in ("unk", "cls", "sep", "mask")}
    place = Place(f"{TOKENIZER_FOLDER}/tokenizer.json")
    findings.looked("vocabulary", 3)
    try:
        tokenizer = WordTokenizer(read_tokenizer(storage.join(root, place.file)), origin=place.file)
    except ValueError as error:
        findings.add("vocabulary", place, str(error))
        ids = {manifest.special.pad, *special.values()}
        size = max(manifest.vocabulary_size, max(ids) + 1)
        tables = Vocabulary(
            tokens=[str(index) for index in range(size)],
            keys=np.arange(size, dtype=np.uint64),
            special=np.isin(np.arange(size), list(ids)),
            unused=np.zeros(size, np.bool_),
            continues=None,
            ends=None,
            **special,
        )
        return tables, None
    if tokenizer.vocabulary_hash != manifest.vocabulary_hash:
        text = f"the folder's vocabulary hash is {tokenizer.vocabulary_hash}, the manifest's {manifest.vocabulary_hash}"
        findings.add("vocabulary", place, text)
    if tokenizer.vocab_size != manifest.vocabulary_size:
        findings.add(
            "vocabulary", place, f"{tokenizer.vocab_size} tokens, the manifest says {manifest.vocabulary_size}"
        )
    names = {name: getattr(tokenizer.special, name) for name in special}
    if names | {"pad": tokenizer.special.pad} != special | {"pad": manifest.special.pad}:
        findings.add("vocabulary", place, f"special ids {names}, the manifest says {special}")
    all_special = set(tokenizer.special_ids.tolist())
    tables = describe_tokens(tokenizer.tokens, special=all_special, names=names, backend=tokenizer.backend)
    return tables, tokenizer.backend


def check_folder(root: str, manifest: Manifest, *, findings: Findings) -> None:
    """Check all files that the manifest lists, except shards. Report files in `root` that the manifest does not
    list."""
    for name, expected in manifest.files.items():
        findings.looked("files")
        path = resolve_inside(root, name)
        if storage.find_file(path) is None:
            findings.add("files", Place(name), "listed in the manifest but missing")
        elif file_sha256(path) != expected:
            findings.add("files", Place(name), f"sha256 differs from the manifest's {expected}")
    listed = {shard.path for shard in manifest.shards} | set(manifest.files) | KNOWN_FILES
    for file in storage.list_files(root):
        findings.looked("unlisted files")
        if file.name not in listed:
            text = "not listed in the manifest, but programs that read the whole folder would use it"
            findings.add("unlisted files", Place(file.name), text)


def check_file(root: str, shard: Shard, *, findings: Findings) -> bool:
    """Check the shard's size, footer and whole-file hash against `shard`, the shard's entry in the manifest. Return
    whether the file exists."""
    findings.looked("files")
    try:
        verify_shard(root, shard, full=True)
    except (DataSetError, OSError) as error:
        storage.raise_outage(error, url=storage.join(root, shard.path))
        findings.add("files", Place(shard.path), str(error))
    return storage.find_file(storage.join(root, shard.path)) is not None


def check_schema(file: pq.ParquetFile, shard: Shard, manifest: Manifest, *, findings: Findings) -> bool:
    """Check the shard's columns and metadata. Return whether read_block can read the shard's rows."""
    findings.looked("schema")
    expected = schema.sentence_pair_schema(manifest.vocabulary_size, vocabulary_hash=manifest.vocabulary_hash)
    found = file.schema_arrow
    place = Place(shard.path)
    readable = True
    for item in expected:
        index = found.get_field_index(item.name)
        if index < 0:
            findings.add("schema", place, f"column {item.name} is missing")
            readable = False
        elif not _same_type(found.field(index).type, item.type):
            findings.add("schema", place, f"column {item.name} is {found.field(index).type}, not {item.type}")
            readable = False
    for name in sorted({*found.names} - {*expected.names}):
        findings.add("schema", place, f"unknown column {name}")
    metadata = found.metadata or {}
    for key, value in expected.metadata.items():
        if metadata.get(key) != value:
            stated = metadata.get(key, b"absent").decode(errors="replace")
            findings.add("schema", place, f"metadata {key.decode()} is {stated}, not {value.decode()}")
    return readable


def _same_type(found: pa.DataType, expected: pa.DataType) -> bool:
    """Whether two types are equal, ignoring names and nullability of list elements."""
    if pa.types.is_list(expected):
        return pa.types.is_list(found) and _same_type(found.value_type, expected.value_type)
    return bool(found == expected)


def read_block(file: pq.ParquetFile, group: int, *, name: str, findings: Findings) -> tuple[Block, Bools]:
    """Read the row group with the index `group`, and return (block, mismatched). `block` has the rows of this row group
    as flat arrays. `mismatched` (bool[n]) is true for rows whose masked positions and masked inputs differ in number.
    The block has no mask sets (choices of positions to predict) for mismatched rows.

    `name` is the file's path in the data set. Raises OSError or pyarrow.ArrowException if a page is damaged.
    """
    names = [field.name for field in schema.sentence_pair_schema(1, vocabulary_hash="")]
    table = file.read_row_group(group, columns=names).combine_chunks()
    count = table.num_rows
    column = {name: table[name].combine_chunks() for name in names}
    document, _ = _document_ids(column[schema.DOCUMENT_ID])
    second, has_no_second = _document_ids(column[schema.SECOND_DOCUMENT_ID])
    _check_ids(column, name=name, group=group, findings=findings)
    position_sets, input_sets = column[schema.MASKED_POSITIONS], column[schema.MASKED_INPUTS]
    sets, other_sets = _lengths(position_sets), _lengths(input_sets)
    position_lists, input_lists = position_sets.flatten(), input_sets.flatten()
    sizes, other_sizes = _lengths(position_lists), _lengths(input_lists)
    mismatched = sets != other_sets
    rows, other_rows = np.repeat(np.arange(count), sets), np.repeat(np.arange(count), other_sets)
    usable = ~mismatched[rows]
    uneven = sizes[usable] != other_sizes[~mismatched[other_rows]]
    mismatched[rows[usable][uneven]] = True
    keep, other_keep = ~mismatched[rows], ~mismatched[other_rows]
    block = Block(
        ids=_flat(column[schema.INPUT_IDS]),
        offsets=offsets_of(_lengths(column[schema.INPUT_IDS])),
        num_tokens=_numbers(column[schema.NUM_TOKENS]),
        first_length=_numbers(column[schema.FIRST_LENGTH]),
        label=_numbers(column[schema.NEXT_SENTENCE_LABEL], absent=-1),
        document=document,
        second=second,
        has_second=~has_no_second,
        source=_numbers(column[schema.SOURCE]),
        pass_number=_numbers(column[schema.PASS_NUMBER]),
        list_rows=rows[keep],
        list_offsets=offsets_of(sizes[keep]),
        positions=_flat(position_lists)[np.repeat(keep, sizes)],
        inputs=_flat(input_lists)[np.repeat(other_keep, other_sizes)],
        numbers=np.arange(count),
        file=name,
        row_group=group,
    )
    return block, mismatched


def _check_ids(column: dict[str, Any], *, name: str, group: int, findings: Findings) -> None:
    for key in (schema.DOCUMENT_ID, schema.SECOND_DOCUMENT_ID):
        lengths = np.asarray(pa.compute.binary_length(column[key]).fill_null(16))
        for row in np.flatnonzero(lengths != 16)[:1].tolist():
            findings.add("schema", Place(name, group, row), f"{key} has {lengths[row]} bytes, not 16")
    for key, array in column.items():
        if key not in (schema.NEXT_SENTENCE_LABEL, schema.SECOND_DOCUMENT_ID) and array.null_count:
            row = int(np.flatnonzero(np.asarray(array.is_null()))[0])
            findings.add("schema", Place(name, group, row), f"{key} is null", count=array.null_count)


def _numbers(array: pa.Array, *, absent: int = 0) -> Int64s:
    return np.asarray(array.cast(pa.int64()).fill_null(absent).to_numpy(zero_copy_only=False), np.int64)


def _lengths(array: pa.Array) -> Int64s:
    return np.asarray(array.value_lengths().cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _flat(array: pa.Array) -> Int64s:
    return _numbers(array.flatten(), absent=-1)


def _document_ids(array: pa.Array) -> tuple[Any, Bools]:
    """Return the document ids, uint8[n, 16], and whether each id is null, bool[n]. Null ids, and ids that do not have
    16 bytes, become zeros."""
    null = np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)
    found = b"".join(value if value is not None and len(value) == 16 else bytes(16) for value in array.to_pylist())
    return np.frombuffer(found, np.uint8).reshape(-1, 16), null


def check_counts(
    root: str, manifest: Manifest, *, counts: dict[str, Counts], token_counts: Int64s | None, findings: Findings
) -> None:
    """Compare counts of the rows with the numbers in the manifest and in token_counts.parquet.

    The numbers are the rows, tokens, lengths and labels of each split (train or validation), the rows and tokens of
    each source, and how often each token id occurs. `counts` has the sums of the splits "train" and "validation".
    `token_counts` (int64[vocabulary]) counts each id in the training rows; it is None if some rows could not be read.
    """

    def compare(what: str, stated: Any, found: Any) -> None:
        findings.looked("counts")
        if not np.array_equal(stated, found) and not np.allclose(stated, found, rtol=0, atol=1e-9):
            findings.add("counts", Place(MANIFEST_NAME), f"{what} {stated}, counted {found}")

    for split, found in counts.items():
        stated = manifest.statistics.get("splits", {}).get(split, {})
        for name, number in (("rows", found.rows), ("tokens", found.tokens)):
            if name in stated:
                compare(f"{split}: {name}", stated[name], number)
        for length, count in enumerate(stated.get("lengths", ())):
            if count != found.lengths.get(length, 0):
                compare(f"{split}: rows of {length} tokens", count, found.lengths.get(length, 0))
        total = found.num_labels
        if stated.get("not_next_rate") is not None and total:
            compare(f"{split}: not_next_rate", stated["not_next_rate"], found.labels.get(1, 0) / total)
    of_training = counts["train"]
    for index, source in enumerate(manifest.statistics.get("sources", [])):
        name = f"source {source.get('name', index)}:"
        compare(f"{name} rows", source.get("rows", 0), of_training.source_rows.get(index, 0))
        compare(f"{name} tokens", source.get("tokens", 0), of_training.source_tokens.get(index, 0))
    if token_counts is None or TOKEN_COUNTS_NAME not in manifest.files:
        return
    findings.looked("vocabulary")
    try:
        with storage.open_parquet(storage.join(root, TOKEN_COUNTS_NAME)) as file:
            stated_counts = np.asarray(file.read()["count"])
    except (OSError, KeyError, pa.ArrowException) as error:
        storage.raise_outage(error, url=storage.join(root, TOKEN_COUNTS_NAME))
        findings.add("vocabulary", Place(TOKEN_COUNTS_NAME), f"cannot be read ({error})")
        return
    special = list(manifest.special.model_dump().values())
    found_counts = token_counts.copy()
    found_counts[[index for index in special if index < found_counts.size]] = 0
    if stated_counts.size != found_counts.size or (different := stated_counts != found_counts).any():
        first = int(np.argmax(different)) if stated_counts.size == found_counts.size else stated_counts.size
        findings.add("vocabulary", Place(TOKEN_COUNTS_NAME), f"id {first}: the count differs from the rows")
