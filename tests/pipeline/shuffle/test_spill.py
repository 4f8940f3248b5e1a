"""Spill files give back what was written, by bucket, whole or by index, and take bounded memory."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.shuffle.spill import Extent, SpillError, SpillWriter, read_documents, read_index
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
