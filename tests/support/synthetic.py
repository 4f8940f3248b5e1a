"""A valid data set made of numbers: Parquet shards, vocabulary, token counts and manifest, in milliseconds.

For tests of the trainer. Ids climb by one inside a row, so that a model can learn them. Vectorised: 5 M tokens/s.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.dataset import manifest as contract
from pipeline.dataset import schema

FIRST_FREE_ID = 104
"""Ids below are special or unused, as in BERT's vocabulary."""
SPECIAL = contract.Special(pad=0, unk=100, cls=101, sep=102, mask=103)

Lengths = Callable[[np.random.Generator, int, int], np.ndarray]
"""(generator, number of rows, max_seq_length) -> lengths of the rows."""


def uniform_lengths(generator: np.random.Generator, count: int, longest: int) -> np.ndarray:
    """Evenly spread over 5..longest."""
    return generator.integers(5, longest + 1, size=count)


def full_lengths(generator: np.random.Generator, count: int, longest: int) -> np.ndarray:
    """Every row is as long as it may be."""
    return np.full(count, longest)


def wikipedia_lengths(generator: np.random.Generator, count: int, longest: int) -> np.ndarray:
    """As English Wikipedia at 512: mean half of the longest, 23% at the longest, E[l^2] / E[l] 0.75 of it."""
    short = 5 + (longest - 5) * generator.random(count) ** 1.95
    return np.where(generator.random(count) < 0.23, longest, short).astype(np.int64)


def make_table(
    generator: np.random.Generator,
    *,
    lengths: np.ndarray,
    mask_sets: int,
    max_predictions: int,
    vocabulary_size: int,
    next_sentence: str = "random_document",
    num_sources: int = 1,
) -> pa.Table:
    """Rows of the given lengths (each at least 5) in the schema of pipeline.dataset.schema."""
    lengths = np.asarray(lengths, dtype=np.int64)
    rows, paired = lengths.size, next_sentence != "none"
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    base = generator.integers(0, vocabulary_size, size=rows)
    ids = FIRST_FREE_ID + (np.repeat(base, lengths) + place) % (vocabulary_size - FIRST_FREE_ID)
    first = 3 + (generator.random(rows) * (lengths - 4)).astype(np.int64) if paired else lengths
    ids[offsets[:-1]] = SPECIAL.cls
    ids[offsets[:-1] + first - 1] = SPECIAL.sep
    ids[offsets[1:] - 1] = SPECIAL.sep

    free = lengths - (3 if paired else 2)
    counts = np.clip(np.rint(0.15 * lengths).astype(np.int64), 1, np.minimum(max_predictions, free))
    counts = np.repeat(counts, mask_sets)
    set_offsets = np.concatenate(([0], np.cumsum(counts)))
    rank = np.arange(set_offsets[-1]) - np.repeat(set_offsets[:-1], counts)
    stride = np.repeat(np.repeat(free, mask_sets) / counts, counts)
    start = np.repeat(generator.random(counts.size), counts) * stride
    limit = np.repeat(np.repeat(free, mask_sets), counts) - 1
    positions = 1 + np.minimum(np.floor(start + rank * stride).astype(np.int64), limit)
    positions += positions >= np.repeat(np.repeat(first, mask_sets), counts) - 1
    labels = ids[np.repeat(np.repeat(offsets[:-1], mask_sets), counts) + positions]
    draw = generator.random(positions.size)
    random_ids = generator.integers(FIRST_FREE_ID, vocabulary_size, size=positions.size)
    inputs = np.where(draw < 0.8, SPECIAL.mask, np.where(draw < 0.9, labels, random_ids))

    table_schema = schema.sentence_pair_schema(vocabulary_size, vocabulary_hash=vocabulary_hash(vocabulary_size))
    id_type = schema.id_type(vocabulary_size)

    def nested(values: np.ndarray, value_type: pa.DataType) -> pa.Array:
        inner = pa.ListArray.from_arrays(pa.array(set_offsets, pa.int32()), pa.array(values, value_type))
        return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1) * mask_sets, pa.int32()), inner)

    names = [generator.bytes(16) for _ in range(rows)]
    columns = {
        schema.INPUT_IDS: pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids, id_type)),
        schema.NUM_TOKENS: pa.array(lengths, pa.uint16()),
        schema.FIRST_LENGTH: pa.array(first, pa.uint16()),
        schema.NEXT_SENTENCE_LABEL: pa.array(
            generator.integers(0, 2, size=rows), pa.uint8(), mask=np.full(rows, not paired)
        ),
        schema.MASKED_POSITIONS: nested(positions, pa.uint16()),
        schema.MASKED_INPUTS: nested(inputs, id_type),
        schema.DOCUMENT_ID: pa.array(names, pa.binary()),
        schema.SECOND_DOCUMENT_ID: pa.array(names if paired else [None] * rows, pa.binary()),
        schema.PASS_NUMBER: pa.array(np.zeros(rows), pa.uint16()),
        schema.SOURCE: pa.array(np.arange(rows) % num_sources, pa.uint16()),
    }
    return pa.table([columns[name].cast(table_schema.field(name).type) for name in table_schema.names], table_schema)


def write_shard(
    root: Path, tables: list[pa.Table], *, split: contract.SplitName, index: int, count: int
) -> contract.Shard:
    """Write one shard with a row group a table, with page checksums; returns its manifest entry."""
    name = contract.shard_name(split, index, count)
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, tables[0].schema, compression="zstd", write_page_checksum=True) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
    tokens = tuple(int(table[schema.NUM_TOKENS].to_numpy().sum()) for table in tables)
    masked = [
        np.diff(batch.column(schema.MASKED_POSITIONS).flatten().offsets.to_numpy())
        for table in tables
        for batch in table.to_batches()
    ]
    return contract.Shard(
        path=name,
        split=split,
        rows=sum(table.num_rows for table in tables),
        tokens=sum(tokens),
        bytes=path.stat().st_size,
        sha256=contract.file_sha256(path),
        footer_sha256=contract.footer_sha256(path),
        row_group_rows=tuple(table.num_rows for table in tables),
        row_group_tokens=tokens,
        max_masked=max(int(counts.max(initial=0)) for counts in masked),
        masked=sum(int(counts.sum()) for counts in masked),
    )


def write_data_set(
    root: str | Path,
    *,
    shards: int = 2,
    row_groups: int = 2,
    rows: int = 32,
    validation_shards: int = 1,
    mask_sets: int = 2,
    max_seq_length: int = 64,
    max_predictions: int = 10,
    vocabulary_size: int = 512,
    next_sentence: str = "random_document",
    lengths: Lengths = uniform_lengths,
    seed: int = 0,
    num_sources: int = 1,
    config: dict[str, Any] | None = None,
) -> contract.Manifest:
    """Write `shards` x `row_groups` x `rows` training rows, and as many a shard held out; return the manifest."""
    root = Path(root)
    made: list[contract.Shard] = []
    found: dict[str, np.ndarray] = {}
    counts = np.zeros(vocabulary_size, dtype=np.int64)
    parts: tuple[tuple[contract.SplitName, int], ...] = (("train", shards), ("validation", validation_shards))
    for part, (split, count) in enumerate(parts):
        for index in range(count):
            generator = np.random.default_rng([seed, part, index])
            tables = [
                make_table(
                    generator,
                    lengths=lengths(generator, rows, max_seq_length),
                    mask_sets=mask_sets,
                    max_predictions=max_predictions,
                    vocabulary_size=vocabulary_size,
                    next_sentence=next_sentence,
                    num_sources=num_sources,
                )
                for _ in range(row_groups)
            ]
            made.append(write_shard(root, tables, split=split, index=index, count=count))
            for table in tables:
                rows_by_length = np.bincount(table[schema.NUM_TOKENS].to_numpy(), minlength=max_seq_length + 1)
                found[split] = found.get(split, 0) + rows_by_length
            if split == "train":
                for table in tables:
                    flat = table[schema.INPUT_IDS].combine_chunks().flatten().to_numpy()
                    counts += np.bincount(flat, minlength=vocabulary_size)
    files = _write_vocabulary(root, vocabulary_size, counts)
    manifest = make_manifest(
        made,
        files=files,
        mask_sets=mask_sets,
        max_seq_length=max_seq_length,
        max_predictions=max_predictions,
        vocabulary_size=vocabulary_size,
        next_sentence=next_sentence,
        seed=seed,
        num_sources=num_sources,
        lengths=found,
        config=config,
    )
    contract.write_manifest(root, manifest, run={"made_by": "tests/synthetic.py"})
    return manifest


def make_manifest(
    shards: list[contract.Shard],
    *,
    files: dict[str, str] | None = None,
    mask_sets: int = 2,
    max_seq_length: int = 64,
    max_predictions: int = 10,
    vocabulary_size: int = 512,
    next_sentence: str = "random_document",
    seed: int = 0,
    num_sources: int = 1,
    lengths: dict[str, np.ndarray] | None = None,
    config: dict[str, Any] | None = None,
) -> contract.Manifest:
    """A manifest that lists `shards`, without touching the disk; `lengths` as summarize_rows counts them, by split.

    Without them rows are as equally long as the shards' tokens allow.
    """
    made = lengths or {split: _spread(shards, split=split) for split in ("train", "validation")}
    return contract.Manifest(
        schema_version=schema.SCHEMA_VERSION,
        config={"synthetic": True, "next_sentence": next_sentence, **(config or {})},
        seed=seed,
        versions={"synthetic": "1"},
        vocabulary_hash=vocabulary_hash(vocabulary_size),
        vocabulary_size=vocabulary_size,
        special=SPECIAL,
        max_seq_length=max_seq_length,
        max_predictions=max_predictions,
        mask_sets=mask_sets,
        next_sentence=next_sentence,
        shards=tuple(sorted(shards, key=lambda shard: shard.path)),
        files=files or {},
        drops={},
        statistics={
            "shortcuts": {"source": 0.5},
            "splits": {split: {"lengths": counts.tolist()} for split, counts in made.items()},
        },
        sources=tuple(f"source-{number}" for number in range(num_sources)),
    )


def _spread(shards: list[contract.Shard], *, split: str) -> np.ndarray:
    own = [shard for shard in shards if shard.split == split]
    rows, tokens = sum(shard.rows for shard in own), sum(shard.tokens for shard in own)
    counts = np.zeros(tokens // max(1, rows) + 2, dtype=np.int64)
    if rows:
        counts[-2:] = rows - tokens % rows, tokens % rows
    return counts


def vocabulary(size: int) -> list[str]:
    """BERT's layout of special and unused entries, then t104, t105, ..."""
    special = {getattr(SPECIAL, name): f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return [special.get(i, f"[unused{i}]" if i < FIRST_FREE_ID else f"t{i}") for i in range(size)]


def vocabulary_hash(size: int) -> str:
    """A stable stand-in for the hash of `vocabulary(size)`."""
    return f"synthetic-{size}"


def _write_vocabulary(root: Path, size: int, counts: np.ndarray) -> dict[str, str]:
    tokens = vocabulary(size)
    folder = root / contract.TOKENIZER_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    words = folder / "vocab.txt"
    words.write_text("\n".join(tokens) + "\n", encoding="utf-8")
    without_specials = counts.copy()
    without_specials[:FIRST_FREE_ID] = 0
    table = pa.table(
        [pa.array(range(size), pa.int32()), pa.array(tokens), pa.array(without_specials, pa.int64())],
        schema=schema.token_counts_schema(),
    )
    pq.write_table(table, root / contract.TOKEN_COUNTS_NAME)
    return {
        f"{contract.TOKENIZER_FOLDER}/vocab.txt": contract.file_sha256(words),
        contract.TOKEN_COUNTS_NAME: contract.file_sha256(root / contract.TOKEN_COUNTS_NAME),
    }
