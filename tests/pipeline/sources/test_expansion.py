"""Small files that stand for gigabytes, and XML that a parser must hold or read again and again: bounded and named."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.schema import SourceConfig
from pipeline.documents import Document
from pipeline.sources import parquet_pages
from pipeline.sources.bytestreams import read_pieces
from pipeline.sources.splits import list_splits, read_documents

MIB = 1 << 20


def read(path: Path, kind: str, **settings: Any) -> list[Document]:
    source = SourceConfig(kind=kind, path=str(path), **settings)
    items = [item for split in list_splits([source]) for item in read_documents(split, source)]
    return [item for item in items if isinstance(item, Document)]


# --- Parquet


def write_table(path: Path, column: pa.Array, *, compression: str = "zstd", dictionary: bool = False) -> Path:
    pq.write_table(pa.table({"text": column}), path, compression=compression, use_dictionary=dictionary)
    return path


@pytest.mark.parametrize("compression", ["zstd", "gzip", "brotli"])
@pytest.mark.parametrize("mib", [12, 36], ids=["read by pyarrow", "read page by page"])
def test_a_small_parquet_file_of_a_long_text_is_refused(compression: str, mib: int, tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", pa.array(["a" * mib * MIB]), compression=compression)
    assert path.stat().st_size < 50_000
    with pytest.raises(ValueError, match=r"a\.parquet: \d+ bytes up to byte \d+ expand to \d+, more than 1000"):
        read(path, "parquet")


@pytest.mark.parametrize("size", [40_000, 36 * MIB], ids=["read by pyarrow", "read page by page"])
def test_a_dictionary_of_one_long_text_is_refused(size: int, tmp_path: Path) -> None:
    indices = pa.array([0] * 3000, pa.int32())
    text = "".join(chr(97 + n * n * 7919 % 26) for n in range(4000)) * (size // 4000)
    column = pa.DictionaryArray.from_arrays(indices, pa.array([text]))
    path = write_table(tmp_path / "a.parquet", column, dictionary=True)
    with pytest.raises(ValueError, match=r"a\.parquet: \d+ bytes up to byte \d+ expand to"):
        read(path, "parquet")


def test_the_column_of_documents_is_examined_too(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["It rains."], "book": ["b" * 12 * MIB]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
    with pytest.raises(ValueError, match=r"a\.parquet: \d+ bytes up to byte \d+ expand to"):
        read(path, "parquet", document_column="book", row="sentence")


def test_text_that_compresses_well_is_read(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", pa.array(["It rains in the north. " * 20] * 400))
    assert len(read(path, "parquet")) == 400


# --- compressed files


@pytest.mark.parametrize(
    ("kind", "name", "suffix", "compress"),
    [
        ("books", "a.txt", "bz2", bz2.compress),
        ("books", "a.txt", "gz", gzip.compress),
        ("books", "a.txt", "xz", lzma.compress),
        ("wikipedia", "a.xml", "bz2", bz2.compress),
    ],
)
def test_a_small_file_of_newlines_is_refused(
    kind: str, name: str, suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / f"{name}.{suffix}"
    text = b"\n" * 5 * MIB
    path.write_bytes(compress(b"<mediawiki>" + text + b"</mediawiki>" if kind == "wikipedia" else text))
    with pytest.raises(ValueError, match=rf"{name}\.{suffix}: \d+ bytes up to byte \d+ expand to \d+, more than 1000"):
        read(path, kind)


@pytest.mark.parametrize("nested", [False, True])
def test_a_column_of_documents_that_holds_lists_is_refused(nested: bool, tmp_path: Path) -> None:
    """A dictionary holds a long text once for the million entries of a list: 10 kB took 11 GB."""
    path = tmp_path / "a.parquet"
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["b" * 1000]))
    lists = pa.ListArray.from_arrays([0, 1000], text)
    column = pa.StructArray.from_arrays([lists], ["x"]) if nested else lists
    pq.write_table(pa.table({"text": ["It rains."], "book": column}), path)
    with pytest.raises(ValueError, match=r"a\.parquet: column 'book' is .*list<.*, not one value a row; set document_"):
        read(path, "parquet", row="sentence", document_column="book")


# --- XML


@pytest.mark.parametrize(
    "markup",
    [
        b'<page a="%s"/>',
        b"<!--%s-->",
        b"<?x %s?>",
        b"<%s/>",
        b"</%s>",
        b"<page %s/>",
    ],
    ids=["attribute", "comment", "instruction", "tag", "end", "spaces"],
)
@pytest.mark.parametrize(
    "place", [b"%s</mediawiki>", b"<page><revision><text>x%s</text></revision></page></mediawiki>"]
)
def test_huge_markup_is_refused(markup: bytes, place: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    filling = (b" " if b" %s/" in markup else b"x") * 6 * MIB
    path.write_bytes(b"<mediawiki>" + place % (markup % filling))
    with pytest.raises(ValueError, match=r"a\.xml: a tag, comment or processing instruction of more than 4194304"):
        read(path, "wikipedia")


def test_many_levels_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_bytes(b"<mediawiki>" + b"<a>" * 300_000)
    with pytest.raises(ValueError, match=r"a\.xml: more than 100 elements in each other at byte \d+") as found:
        read(path, "wikipedia")
    assert len(str(found.value)) < 300 + len(str(path))


def test_long_text_and_many_comments_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    long = b"<page><title>L</title><revision><text>" + b"y" * 6 * MIB + b"</text></revision></page>"
    page = b"<page><title>P</title><ns>0</ns><revision><text>It rains. It snows.</text></revision></page>"
    path.write_bytes(b"<mediawiki>" + b"<!-- x -->" * 1000 + long + page + b"</mediawiki>")
    assert [document.name for document in read(path, "wikipedia")] == ["P"]


@pytest.mark.parametrize("encoding", ["idna", "punycode", "rot13", "zlib", "a" * 100_000], ids=lambda name: name[:9])
def test_an_encoding_that_is_none_is_refused_in_one_short_line(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_text(f'<?xml version="1.0" encoding="{encoding}"?><mediawiki></mediawiki>')
    with pytest.raises(ValueError, match=r"a\.xml: its XML declaration names the encoding .*, which is") as found:
        read(path, "wikipedia")
    assert len(str(found.value)) < 300 + len(str(path))


def test_a_long_title_before_a_fault_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_text(f"<mediawiki><page><title>{'t' * 100_000}</title></pag>")
    with pytest.raises(ValueError, match=r"a\.xml: not well-formed at byte") as found:
        read(path, "wikipedia")
    assert len(str(found.value)) < 500 + len(str(path))


@pytest.mark.parametrize("number", ["--5", "5-", "9" * 5000, "&#x0663;"], ids=["two signs", "sign", "long", "Arabic"])
@pytest.mark.parametrize("place", ["<ns>{}</ns>", '<x><namespace key="{}">X</namespace></x>'])
def test_a_namespace_whose_number_is_none_is_passed_over(number: str, place: str, tmp_path: Path) -> None:
    """Python reads no number in some of these texts, and its error would not name the file."""
    path = tmp_path / "a.xml"
    page = "<page><title>P</title>{}<revision><text>It rains. It snows.</text></revision></page>"
    path.write_text(f"<mediawiki>{page.format(place.format(number) * 5)}</mediawiki>")
    assert [document.name for document in read(path, "wikipedia")] == ["P"]


# --- what expands is noticed early


@pytest.mark.parametrize("suffix", ["gz", "xz", "bz2"])
def test_a_file_of_blank_lines_is_refused_after_a_few_megabytes(suffix: str, tmp_path: Path) -> None:
    """Each blank line takes a microsecond, so those of a file of 100 kB must not all be read first."""
    path = tmp_path / f"a.txt.{suffix}"
    path.write_bytes({"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}[suffix](b"\n" * 40 * MIB))
    if suffix != "gz":
        path.write_bytes(path.read_bytes() * 20)
    given: list[int] = []
    with pytest.raises(ValueError, match=rf"a\.txt\.{suffix}: \d+ bytes up to byte \d+ expand to \d+, more than 1000"):
        given.extend(map(len, read_pieces(path)))
    assert sum(given) < 12 * MIB


def test_a_run_of_levels_is_read_only_as_far_as_the_page_has_rows() -> None:
    data = b"\x81\x80\x80\x08" + bytes(8 * MIB)  # a bit-packed run of 8 million groups of 8
    tracemalloc.start()
    try:
        assert parquet_pages._decode_runs(data, count=20, width=1).tolist() == [0] * 20
        assert tracemalloc.get_traced_memory()[1] < 24 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_names_of_fields_in_an_error_are_cut(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    names = [f"{number}{'n' * 10_000}" for number in range(40)]
    if kind == "jsonl":
        path.write_text(json.dumps(dict.fromkeys(names, 1)))
    else:
        pq.write_table(pa.table({name: [1] for name in names}), path)
    with pytest.raises(ValueError, match=rf"a\.{kind}.*: has no (field|column) 'text' \(it has 0n+, 1n+") as found:
        read(path, kind, text_column="text")
    assert len(str(found.value)) < 2500
