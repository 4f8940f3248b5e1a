"""Buckets follow from the input alone; a shard holds every row once, in the contract's columns, with equal bytes."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpora import make_config, make_documents, write_vocabulary
from pipeline.build import write_shard
from pipeline.build.write_shard import ShardError, build_shard, verify_written
from pipeline.config.schema import PipelineConfig
from pipeline.dataset.manifest import Shard
from pipeline.dataset.schema import sentence_pair_schema
from pipeline.documents import Document
from pipeline.instances.bucket import Instances
from pipeline.shuffle.buckets import MIN_DOCUMENTS, BucketCount, Buckets, choose_buckets, membership, plan_shards
from pipeline.shuffle.extents import Extent
from pipeline.shuffle.spill import SpillWriter
from pipeline.tokenizer.tokenizer import TokenizedDocument, WordTokenizer


def name_of(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def counted(bucket: int, documents: int, tokens: int) -> BucketCount:
    return BucketCount(bucket, documents, tokens, lowest=(0, 1)[: min(2, documents)])


# Buckets


def test_number_of_buckets_follows_from_the_text() -> None:
    assert choose_buckets(text_bytes=1, shards="auto", validation_fraction=0.0) == Buckets(1, 0, 0.0)
    assert choose_buckets(text_bytes=640_000_001, shards="auto", validation_fraction=0.01) == Buckets(11, 1, 0.01)
    assert choose_buckets(text_bytes=10, shards=40, validation_fraction=0.05) == Buckets(40, 3, 0.05)


@settings(max_examples=50)
@given(train=st.integers(1, 50), validation=st.integers(1, 5), fraction=st.floats(0.01, 0.5))
def test_every_document_has_one_bucket_of_its_part(train: int, validation: int, fraction: float) -> None:
    """By hash, so that it ends whatever the lengths (DeepLearningExamples#1083)."""
    buckets = Buckets(train, validation, fraction)
    for number in range(50):
        bucket = buckets.bucket_of(name_of(number))
        held_out = membership(name_of(number)) / 2**64 < fraction
        assert buckets.split_of(bucket) == ("validation" if held_out else "train")
        assert 0 <= bucket < train + validation


def test_held_out_share_is_the_fraction() -> None:
    buckets = Buckets(4, 1, 0.1)
    held_out = sum(buckets.split_of(buckets.bucket_of(name_of(number))) == "validation" for number in range(10_000))
    assert abs(held_out - 1000) < 4 * 30  # four standard deviations


def test_small_buckets_join_their_neighbours() -> None:
    counts = [counted(0, 3, 900), counted(1, 20, 1000), counted(2, 20, 50), counted(3, 20, 1000), counted(5, 2, 5)]
    plan = plan_shards(counts, buckets=Buckets(6, 0, 0.0))
    assert plan.shard_of == {0: ("train", 0), 1: ("train", 0), 2: ("train", 1), 3: ("train", 2), 5: ("train", 2)}
    small = [counted(0, 20, 1000), counted(1, 20, 20), counted(2, 20, 1000), counted(3, 20, 1000)]
    plan = plan_shards(small, buckets=Buckets(4, 0, 0.0))  # 20 tokens are less than a tenth of the mean of 755
    assert plan.shard_of == {0: ("train", 0), 1: ("train", 1), 2: ("train", 1), 3: ("train", 2)}
    assert plan.num_shards == {"train": 3, "validation": 0}


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10_000)), min_size=1, max_size=40).filter(
        lambda sizes: sum(documents for documents, _ in sizes) >= 2
    ),
    st.randoms(use_true_random=False),
)
def test_joined_buckets_are_large_enough_and_none_is_lost(sizes: list[tuple[int, int]], rng: Any) -> None:
    """Joined in one walk, which ends whatever the sizes (DeepLearningExamples#1083)."""
    counts = [counted(bucket, *size) for bucket, size in enumerate(sizes)]
    rng.shuffle(counts)
    plan = plan_shards(counts, buckets=Buckets(len(sizes), 0, 0.0))
    assert set(plan.shard_of) == {count.bucket for count in counts}
    documents: Counter[int] = Counter()
    for count in counts:
        if count.documents:
            documents[plan.shard_of[count.bucket][1]] += count.documents
    assert sorted(documents) == list(range(plan.num_shards["train"]))
    assert plan.num_shards["train"] == 1 or min(documents.values()) >= MIN_DOCUMENTS


def test_too_few_documents_are_refused_with_the_remedy() -> None:
    """One document: no output; two: a crash (transformers#452, #762, PR#7161)."""
    with pytest.raises(ValueError, match="hold 1 distinct document"):
        plan_shards([counted(0, 1, 10)], buckets=Buckets(1, 0, 0.0))
    with pytest.raises(ValueError, match="hold 0 distinct document"):
        plan_shards([], buckets=Buckets(1, 0, 0.0))
    lowest = (2**60, 2**62)
    counts = [BucketCount(0, 50, 500, lowest), BucketCount(1, 1, 10, (2**59,))]
    with pytest.raises(ValueError, match=r"holds out 1 of 51 documents.*smallest value that works here is 0\.0626;"):
        plan_shards(counts, buckets=Buckets(1, 1, 0.05))
    with pytest.raises(ValueError, match="set validation_fraction=0"):
        plan_shards([BucketCount(0, 3, 30, lowest)], buckets=Buckets(1, 1, 0.01))
    for number in (3, 1):
        with pytest.raises(ValueError, match="set unit: chapter for books, add documents"):
            plan_shards([BucketCount(0, number, 30, lowest)], buckets=Buckets(1, 1, 0.01), whole_books=True)
    with pytest.raises(ValueError, match="leaves 1 of 6 documents for training"):
        plan_shards([counted(0, 1, 10), counted(1, 5, 50)], buckets=Buckets(1, 1, 0.9))


def test_one_document_is_enough_where_no_segment_comes_from_another() -> None:
    assert plan_shards([counted(0, 1, 10)], buckets=Buckets(1, 0, 0.0), fewest=1).num_shards["train"] == 1
    counts = [BucketCount(0, 3, 500, (2**60,)), BucketCount(1, 1, 10, (2**59,))]
    assert plan_shards(counts, buckets=Buckets(1, 1, 0.05), fewest=1).num_shards == {"train": 1, "validation": 1}
    with pytest.raises(ValueError, match=r"holds out 0 of 3 documents, but must hold out at least 1: the smallest"):
        plan_shards(counts[:1], buckets=Buckets(1, 1, 0.01), fewest=1)


def test_the_smallest_fraction_named_works() -> None:
    names = [name_of(number) for number in range(40)]
    lowest = sorted(map(membership, names))[:2]
    with pytest.raises(ValueError, match="smallest value that works here is") as caught:
        plan_shards([BucketCount(0, 40, 400, tuple(lowest))], buckets=Buckets(1, 1, 0.001))
    fraction = float(str(caught.value).split("works here is ")[1].split(";")[0])
    buckets = Buckets(1, 1, fraction)
    assert sum(buckets.split_of(buckets.bucket_of(name)) == "validation" for name in names) == 2


# Shards


@pytest.fixture
def tokenizer(tmp_path: Path) -> WordTokenizer:
    return WordTokenizer.from_path(write_vocabulary(tmp_path / "vocab.txt"), lowercase=True)


def tokenize(tokenizer: WordTokenizer, count: int) -> list[TokenizedDocument]:
    return [tokenizer.tokenize(Document(str(n), tuple(text))) for n, text in enumerate(make_documents(count))]


def spilled(folder: Path, documents: list[TokenizedDocument]) -> list[Extent]:
    folder.mkdir(exist_ok=True)
    with SpillWriter(
        folder, name="s", bucket_of=lambda name, group: 0, id_type=pa.uint16(), flush_tokens=300
    ) as writer:
        for document in documents:
            writer.add(document)
    return [extent for _, extent in writer.extents]


def built(
    folder: Path, documents: list[TokenizedDocument], *, config: PipelineConfig, tokenizer: WordTokenizer
) -> tuple[Path, Shard]:
    folder.mkdir(exist_ok=True)
    result = build_shard(
        spilled(folder / "spills", documents),
        config=config,
        tokenizer=tokenizer,
        split="train",
        name="data/train-00000-of-00001.parquet",
        folder=folder,
        scratch=folder / "spills",
    )
    return folder / "train-00000-of-00001.parquet", result.shards[0]


def describe_schema(schema: pa.Schema) -> list[tuple[str, str, bool]]:
    """Parquet names the inside of a list `element`, Arrow `item`."""
    return [(field.name, str(field.type).replace("element", "item"), field.nullable) for field in schema]


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("next_sentence", ["random_document", "sentence_order", "none"])
def test_a_shard_holds_every_row_of_the_bucket_once(
    tmp_path: Path, tokenizer: WordTokenizer, passes: int, next_sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_shard, "ROW_GROUP_TOKENS", 800)
    config = make_config(tmp_path, sources=[{"kind": "text", "path": "x"}], passes=passes, next_sentence=next_sentence)
    documents = sorted(tokenize(tokenizer, 30), key=lambda document: document.id)
    path, shard = built(tmp_path / "a", documents, config=config, tokenizer=tokenizer)
    table = pq.read_table(path)
    schema = sentence_pair_schema(tokenizer.vocab_size, vocabulary_hash=tokenizer.vocabulary_hash)
    assert describe_schema(table.schema) == describe_schema(schema)
    assert table.schema.metadata == schema.metadata

    instances = Instances(documents, config=config, tokenizer=tokenizer)
    rows, masks = instances.batch(np.arange(len(instances)))
    assert table.num_rows == shard.rows == len(rows)
    expected = Counter(
        (
            tuple(rows.ids[rows.offsets[row] : rows.offsets[row + 1]].tolist()),
            int(rows.first_length[row]),
            None if rows.label[row] < 0 else int(rows.label[row]),
            tuple(tuple(mask.positions[mask.offsets[row] : mask.offsets[row + 1]].tolist()) for mask in masks),
            tuple(tuple(mask.inputs[mask.offsets[row] : mask.offsets[row + 1]].tolist()) for mask in masks),
            rows.document_id[row].tobytes(),
            rows.second_document_id[row].tobytes() if rows.has_second[row] else None,
            int(rows.pass_number[row]),
        )
        for row in range(len(rows))
    )
    found = Counter(
        (
            tuple(row["input_ids"]),
            row["first_length"],
            row["next_sentence_label"],
            tuple(map(tuple, row["masked_positions"])),
            tuple(map(tuple, row["masked_inputs"])),
            row["document_id"],
            row["second_document_id"],
            row["pass_number"],
        )
        for row in table.to_pylist()
    )
    assert found == expected
    assert table["num_tokens"].to_pylist() == [len(ids) for ids in table["input_ids"].to_pylist()]
    assert {document for row in found for document in (row[5],)} == {document.id for document in documents}

    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert tuple(groups) == shard.row_group_rows
    assert len(groups) > 2
    assert sum(shard.row_group_tokens) == shard.tokens == rows.ids.size
    assert max(shard.row_group_tokens) - min(shard.row_group_tokens) <= 2 * config.max_seq_length
    assert shard.masked == sum(mask.positions.size for mask in masks)
    assert shard.max_masked == max(int(np.diff(mask.offsets).max()) for mask in masks)


def test_rows_are_permuted_over_the_whole_shard(tmp_path: Path, tokenizer: WordTokenizer) -> None:
    """Neighbouring rows come from the same document about as seldom as chance has it."""
    config = make_config(tmp_path, sources=[{"kind": "text", "path": "x"}], next_sentence="none")
    path, _ = built(tmp_path / "a", tokenize(tokenizer, 60), config=config, tokenizer=tokenizer)
    names = pq.read_table(path)["document_id"].to_pylist()
    neighbours = sum(first == second for first, second in pairwise(names))
    assert neighbours < 0.1 * len(names)


def test_equal_documents_give_equal_bytes(tmp_path: Path, tokenizer: WordTokenizer) -> None:
    config = make_config(tmp_path, sources=[{"kind": "text", "path": "x"}])
    documents = tokenize(tokenizer, 40)
    first, shard = built(tmp_path / "a", documents, config=config, tokenizer=tokenizer)
    second, again = built(tmp_path / "b", [*documents[::-1], documents[3]], config=config, tokenizer=tokenizer)
    assert first.read_bytes() == second.read_bytes()
    assert shard == again
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["spills", first.name]
    other = config.model_copy(update={"seed": 1})
    third, _ = built(tmp_path / "c", documents, config=other, tokenizer=tokenizer)
    assert third.read_bytes() != first.read_bytes()


def test_pages_have_checksums_that_readers_verify(tmp_path: Path, tokenizer: WordTokenizer) -> None:
    """A flipped bit anywhere in the pages' data is found; without checksums most of these flips read as other ids.

    Reported as arrow#37242.
    """
    config = make_config(tmp_path, sources=[{"kind": "text", "path": "x"}])
    path, shard = built(tmp_path / "a", tokenize(tokenizer, 60), config=config, tokenizer=tokenizer)
    lengths = lengths_of(path, config)
    verify_written(path, shard=shard, rows_by_length=lengths)
    whole = path.read_bytes()
    column = pq.read_metadata(path).row_group(0).column(0)
    start, stop = column.data_page_offset + 60, column.data_page_offset + column.total_compressed_size
    for place in range(start, stop, (stop - start) // 30):
        data = bytearray(whole)
        data[place] ^= 1
        path.write_bytes(data)
        with pytest.raises(ShardError, match=r"cannot be read \(.*CRC checksum"):
            verify_written(path, shard=shard, rows_by_length=lengths)


def test_a_shard_that_does_not_read_back_gets_no_name(
    tmp_path: Path, tokenizer: WordTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard is complete or absent (streaming#737; datatrove#157)."""
    config = make_config(tmp_path, sources=[{"kind": "text", "path": "x"}])
    write = pq.ParquetWriter.write_table
    monkeypatch.setattr(pq.ParquetWriter, "write_table", lambda self, table, **kw: write(self, table.slice(1), **kw))
    with pytest.raises(ShardError, match="reads back with rows"):
        built(tmp_path / "a", tokenize(tokenizer, 20), config=config, tokenizer=tokenizer)
    assert not (tmp_path / "a" / "train-00000-of-00001.parquet").exists()


def lengths_of(path: Path, config: PipelineConfig) -> np.ndarray[Any, np.dtype[np.int64]]:
    lengths = pq.read_table(path, columns=["num_tokens"])["num_tokens"].to_numpy()
    return np.bincount(lengths, minlength=config.max_seq_length + 1)


def test_a_file_that_holds_other_rows_is_refused(tmp_path: Path, tokenizer: WordTokenizer) -> None:
    config = make_config(tmp_path, sources=[{"kind": "text", "path": "x"}])
    path, shard = built(tmp_path / "a", tokenize(tokenizer, 20), config=config, tokenizer=tokenizer)
    lengths = lengths_of(path, config)
    with pytest.raises(ShardError, match="reads back with rows"):
        verify_written(path, shard=shard.model_copy(update={"row_group_rows": (1,)}), rows_by_length=lengths)
    table = pq.read_table(path)
    index = table.schema.get_field_index("num_tokens")
    wrong = pa.array(np.zeros(table.num_rows, np.uint16))
    pq.write_table(table.set_column(index, table.schema.field(index), wrong), path, write_page_checksum=True)
    with pytest.raises(ShardError, match="num_tokens differs"):
        verify_written(path, shard=shard, rows_by_length=lengths)


def test_many_small_buckets_join_in_linear_time() -> None:
    """Adding up a growing group at each bucket would take hours here."""
    counts = [counted(0, 1_000, 10**13), *(counted(bucket, 1, 1) for bucket in range(1, 400_000))]
    plan = plan_shards(counts, buckets=Buckets(400_000, 0, 0.0))
    assert plan.num_shards["train"] == 1
    assert set(plan.shard_of.values()) == {("train", 0)}
