"""Wikipedia dumps: every compression and its faults; splits at streams, pages and blocks."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import tracemalloc
from itertools import chain, pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from dumps import ENGLISH, MULTISTREAM, dump, head, names, page, read, read_text
from pipeline.config.schema import SourceConfig
from pipeline.documents import Document, Drop
from pipeline.sources import wikipedia as wikipedia_module
from pipeline.sources.splits import list_splits, read_documents
from pipeline.sources.wikipedia import read_dump, read_site, split_dump

# ---- compression ----


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


COMPRESSIONS = {".bz2": bz2.compress, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd}


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_compressed_dumps_read_the_same(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.xml{suffix}"
    path.write_bytes(COMPRESSIONS[suffix](dump(page("A", "One."), page("B", "Two.")).encode()))
    assert names(read(path)) == ["A", "B"]


@pytest.mark.parametrize("suffix", [".bz2", ".gz", ".xz"])
def test_concatenated_streams_are_one_dump(tmp_path: Path, suffix: str) -> None:
    parts = [head(), page("A", "One."), page("B", "Two."), "</mediawiki>"]
    path = tmp_path / f"x.xml{suffix}"
    path.write_bytes(b"".join(COMPRESSIONS[suffix](part.encode()) for part in parts))
    assert names(read(path)) == ["A", "B"]


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_truncation_inside_a_stream_names_file_and_offset(tmp_path: Path, suffix: str) -> None:
    """apache/beam 2.77 (measured): a truncated bz2 is read short without a word."""
    data = COMPRESSIONS[suffix](dump(*(page(f"A{i}", f"Number {i * 7919}.") for i in range(500))).encode())
    path = tmp_path / f"x.xml{suffix}"
    path.write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(ValueError, match=r"x\.xml\.\w+: .*truncated"):
        read(path)


@pytest.mark.parametrize("kept", [2, 3])
def test_truncation_between_streams_is_seen_in_the_xml(tmp_path: Path, kept: int) -> None:
    parts = [head(), page("A", "One."), page("B", "Two."), "</mediawiki>"]
    path = tmp_path / "x.xml.bz2"
    path.write_bytes(b"".join(bz2.compress(part.encode()) for part in parts[:kept]))
    with pytest.raises(ValueError, match=rf"truncated: the </mediawiki> at the end is missing, after {kept - 1} pages"):
        read(path)


@pytest.mark.parametrize("suffix", [".bz2", ".gz", ".xz"])
def test_corrupt_data_names_the_stream(tmp_path: Path, suffix: str) -> None:
    data = bytearray(COMPRESSIONS[suffix](dump(*(page(f"A{i}", f"Number {i * 7919}.") for i in range(500))).encode()))
    for index in range(len(data) // 2, len(data) // 2 + 40):
        data[index] ^= 0xA5
    path = tmp_path / f"x.xml{suffix}"
    path.write_bytes(data)
    with pytest.raises(
        ValueError, match=r"x\.xml\.\w+: .*(corrupt data in the \w+ stream that starts at byte 0|not well-formed)"
    ):
        read(path)


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_bombs_are_refused_in_flat_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr("pipeline.parquet_bounds._EXPANSION_FREE_BYTES", 1 << 20)
    data = (head() + "<page><title>A</title><ns>0</ns><revision><text>").encode() + b" " * 40_000_000
    path = tmp_path / f"x.xml{suffix}"
    path.write_bytes(COMPRESSIONS[suffix](data))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"x\.xml\.\w+: \d+ bytes .*expand to .*this cannot be text"):
        read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6


def test_the_real_bounds_of_expansion_and_memory_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """42 MB of one character in each of 5 streams: 150 bytes of bz2 give more than the 64 MB that are free."""
    path = tmp_path / "x.xml.bz2"
    path.write_bytes(bz2.compress(head().encode()) + bz2.compress(b" " * 42_000_000) * 5)
    with pytest.raises(ValueError, match=r"x\.xml\.bz2: \d+ bytes .*expand to .*this cannot be text"):
        read(path)
    monkeypatch.setattr("pipeline.sources.bytestreams._XZ_MEMORY", 1 << 20)
    path = tmp_path / "x.xml.xz"
    path.write_bytes(lzma.compress(dump(page("A", "One.")).encode(), preset=9))
    with pytest.raises(ValueError, match=r"in the xz stream that starts at byte 0: Memory usage limit exceeded"):
        read(path)


# ---- splits ----


def test_a_multistream_dump_is_split_and_reads_the_same(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WikiExtractor#124: multistream gives no article."""
    whole = read(shared_data / "wiki" / ENGLISH)
    path = shared_data / "wiki" / MULTISTREAM
    index = bz2.decompress(path.with_name(path.name.replace(".xml", "-index.txt")).read_bytes()).decode()
    offsets = sorted({int(line.split(":")[0]) for line in index.splitlines()})
    monkeypatch.setitem(wikipedia_module.SPLIT_BYTES, "bz2", 300_000)
    source = SourceConfig(kind="wikipedia", path=str(path))
    splits = sorted(list_splits([source]), key=lambda split: split.start)
    assert len(splits) > 2
    assert {split.start for split in splits} - {0} <= set(offsets)
    assert [split.end for split in splits[:-1]] == [split.start for split in splits[1:]]
    assert [item for split in splits for item in read_documents(split, source)] == whole


def test_a_truncated_multistream_dump_is_an_error_in_its_last_split(tmp_path: Path) -> None:
    parts = [head(), *(page(f"A{i}", f"Number {i}.") for i in range(20)), "</mediawiki>"]
    streams = [bz2.compress(part.encode()) for part in parts]
    path = tmp_path / "x-multistream.xml.bz2"
    source = SourceConfig(kind="wikipedia", path=str(path))
    path.write_bytes(b"".join(streams))
    splits = split_dump(path, source=0, split_bytes=400)
    assert len(splits) > 5
    assert len([item for split in splits for item in read_dump(split, source=source)]) == 20
    path.write_bytes(b"".join(streams[:-1]))
    *others, last = split_dump(path, source=0, split_bytes=400)
    assert all(list(read_dump(split, source=source)) for split in others)
    with pytest.raises(ValueError, match="the </mediawiki> at the end is missing"):
        list(read_dump(last, source=source))


def test_plain_dumps_are_split_at_pages_with_the_names_of_their_head(tmp_path: Path) -> None:
    pages = [page(f"Seite {i}", f"Nummer {i}. [[Datei:x.jpg|mini|Bild]]") for i in range(50)]
    pages.insert(25, page("Vorlage:X", "Nein.", ns=None))
    path = tmp_path / "x.xml"
    path.write_text(dump(*pages, language="de", namespaces={10: "Vorlage", 6: "Datei"}))
    source = SourceConfig(kind="wikipedia", path=str(path))
    splits = split_dump(path, source=0, split_bytes=1_000)
    assert len(splits) > 5
    assert read_site(str(path)).namespaces == {"Vorlage": 10, "Datei": 6}
    assert [item for split in splits for item in read_dump(split, source=source)] == read(path)


@pytest.fixture
def many_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[Document | Drop]]:
    """A dump whose pages vary from a few bytes to several blocks of 100 kB, and what is in it."""
    monkeypatch.setattr(wikipedia_module, "LEAST_BLOCK_SPLIT", 1)
    generator = random.Random(7)

    def sentence(length: int) -> str:
        return "Of " + " ".join(f"{generator.randrange(10**6):x}" for _ in range(length)) + "."

    lengths = [generator.choice([2, 20, 1_000]) for _ in range(60)] + [30_000, 3, 15_000] + [3] * 40
    text = dump(*(page(f"Seite {i}", sentence(length)) for i, length in enumerate(lengths)), language="de")
    return text, read_text(tmp_path, text, "de")


@pytest.mark.parametrize("split_bytes", [9_000, 40_000, 70_000])
@pytest.mark.parametrize("streams", [1, 3])
def test_one_great_stream_is_split_at_its_blocks(
    tmp_path: Path, many_pages: tuple[str, list[Document | Drop]], split_bytes: int, streams: int
) -> None:
    """Also several streams cut anywhere, as parallel compressors write them."""
    text, expected = many_pages
    data = text.encode()
    path = tmp_path / "x.xml.bz2"
    cuts = [len(data) * number // streams for number in range(streams + 1)]
    path.write_bytes(b"".join(bz2.compress(data[a:b], 1) for a, b in pairwise(cuts)))
    source = SourceConfig(kind="wikipedia", path=str(path), language="de")
    splits = split_dump(path, source=0, split_bytes=split_bytes)
    assert len(splits) > 2
    parts = [list(read_dump(split, source=source)) for split in splits]
    assert sum(map(bool, parts)) > 1
    assert [item for part in parts for item in part] == expected


@pytest.mark.parametrize("kept", ["</page>", "</page", ""])
def test_a_truncated_stream_is_an_error_in_its_last_parts(
    tmp_path: Path, many_pages: tuple[str, list[Document | Drop]], kept: str
) -> None:
    text, _ = many_pages
    path = tmp_path / "x.xml.bz2"
    source = SourceConfig(kind="wikipedia", path=str(path), language="de")
    if kept:  # the stream is whole, the text in it is not
        path.write_bytes(bz2.compress((text[: text.rindex("</page>")] + kept).encode(), 1))
        message = "truncated: (it ends inside|the </mediawiki> at the end is missing)"
    else:
        path.write_bytes(bz2.compress(text.encode(), 1)[:-20_000])
        message = r"the file ends at byte \d+, inside the bz2 block that starts at byte \d+: it is truncated"
    splits = split_dump(path, source=0, split_bytes=40_000)
    with pytest.raises(ValueError, match=r"x\.xml\.bz2: .*" + message):
        list(chain.from_iterable(read_dump(split, source=source) for split in splits))


def test_great_fragments_without_a_root_are_split_too(
    tmp_path: Path, many_pages: tuple[str, list[Document | Drop]]
) -> None:
    text, expected = many_pages
    pages = text[text.index("<page>") : text.index("</mediawiki>")]
    source = SourceConfig(kind="wikipedia", path=str(tmp_path), language="de")
    (tmp_path / "y.xml").write_text(pages)
    (tmp_path / "y.xml.bz2").write_bytes(bz2.compress(pages.encode(), 1))
    for path in (tmp_path / "y.xml", tmp_path / "y.xml.bz2"):
        splits = split_dump(path, source=0, split_bytes=50_000)
        assert len(splits) > 3
        assert [item for split in splits for item in read_dump(split, source=source)] == expected


def test_a_signature_inside_other_data_is_no_stream(tmp_path: Path) -> None:
    path = tmp_path / "x.xml.bz2"
    path.write_bytes(bz2.compress(dump(page("A", "One.")).encode()) + b"BZh91AY&SY" + b"\0" * 500)
    assert [split.start for split in split_dump(path, source=0, split_bytes=64)] == [0]
