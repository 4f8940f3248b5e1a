"""What can only be read from its beginning is shared: the parts together give what the whole gives, each item once."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpora import make_config, make_documents
from dumps import dump, page
from pipeline.build.recipe import build
from pipeline.cleaning.characters import normalize_line
from pipeline.config.schema import SourceConfig
from pipeline.documents import Document, Drop, Split
from pipeline.sources import records, textlines, wikipedia
from pipeline.sources.splits import list_splits, read_documents, split_file


def compress_zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)  # type: ignore[no-any-return]


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": compress_zstd,
    "": bytes,
}
TEXT = "One.\nTwo.\n\n \n\x07\nThree.\n...\n\n\nFour.\n(five)\n\n---\n\nSix."
ROWS = [
    *[{"text": "One.", "book": "a"}, {"text": "Two.", "book": "a"}, {"text": "", "book": "a"}],
    *[{"text": None, "book": "b"}, {"text": "...", "book": "b"}, {"text": "Three.", "book": "c"}],
    *[{"text": " ", "book": "c"}, {"text": "Four.", "book": None}, {"text": "Five.", "book": "a"}],
]
BOUNDS: dict[str, dict[str, Any]] = {
    "row": {},
    "column": {"row": "sentence", "document_column": "book"},
    "blank": {"row": "sentence", "blank_row_ends_document": True},
    "number": {"row": "sentence", "rows_per_document": 2},
}


def read_parts(source: SourceConfig, *, parts: int) -> list[list[Document | Drop]]:
    """The items of each part of the source's one file."""
    (whole,) = split_file(source.paths[0], source=source, index=0, split_bytes=1 << 40)
    shared = Split(0, whole.path, whole.start, whole.end, whole.num_bytes, 1000).share(parts, part_bytes=1)
    assert [split.part for split in shared] == [*range(parts)]
    return [list(read_documents(split, source)) for split in shared]


def check_parts(source: SourceConfig) -> None:
    (whole,) = read_parts(source, parts=1)
    assert sum(isinstance(item, Document) for item in whole) >= 3
    for parts in (2, 3, 40):
        found = read_parts(source, parts=parts)
        assert Counter(item for items in found for item in items) == Counter(whole)
        assert sum(any(isinstance(item, Document) for item in items) for items in found) >= 2
        for items in found:  # in the order of the file
            assert items == [item for item in whole if item in items]


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("rows", [None, 2])
def test_parts_of_a_text(tmp_path: Path, suffix: str, rows: int | None) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](TEXT.encode()))
    check_parts(SourceConfig(kind="text", path=str(path), rows_per_document=rows))


@settings(max_examples=300)
@given(st.text(min_size=1))
def test_a_line_that_begins_with_a_letter_or_digit_is_never_blank(line: str) -> None:
    """What lets parts count the documents of others without normalising them."""
    if line[0].isalnum():
        assert normalize_line(line)


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("bounds", BOUNDS)
def test_parts_of_json_lines(tmp_path: Path, suffix: str, bounds: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(COMPRESS[suffix]("".join(json.dumps(row) + "\n" for row in ROWS).encode()))
    check_parts(SourceConfig(kind="jsonl", path=str(path), **BOUNDS[bounds]))


@pytest.mark.parametrize("bounds", BOUNDS)
def test_parts_of_parquet(tmp_path: Path, bounds: str) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=4)
    check_parts(SourceConfig(kind="parquet", path=str(path), **BOUNDS[bounds]))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_parts_of_a_dump(tmp_path: Path, suffix: str) -> None:
    pages = [page(f"P{number}", f"Sentence {number}. Another one.") for number in range(7)]
    pages.insert(3, page("Talk:P", "Not this.", ns=1))
    path = tmp_path / f"a.xml{suffix}"
    path.write_bytes(COMPRESS[suffix](dump(*pages).encode()))
    check_parts(SourceConfig(kind="wikipedia", path=str(path)))


@pytest.mark.parametrize(
    ("name", "source", "module", "parts"),
    [
        ("a.txt.gz", {"kind": "text"}, textlines, 8),
        ("a.txt.xz", {"kind": "text"}, textlines, 4),
        ("a.jsonl.zst", {"kind": "jsonl"}, textlines, 16),
        ("a.jsonl", {"kind": "jsonl", **BOUNDS["number"]}, textlines, 8),
        ("a.parquet", {"kind": "parquet", **BOUNDS["number"]}, records, 8),
        ("a.parquet", {"kind": "parquet"}, records, 8),
        ("a.xml.gz", {"kind": "wikipedia"}, wikipedia, 4),
    ],
)
def test_what_is_large_is_shared(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    source: dict[str, Any],
    module: Any,
    parts: int,
) -> None:
    """Two streams of one kind, one with much text: that one is in parts, of about equal text, and gives the same."""
    texts = [". ".join(each) for each in make_documents(400)]
    path, small = tmp_path / name, tmp_path / f"b{name[1:]}"
    write(path, texts)
    write(small, texts[:2])
    few = SourceConfig(path=str(small), **source)
    limit = split_file(str(small), source=few, index=0, split_bytes=1 << 40)[0].text_bytes + 1
    monkeypatch.setattr(
        module, {textlines: "SPLIT_BYTES", records: "_SPLIT_BYTES"}.get(module, "_PART_TEXT_BYTES"), limit
    )
    config = SourceConfig(path=str(path), **source)
    splits = list_splits([config])
    assert [(split.part, split.parts) for split in splits] == [(part, parts) for part in range(parts)]
    assert len({split.text_bytes for split in splits}) == 1
    found = Counter(item for split in splits for item in read_documents(split, config))
    whole = split_file(str(path), source=config, index=0, split_bytes=1 << 40)
    assert found == Counter(item for split in whole for item in read_documents(split, config))
    (alone,) = list_splits([few])
    assert alone.parts == 1


def write(path: Path, texts: list[str]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": texts}), path)
        return
    content = {
        "txt": "\n\n".join(texts),
        "jsonl": "".join(json.dumps({"text": text}) + "\n" for text in texts),
        "xml": dump(*(page(f"P{number}", text) for number, text in enumerate(texts))),
    }[path.name.split(".")[1]]
    suffix = path.suffix if path.suffix in COMPRESS else ""
    path.write_bytes(COMPRESS[suffix](content.encode()))


def test_a_build_from_parts_has_the_bytes_of_one_from_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the cleaned documents are kept: each part's are its own."""
    path = tmp_path / "corpus.jsonl.zst"
    lines = "".join(json.dumps({"text": ". ".join(each)}) + "\n" for each in make_documents(60))
    path.write_bytes(compress_zstd(lines.encode()))
    source = {"kind": "jsonl", "path": str(path), "clean_documents": str(tmp_path / "clean")}
    hashes = []
    for name, split_bytes in (("whole", 1 << 30), ("parts", 1_000), ("again", 1_000)):
        monkeypatch.setattr(textlines, "SPLIT_BYTES", split_bytes)
        config = make_config(tmp_path, sources=[source], output=str(tmp_path / name), shards=2)
        manifest = build(config, say=lambda line: None)
        hashes.append([shard.sha256 for shard in manifest.shards])
    assert hashes[0] == hashes[1] == hashes[2]
    assert len(list((tmp_path / "clean").iterdir())) == 1 + 16


def test_a_fault_names_its_line_in_the_part_that_takes_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "One."}\n{"text": "Two."}\n{"bad"\n{"text": "Four."}\n'))
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz, line 3: not JSON"):
        read_parts(SourceConfig(kind="jsonl", path=str(path)), parts=2)


def fake_files(folder: Path, *, sizes: list[int]) -> SourceConfig:
    """Files of C4's kind that are never read: holes of so many bytes."""
    for number, size in enumerate(sizes):
        with open(folder / f"c4-train.{number:05d}.json.gz", "wb") as file:
            file.truncate(size)
    return SourceConfig(kind="jsonl", path=str(folder))


def test_files_that_are_plentiful_are_read_once(tmp_path: Path) -> None:
    """C4 has 1,024 files of 300 MB: each was read by eight workers."""
    splits = list_splits([fake_files(tmp_path, sizes=[300_000_000] * 1024)])
    assert len(splits) == 1024
    assert {(split.part, split.parts) for split in splits} == {(0, 1)}


@pytest.mark.parametrize(("count", "parts"), [(1, 8), (64, 8), (100, 6), (511, 2), (512, 1)])
def test_the_fewer_files_the_more_parts(tmp_path: Path, count: int, parts: int) -> None:
    splits = list_splits([fake_files(tmp_path, sizes=[300_000_000] * count)])
    assert len(splits) == count * parts
    assert {split.parts for split in splits} == {parts}
    assert sum(split.num_bytes for split in splits) == pytest.approx(count * 300_000_000, rel=1e-6)


def test_one_huge_file_among_many_stays_in_parts(tmp_path: Path) -> None:
    splits = list_splits([fake_files(tmp_path, sizes=[100_000_000] * 600 + [20_000_000_000])])
    assert sorted(split.parts for split in splits) == [1] * 600 + [8] * 8
    assert [split.part for split in splits if split.parts == 8] == [*range(8)]
