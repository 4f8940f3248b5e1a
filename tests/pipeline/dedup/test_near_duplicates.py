"""Near duplicates: found where they are, not where they are not, and the same whatever the order and the workers."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import resource
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpora import make_config, make_documents, read_rows, write_text
from object_store import bucket, s3_server
from pipeline import storage
from pipeline.build.recipe import build
from pipeline.config.cleaning import NearDuplicatesConfig
from pipeline.config.schema import SourceConfig
from pipeline.dataset.manifest import Manifest
from pipeline.dedup import signatures
from pipeline.dedup.matches import (
    choose_dropped,
    choose_in_parts,
    distinct_matches,
    join_matches,
    read_dropped,
    write_dropped,
    write_matches,
)
from pipeline.dedup.minhash import (
    MATCH_TYPE,
    Signer,
    band_keys,
    choose_bands,
    compare_group,
    shingle_hashes,
)
from pipeline.dedup.signatures import BandFile, SignatureWriter, _SignatureReader, find_bands, find_matches
from pipeline.documents import Document, Split
from pipeline.shuffle.buckets import BucketCount, Buckets, plan_shards
from pipeline.sources.splits import read_documents

__all__ = ["bucket", "s3_server"]
WORDS = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrs"]


def text(count: int, *, seed: int) -> list[str]:
    return random.Random(seed).choices(WORDS, k=count)


def changed(words: list[str], places: int, *, seed: int = 0) -> list[str]:
    other = list(words)
    for place in random.Random(seed).sample(range(len(words)), places):
        other[place] = "other"
    return other


def shingles(words: list[str], length: int = 5) -> set[tuple[str, ...]]:
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}


def jaccard(one: list[str], other: list[str]) -> float:
    return len(shingles(one) & shingles(other)) / len(shingles(one) | shingles(other))


def match(one: int, other: int, *, words: int, similarity: float = 0.9) -> tuple[bytes, int, bytes, float, bytes]:
    return (bytes([one]) * 16, words, bytes([other]) * 16, similarity, b"")


def test_shingles_do_not_see_case_punctuation_and_line_breaks() -> None:
    one, words = shingle_hashes(["It is a truth,", "universally acknowledged!"], words=3)
    other, _ = shingle_hashes(["it is -- A _truth_ Universally (acknowledged)"], words=3)
    assert words == 6
    assert one.size == 4
    assert np.array_equal(one, other)
    assert not set(one) & set(shingle_hashes(["it is truth a universally"], words=3)[0])
    assert shingle_hashes(["two words"], words=5)[0].size == 1
    assert shingle_hashes(["..."], words=5)[1] == 0


def test_characters_without_spaces_are_words() -> None:
    assert shingle_hashes(["他在家。"], words=2)[1] == 3
    assert shingle_hashes(["ひらカタ漢 word"], words=2)[1] == 6
    assert shingle_hashes(["한국어 문장"], words=2)[1] == 2


@pytest.mark.parametrize("places", [0, 5, 20, 60])
def test_signatures_estimate_the_share_of_common_shingles(places: int) -> None:
    one = text(2000, seed=1)
    other = changed(one, places)
    signer = Signer(NearDuplicatesConfig(permutations=1024))
    first, second = signer.sign([" ".join(one)]), signer.sign([" ".join(other)])
    assert first is not None
    assert second is not None
    assert first[1] == 2000
    assert float((first[0] == second[0]).mean()) == pytest.approx(jaccard(one, other), abs=0.05)
    assert signer.sign(["..."]) is None


def test_a_text_of_many_shingles_is_signed_as_one() -> None:
    """A signature is the minimum over batches of shingles: that of a text and of its two halves agree."""
    signer = Signer(NearDuplicatesConfig(shingle_words=1))
    parts = [" ".join(f"w{number}" for number in range(start, start + 5000)) for start in (0, 5000)]
    whole, first, second = (signer.sign(sentences) for sentences in (parts, parts[:1], parts[1:]))
    assert whole
    assert first
    assert second
    assert np.array_equal(whole[0], np.minimum(first[0], second[0]))


def test_bands_find_pairs_at_the_threshold() -> None:
    assert choose_bands(0.8, 128) == (18, 7)
    assert choose_bands(1.0, 128) == (1, 128)
    assert choose_bands(0.01, 16) == (16, 1)
    for threshold in (0.3, 0.5, 0.7, 0.8, 0.9):
        bands, rows = choose_bands(threshold, 128)
        assert bands * rows <= 128
        assert 1 - (1 - threshold**rows) ** bands >= 0.98


def test_band_keys_are_equal_where_all_rows_are() -> None:
    signatures = np.array([[1, 2, 3, 4], [1, 2, 9, 4], [3, 4, 1, 2]], np.uint32)
    keys = band_keys(signatures, bands=2, rows=2)
    assert keys[0, 0] == keys[1, 0]
    assert keys[0, 1] != keys[1, 1]
    assert keys[2, 0] != keys[0, 1]  # equal rows of different bands do not meet
    assert len(set(keys.ravel().tolist())) == 5


def test_a_group_is_compared_by_rank_and_threshold() -> None:
    signatures = np.zeros((3, 10), np.uint32)
    signatures[1, :2] = 1  # 0.8 like the first
    signatures[2, :3] = 2  # 0.7 like the first and the second
    ids = [b"a" * 16, b"b" * 16, b"c" * 16]
    found = compare_group(ids, words=[5, 9, 7], names=["A", "B", "C"], signatures=signatures, threshold=0.8)
    assert found.size == 1
    assert (found["id"][0].tobytes(), found["kept_id"][0].tobytes()) == (ids[0], ids[1])
    assert found["kept_name"][0] == b"B"
    assert found["similarity"][0] == pytest.approx(0.8)
    equal = compare_group(ids[:2], words=[5, 5], names=["A", "B"], signatures=signatures[:2], threshold=0.8)
    assert equal["kept_id"][0].tobytes() == ids[0]  # equal words: the smaller hash stays


def test_a_large_group_is_compared_in_linear_time() -> None:
    count = 5000
    ids = [number.to_bytes(16, "big") for number in range(count)]
    signatures = np.zeros((count, 8), np.uint32)
    found = compare_group(ids, words=[9] * count, names=["x" * 100] * count, signatures=signatures, threshold=0.9)
    assert found.size == 4 * count - 10
    dropped = choose_dropped(found)
    assert dropped.size == count - 1
    assert {row.tobytes() for row in dropped["kept_id"]} == {ids[0]}
    assert dropped["kept_name"][0] == b"x" * 61 + b"..."


def test_nothing_is_left_out_for_what_is_left_out_itself() -> None:
    """1 ~ 2 ~ 3 in a chain: 2 goes for 1, 3 stays. In any order of the matches."""
    chain = [match(2, 1, words=8), match(3, 2, words=7), match(4, 3, words=6), match(4, 1, words=6, similarity=0.8)]
    for order in itertools.permutations(chain):
        dropped = choose_dropped(distinct_matches(np.array([*order, order[0]], MATCH_TYPE)))
        assert [row.tobytes()[0] for row in dropped["id"]] == [2, 4]
        assert [row.tobytes()[0] for row in dropped["kept_id"]] == [1, 3]
    assert choose_dropped(np.zeros(0, MATCH_TYPE)).size == 0


@pytest.mark.parametrize("buckets", [Buckets(1, 0, 0.0), Buckets(7, 2, 0.2), Buckets(3000, 0, 0.0)])
def test_what_to_leave_out_is_read_by_bucket(tmp_path: Path, buckets: Buckets) -> None:
    """Found more than once, in two files, and over the borders of parts of the buckets."""
    folder = str(tmp_path)
    one = np.array([match(2, 1, words=8), match(9, 8, words=3)], MATCH_TYPE)
    two = np.array([match(2, 1, words=8), match(3, 1, words=7), match(3, 2, words=7)], MATCH_TYPE)
    files = [write_matches(matches, folder=folder, buckets=buckets) for matches in (one, two)]
    parts = [join_matches(files, part=part, folder=folder, buckets=buckets) for part in range(min(1024, buckets.total))]
    dropped = write_dropped([part for part in parts if part], path=str(tmp_path / "dropped"), buckets=buckets)
    found = [read_dropped(dropped, buckets=[bucket]) for bucket in range(buckets.total)]
    assert sorted(name[0] for each in found for name in each) == [2, 3, 9]
    assert all(buckets.bucket_of(name) == bucket for bucket, each in enumerate(found) for name in each)
    none = write_dropped([], path=str(tmp_path / "none"), buckets=buckets)
    assert read_dropped(none, buckets=range(buckets.total)) == {}


@pytest.mark.parametrize("group", [bytes(16), b"\xff" * 16])
def test_what_to_leave_out_is_found_in_whichever_bucket_the_group_puts_a_document(tmp_path: Path, group: bytes) -> None:
    """The first group is held out, the second is not; a match names no group."""
    folder, buckets = str(tmp_path), Buckets(7, 2, 0.2)
    matches = np.array([match(2, 1, words=8), match(200, 8, words=3)], MATCH_TYPE)
    files = [write_matches(matches, folder=folder, buckets=buckets)]
    parts = [join_matches(files, part=part, folder=folder, buckets=buckets) for part in range(buckets.total)]
    path = str(tmp_path / "dropped")
    dropped = write_dropped([part for part in parts if part], path=path, buckets=buckets, grouped=True)
    for name in (b"\2" * 16, b"\xc8" * 16):
        assert name in read_dropped(dropped, buckets=[buckets.bucket_of(name, group)])
    assert len(read_dropped(dropped, buckets=range(buckets.total))) == 2


def test_signatures_come_back_by_partition_and_a_failed_split_leaves_none(tmp_path: Path) -> None:
    config = NearDuplicatesConfig()
    words = text(300, seed=3)
    documents = [Document(f"n{number}", (" ".join(changed(words, number)),)) for number in range(3)]
    documents += [Document(f"o{number}", (" ".join(text(300, seed=9 + number)),)) for number in range(30)]
    files: list[BandFile] = []
    for part in (documents[::2], documents[1::2]):
        with SignatureWriter(tmp_path, name="split", config=config, partitions=5) as writer:
            for document in part:
                writer.add(document)
        files += writer.files
    extents = [find_bands(files, folder=str(tmp_path), partition=partition) for partition in range(5)]
    parts = [find_matches(of_partition, threshold=0.8) for of_partition in extents]
    found = distinct_matches(np.concatenate(parts))
    pairs = {frozenset((row["id"].tobytes(), row["kept_id"].tobytes())) for row in found}
    assert pairs == {frozenset(pair) for pair in itertools.combinations([d.id for d in documents[:3]], 2)}
    before = set(tmp_path.iterdir())
    with suppress(RuntimeError), SignatureWriter(tmp_path, name="bad", config=config, partitions=5) as writer:
        writer.add(documents[0])
        raise RuntimeError
    assert set(tmp_path.iterdir()) == before
    path = Path(extents[0][0].keys)
    path.write_bytes(path.read_bytes()[:4])
    with pytest.raises(ValueError, match="ends before its entries do; run the build again"):
        find_matches(extents[0][:1], threshold=0.8)


def test_of_copies_one_signature_is_held_and_the_lowest_name_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million copies of a page would otherwise take a gigabyte for each band that they share."""
    words = text(300, seed=3)
    better, worse = (" ".join([*words, *more]) for more in (["one", "more"], ["other"]))
    with SignatureWriter(tmp_path, name="split", config=NearDuplicatesConfig(), partitions=1) as writer:
        for number in range(500):
            writer.add(Document(f"{999 - number}", (better,)))
        writer.add(Document("worse", (worse,)))
    held: list[int] = []
    compare = signatures.compare_group

    def watch(ids: Sequence[bytes], **others: Any) -> Any:
        held.append(len(ids))
        return compare(ids, **others)

    monkeypatch.setattr(signatures, "compare_group", watch)
    found = find_matches(find_bands(writer.files, folder=str(tmp_path), partition=0), threshold=0.8)
    assert set(held) == {2}
    assert [row["kept_name"] for row in found] == [b"500"]


def test_splits_may_be_more_than_the_files_that_a_process_may_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "_ROWS_AT_ONCE", 50)
    words = text(300, seed=3)
    files: list[BandFile] = []
    for number in range(60):
        with SignatureWriter(tmp_path, name="split", config=NearDuplicatesConfig(), partitions=1) as writer:
            writer.add(Document(f"n{number}", (" ".join([*words, f"end{number}"]),)))
        files += writer.files
    extents = find_bands(files, folder=str(tmp_path), partition=0)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, limits[1]))
    try:
        found = find_matches(extents, threshold=0.8)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert choose_dropped(found).size == 59


def test_a_bucket_of_near_duplicates_alone_goes_with_the_first_shard() -> None:
    counts = [BucketCount(number, documents=10 * (number != 1), tokens=100, lowest=(1, 2)) for number in range(3)]
    plan = plan_shards(counts, buckets=Buckets(3, 0, 0.0))
    assert plan.shard_of == {0: ("train", 0), 1: ("train", 0), 2: ("train", 1)}


def build_with(folder: Path, parts: list[list[list[str]]], **settings: object) -> tuple[Manifest, Path]:
    sources = [
        {"kind": "text", "path": str(write_text(folder / f"{number}.txt", part))} for number, part in enumerate(parts)
    ]
    cleaning = {"near_duplicates": {}, "keep_rejects": str(folder / "rejects")}
    config = make_config(folder, sources=sources, **{"cleaning": cleaning, **settings})
    return build(config, say=lambda line: None), folder


@pytest.fixture(scope="module")
def corpus() -> list[list[str]]:
    """40 documents; three editions of one text, two of another, and one exact copy."""
    documents = make_documents(40, sentences=(8, 12))
    first, second = documents[3], documents[4]
    editions = [[*first, "ba de fi"], [*first, "ba de fi go ku"], [*second[:-1], f"{second[-1]} zu"]]
    return [*documents, *editions, documents[7]]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_build_keeps_the_longest_of_near_duplicates(tmp_path: Path, corpus: list[list[str]], workers: int) -> None:
    """Whatever the workers and the order, also across the border between training and held-out documents."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    settings: dict[str, object] = {"shards": 6, "validation_fraction": 0.15}
    one, folder = build_with(tmp_path / "a", [corpus], workers=1, **settings)
    shuffled = random.Random(workers).sample(corpus, len(corpus))
    two, _ = build_with(tmp_path / "b", [shuffled[::2], shuffled[1::2]], workers=workers, **settings)
    assert one.drops == two.drops == {"duplicate": 1, "near_duplicate": 3}
    assert [shard.sha256 for shard in one.shards] == [shard.sha256 for shard in two.shards]
    assert sum(split["documents"] for split in one.statistics["splits"].values()) == 40
    rows = read_rows(folder / "out", one).to_pylist()
    found = {row[name] for row in rows for name in ("document_id", "second_document_id")} - {None}
    assert found == {Document("", tuple(document)).id for document in [*corpus[:3], *corpus[5:40], *corpus[41:43]]}
    assert one.versions["datasketch"]
    report = json.loads((folder / "out" / "report.json").read_text())
    (drop,) = [drop for drop in report["drops"] if drop["reason"] == "near_duplicate"]
    assert all(re.match(r"(0\.\d\d|1\.00) like 0\.txt, line \d+: ", example["detail"]) for example in drop["examples"])


def test_an_edition_of_a_novel_is_found_and_other_novels_are_not(tmp_path: Path, shared_data: Path) -> None:
    """Pride and Prejudice in two editions beside four other novels, with the default settings."""
    books = shared_data / "books"
    files = [books / "near-duplicates" / "Austen_Pride.txt", *sorted((books / "plain").glob("*.txt"))]
    with tarfile.open(books / "litbank-100-novels.tar.xz") as archive:
        member = next(member for member in archive if member.name.endswith("1342_pride_and_prejudice.txt"))
        archive.extract(member, tmp_path, filter="data")
    files.append(tmp_path / member.name)
    assert len(files) == 6
    names = {}
    config = NearDuplicatesConfig()
    with SignatureWriter(tmp_path, name="books", config=config, partitions=1) as writer:
        for file in files:
            split = Split(0, str(file), 0, -1, 1, 1)
            (document,) = (
                item
                for item in read_documents(split, SourceConfig(kind="books", path=str(file)))
                if isinstance(item, Document)
            )
            names[document.id] = document.name
            writer.add(document)
    bands = find_bands(writer.files, folder=str(tmp_path), partition=0)
    dropped = choose_dropped(find_matches(bands, threshold=config.threshold))
    assert [names[row.tobytes()] for row in dropped["id"]] == ["Austen_Pride.txt"]
    assert [names[row.tobytes()] for row in dropped["kept_id"]] == ["1342_pride_and_prejudice.txt"]


def test_signatures_that_are_lost_while_they_are_read_are_named(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with SignatureWriter(bucket, name="split", config=NearDuplicatesConfig(permutations=16), partitions=1) as writer:
        writer.add(Document("n", (" ".join(text(300, seed=3)),)))
    url = storage.join(bucket, writer.files[0].signatures)
    data = storage.read_bytes(url)
    lost = f"{url}: (there is no such object|the object was removed while it was read)"
    reader = _SignatureReader(url)
    storage.delete(url)
    with pytest.raises(storage.AbsentError, match=lost):
        reader.rows(0, np.array([0]))
    storage.write_bytes(url, data)
    opened = storage.open_native(url)
    storage.delete(url)
    monkeypatch.setattr(storage, "open_native", lambda path: opened)
    with pytest.raises(storage.AbsentError, match=lost):
        _SignatureReader(url)


@settings(max_examples=200)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(80, 99)), max_size=80),
    parts=st.integers(1, 5),
)
def test_what_is_left_out_is_what_a_visit_by_rank_leaves_out(pairs: list[tuple[int, int, int]], parts: int) -> None:
    """In any number of parts; documents 3k to 3k + 2 have equally many words, so that ids decide between them."""
    matches = {(max(pair), min(pair)): similarity / 100 for *pair, similarity in pairs if pair[0] != pair[1]}
    listed = [match(one, other, words=100 - one // 3, similarity=share) for (one, other), share in matches.items()]
    dropped: dict[int, int] = {}
    for one in sorted({one for one, _ in matches}):
        staying = [other for (it, other) in matches if it == one and other not in dropped]
        if staying:
            dropped[one] = min(staying, key=lambda other: (-matches[one, other], other))
    chosen = {}
    groups = [[row for row in listed if row[0][0] % parts == part] for part in range(parts)]
    loads = [partial(distinct_matches, np.array(group, MATCH_TYPE)) for group in groups]
    for found in choose_in_parts(loads):
        names = [row.tobytes()[0] for row in found["id"]]
        assert names == sorted(names)
        chosen.update(zip(names, (row.tobytes()[0] for row in found["kept_id"]), strict=True))
    assert chosen == dropped
