"""Spill files give back what was written, by bucket, whole or by index, and take bounded memory."""

from __future__ import annotations

import hashlib
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.documents import ID_BYTES
from pipeline.shuffle import levels
from pipeline.shuffle.buckets import Buckets
from pipeline.shuffle.extents import BucketRange, Extent, SpillFile
from pipeline.shuffle.levels import divide_buckets, join_spills
from pipeline.shuffle.spill import (
    Origin,
    SpillError,
    SpillWriter,
    find_extents,
    read_documents,
    read_index,
    read_origins,
)
from pipeline.shuffle.tables import TableError
from pipeline.tokenizer.tokenizer import TokenizedDocument


def tokenized(name: int, lengths: list[int], dtype: type = np.uint16) -> TokenizedDocument:
    total = sum(lengths)
    ids = (np.arange(total) * 7 + name) % 60_000
    starts = np.arange(total) % 3 == 0
    digest = hashlib.blake2b(str(name).encode(), digest_size=16).digest()
    return TokenizedDocument(digest, ids.astype(dtype), starts, np.array(lengths, np.int32))


def same(first: TokenizedDocument, second: TokenizedDocument) -> bool:
    return first.id == second.id and all(
        np.array_equal(getattr(first, name), getattr(second, name))
        and getattr(first, name).dtype == getattr(second, name).dtype
        for name in ("ids", "word_starts", "sentence_lengths")
    )


def spill(
    folder: Path, documents: list[TokenizedDocument], *, buckets: int, flush: int, kind: pa.DataType
) -> list[tuple[int, Extent]]:
    with SpillWriter(
        folder, name="split", bucket_of=lambda name, group: name[0] % buckets, id_type=kind, flush_tokens=flush
    ) as writer:
        for document in documents:
            writer.add(document)
    return writer.extents


@settings(max_examples=40)
@given(
    lengths=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1, max_size=30),
    buckets=st.integers(1, 5),
    flush=st.integers(1, 500),
    wide=st.booleans(),
)
def test_every_document_comes_back_from_its_bucket(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]], buckets: int, flush: int, wide: bool
) -> None:
    kind, dtype = (pa.int32(), np.int32) if wide else (pa.uint16(), np.uint16)
    documents = [tokenized(name, part, dtype) for name, part in enumerate(lengths)]
    extents = spill(tmp_path_factory.mktemp("spill"), documents, buckets=buckets, flush=flush, kind=kind)
    for bucket in range(buckets):
        own = [extent for number, extent in extents if number == bucket]
        expected = sorted((d for d in documents if d.id[0] % buckets == bucket), key=lambda d: d.id)
        found, duplicates = read_documents(own, id_type=kind)
        assert duplicates == 0
        assert len(found) == len(expected)
        assert all(map(same, found, expected))
        index = read_index(own)
        assert [index.ids[position].tobytes() for position in index.distinct()] == [d.id for d in expected]
        assert index.tokens[index.distinct()].tolist() == [d.ids.size for d in expected]


def test_duplicates_are_left_out_once_and_counted(tmp_path: Path) -> None:
    documents = [tokenized(name, [4, 5]) for name in (1, 2, 1, 3, 1)]
    extents = spill(tmp_path, documents, buckets=1, flush=20, kind=pa.uint16())
    assert len(extents) > 1
    found, duplicates = read_documents([extent for _, extent in extents], id_type=pa.uint16())
    assert [document.id for document in found] == sorted({document.id for document in documents})
    assert duplicates == 2
    assert read_index(extent for _, extent in extents).distinct().size == 3


def test_order_of_extents_does_not_matter(tmp_path: Path) -> None:
    documents = [tokenized(name, [3]) for name in range(50)]
    extents = [extent for _, extent in spill(tmp_path, documents, buckets=1, flush=10, kind=pa.uint16())]
    forward, _ = read_documents(extents, id_type=pa.uint16())
    backward, _ = read_documents(extents[::-1], id_type=pa.uint16())
    assert all(map(same, forward, backward))


def test_ids_that_differ_only_in_their_last_bytes_are_different(tmp_path: Path) -> None:
    """Trailing zero bytes must not be lost, and order is that of bytes."""
    names = [bytes(15) + bytes([last]) for last in (255, 1, 0)] + [b"\xff" + bytes(15)]
    documents = [
        TokenizedDocument(name, *[getattr(tokenized(0, [2]), f) for f in ("ids", "word_starts", "sentence_lengths")])
        for name in names
    ]
    extents = [extent for _, extent in spill(tmp_path, documents, buckets=1, flush=100, kind=pa.uint16())]
    found, duplicates = read_documents(extents, id_type=pa.uint16())
    assert [document.id for document in found] == sorted(names)
    assert duplicates == 0


def test_two_attempts_do_not_share_a_file_and_a_failed_one_leaves_nothing(tmp_path: Path) -> None:
    spill(tmp_path, [tokenized(1, [2])], buckets=1, flush=100, kind=pa.uint16())
    spill(tmp_path, [tokenized(1, [2])], buckets=1, flush=100, kind=pa.uint16())
    assert len(list(tmp_path.iterdir())) == 2
    with (
        suppress(RuntimeError),
        SpillWriter(tmp_path, name="x", bucket_of=lambda name, group: 0, id_type=pa.uint16()) as writer,
    ):
        writer.add(tokenized(1, [2]))
        raise RuntimeError("broken")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves corrupt files found a stage later (datatrove#157)."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SpillWriter, "_write", full)
    with pytest.raises(OSError, match="No space left"):
        spill(tmp_path, [tokenized(1, [2])], buckets=1, flush=100, kind=pa.uint16())
    assert list(tmp_path.iterdir()) == []


def test_a_changed_or_truncated_file_is_refused(tmp_path: Path) -> None:
    extents = [extent for _, extent in spill(tmp_path, [tokenized(1, [9])], buckets=1, flush=100, kind=pa.uint16())]
    path = Path(extents[0].path)
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    with pytest.raises(SpillError, match="changed since it was written"):
        read_documents(extents, id_type=pa.uint16())
    path.write_bytes(data[:-1])
    with pytest.raises(SpillError, match="ends before byte"):
        read_documents(extents, id_type=pa.uint16())


def test_counting_reads_only_the_index(tmp_path: Path) -> None:
    extents = [extent for _, extent in spill(tmp_path, [tokenized(1, [5000])], buckets=1, flush=100, kind=pa.uint16())]
    assert extents[0].index_bytes < 600 < 10_000 < extents[0].num_bytes
    Path(extents[0].path).write_bytes(Path(extents[0].path).read_bytes()[: extents[0].index_bytes])
    assert read_index(extents).tokens.tolist() == [5000]


def spill_file(
    folder: Path, documents: list[TokenizedDocument], *, rows: BucketRange, buckets: Buckets, key: int = 0
) -> SpillFile:
    with SpillWriter(
        folder,
        name="split",
        bucket_of=buckets.bucket_of,
        id_type=pa.uint16(),
        flush_tokens=60,
        buckets=rows,
        key=key,
    ) as writer:
        for number, document in enumerate(documents):
            writer.add(document, origin=Origin(0, f"{key}.{number}", "text"))
    return writer.file


@pytest.mark.parametrize("most", [1, 4, 1000])
@pytest.mark.parametrize("total", [Buckets(1, 0, 0.0), Buckets(7, 2, 0.3), Buckets(60, 5, 0.1)])
def test_a_bucket_is_found_in_the_tables_of_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: Buckets, most: int
) -> None:
    """In one step or in two: each document in its bucket, with its origin; what crosses the engine has one size."""
    monkeypatch.setattr(levels, "MOST_BUCKETS_A_FILE", most)
    folder = str(tmp_path)
    parts = [[tokenized(name, [4, 5]) for name in range(start, 400, 5)] for start in range(4)] + [[]]
    rows, joins = divide_buckets(total)
    assert bool(joins) == (total.total > most)
    files = [spill_file(tmp_path, part, rows=rows, buckets=total, key=1000 * key) for key, part in enumerate(parts)]
    assert len(repr(files[0])) == pytest.approx(len(repr(files[3])), abs=8)
    if joins:
        files = [
            join_spills(join, files=files[::-1], folder=folder, buckets=total, id_type=pa.uint16()) for join in joins
        ]
    for bucket in range(total.total):
        extents = find_extents(files, folder=folder, bucket=bucket)
        found, duplicates = read_documents(extents, id_type=pa.uint16())
        own = sorted((d for part in parts for d in part if total.bucket_of(d.id) == bucket), key=lambda d: d.id)
        assert len(found) == len(own)
        assert all(map(same, found, own))
        assert duplicates == 0
        origins = {name: origin.name for name, _, origin in read_origins(extents)}
        assert origins == {
            d.id: f"{1000 * key}.{number}"
            for key, part in enumerate(parts)
            for number, d in enumerate(part)
            if total.bucket_of(d.id) == bucket
        }


def test_groups_and_marks_of_held_out_documents_pass_through_the_second_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every third document one copy is in a held-out group, so the copy in another group may not stay."""
    monkeypatch.setattr(levels, "MOST_BUCKETS_A_FILE", 1)
    total = Buckets(7, 2, 0.2)
    rows, joins = divide_buckets(total)
    documents = [tokenized(name, [9]) for name in range(60)]
    with SpillWriter(tmp_path, name="s", bucket_of=total.bucket_of, id_type=pa.uint16(), buckets=rows) as writer:
        for number, document in enumerate(documents):
            writer.add(document, group=b"\xff" * ID_BYTES)
            if number % 3 == 0:
                writer.add(document, group=bytes(ID_BYTES))
                writer.mark_held_out(document, bucket=total.train_bucket_of(document.id))
    folder = str(tmp_path)
    files = [
        join_spills(join, files=[writer.file], folder=folder, buckets=total, id_type=pa.uint16()) for join in joins
    ]
    found: dict[str, set[bytes]] = {"train": set(), "validation": set()}
    for bucket in range(total.total):
        extents = find_extents(files, folder=folder, bucket=bucket)
        ids = [document.id for document in read_documents(extents, id_type=pa.uint16())[0]]
        index = read_index(extents)
        assert ids == [index.ids[position].tobytes() for position in index.distinct()]
        found[total.split_of(bucket)].update(ids)
    assert found["validation"] == {document.id for document in documents[::3]}
    assert found["train"] == {document.id for document in documents} - found["validation"]


def test_joined_files_do_not_depend_on_the_names_of_the_files_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are random: a build that goes on after a failure would write every shard again."""
    monkeypatch.setattr(levels, "MOST_BUCKETS_A_FILE", 1)
    total = Buckets(9, 0, 0.0)
    rows, joins = divide_buckets(total)
    contents = []
    for attempt in ("a", "b"):
        folder = tmp_path / attempt
        folder.mkdir()
        files = [
            spill_file(
                folder, [tokenized(name, [9]) for name in range(start, 90, 3)], rows=rows, buckets=total, key=start
            )
            for start in range(3)
        ]
        found = [
            join_spills(join, files=files, folder=str(folder), buckets=total, id_type=pa.uint16()) for join in joins
        ]
        contents.append([(folder / file.name).read_bytes() for file in found])
    assert contents[0] == contents[1]


def test_a_large_set_is_divided_so_that_extents_stay_large() -> None:
    """1 TB: 15,625 buckets. No more than 125 extents for each split, and no piece above about 1 GB of text."""
    rows, joins = divide_buckets(Buckets(15_625, 0, 0.0))
    assert (rows.rows, rows.width) == (125, 125)
    assert len(joins) == 1000
    assert divide_buckets(Buckets(1024, 0, 0.0)) == (BucketRange(0, 1024), [])
    for count in (1025, 1026, 5000, 16_383, 16_385, 156_250):
        rows, joins = divide_buckets(Buckets(count - 1, 1, 0.1))
        covered = [
            bucket
            for join in joins
            if not join.part
            for bucket in range(join.buckets.first, join.buckets.first + join.buckets.rows)
        ]
        assert covered == list(range(count))
        assert rows.rows * rows.width >= count
        assert rows.rows <= rows.width + 1


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    file = spill_file(tmp_path, [tokenized(1, [9])], rows=BucketRange(0, 3), buckets=Buckets(3, 0, 0.0))
    path = tmp_path / file.name
    whole = path.read_bytes()
    for place in range(file.table.offset, len(whole)):
        data = bytearray(whole)
        data[place] ^= 1
        path.write_bytes(data)
        with pytest.raises(TableError, match="changed since it was written; run the build again"):
            [find_extents([file], folder=str(tmp_path), bucket=bucket) for bucket in range(3)]
    path.write_bytes(whole[:-1])
    with pytest.raises(TableError, match="changed since it was written; run the build again"):
        find_extents([file], folder=str(tmp_path), bucket=2)


def test_copies_of_a_document_are_not_held(tmp_path: Path) -> None:
    """20,000 copies of a page: 3 kB of tokens each, in extents of 2,000."""
    page = tokenized(1, [1000])
    with SpillWriter(
        tmp_path, name="s", bucket_of=lambda name, group: 0, id_type=pa.uint16(), flush_tokens=2_000_000
    ) as writer:
        for number in range(20_000):
            writer.add(
                page if number % 2 else TokenizedDocument(page.id, page.ids, page.word_starts, page.sentence_lengths, 3)
            )
    extents = [extent for _, extent in writer.extents]
    assert len(extents) == 10
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    found, duplicates = read_documents(extents, id_type=pa.uint16())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert duplicates == 19_999
    assert [document.source for document in found] == [0]
    assert found[0].ids.tolist() == page.ids.tolist()
    assert peak < 12_000_000
    assert pa.total_allocated_bytes() - before < 100_000


@settings(max_examples=200)
@given(
    ids=st.lists(st.binary(min_size=ID_BYTES, max_size=ID_BYTES), max_size=20),
    train=st.integers(1, 100_000),
    validation=st.integers(0, 1000),
    fraction=st.floats(0.0, 0.5),
)
def test_buckets_of_many_documents_are_those_of_each(
    ids: list[bytes], train: int, validation: int, fraction: float
) -> None:
    buckets = Buckets(train, validation, fraction if validation else 0.0)
    edge = int(buckets.validation_fraction * 2**64)
    ids += [number.to_bytes(8, "big") + b"12345678" for number in (0, max(0, edge - 1), edge, edge + 1)]
    found = buckets.buckets_of(np.array(ids, f"V{ID_BYTES}"))
    assert found.tolist() == [buckets.bucket_of(name) for name in ids]
