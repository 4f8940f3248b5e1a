"""Large row groups of Parquet: the same text as pyarrow's, in little memory, whatever wrote the file."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import SourceConfig
from pipeline.documents import Document
from pipeline.sources import page_compression, parquet_pages, records
from source_items import read_source

CODECS = ["none", "snappy", "gzip", "zstd", "brotli"]


def read_column(path: Path) -> list[str | None]:
    """Return the values of the first column as read_values yields them."""
    file = pq.ParquetFile(path)
    column = file.metadata.schema.column(0)
    found: list[str | None] = []
    for group in range(file.num_row_groups):
        chunk = file.metadata.row_group(group).column(0)
        assert parquet_pages.can_read(chunk, column)
        values = parquet_pages.read_values(str(path), chunk=chunk, nullable=column.max_definition_level > 0)
        found += [None if value is None else value.decode() for value in values]
    return found


def write(path: Path, texts: list[str | None], kind: pa.DataType | None = None, **options: Any) -> Path:
    pq.write_table(pa.table({"text": pa.array(texts, kind or pa.string())}), path, **options)
    return path


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.none() | st.sampled_from(["", "a", "long " * 300]) | st.text(max_size=30), max_size=300),
    st.fixed_dictionaries(
        {
            "compression": st.sampled_from(CODECS),
            "use_dictionary": st.booleans(),
            "data_page_version": st.sampled_from(["1.0", "2.0"]),
            "data_page_size": st.sampled_from([100, 1 << 20]),
            "dictionary_pagesize_limit": st.sampled_from([100, 1 << 20]),
            "write_batch_size": st.sampled_from([1, 1024]),
            "write_page_checksum": st.booleans(),
            "row_group_size": st.sampled_from([7, 1000]),
        }
    ),
    st.sampled_from([pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]),
)
def test_the_values_are_those_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str | None], options: dict[str, Any], kind: pa.DataType
) -> None:
    path = write(tmp_path_factory.mktemp("pages") / "a.parquet", texts, kind, **options)
    assert read_column(path) == texts


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_real_novels_in_one_page_are_read(shared_data: Path, tmp_path: Path, codec: str, use_dictionary: bool) -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted((shared_data / "books/plain").glob("*.txt"))]
    texts = [f"{number} {text}" for number in range(2) for text in [*texts, "", "short"]]
    assert read_column(write(tmp_path / "a.parquet", texts, compression=codec, use_dictionary=use_dictionary)) == texts


MEASURE = """
import sys
from pipeline.config import SourceConfig
from pipeline.sources import read_documents, split_file

def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])

source = SourceConfig(kind="parquet", path=sys.argv[1])
split = split_file(sys.argv[1], source=source, index=0)[0]
before = peak()
first = next(iter(read_documents(split, source)))
print(peak() - before, first.name)
"""


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_a_row_group_of_many_books_takes_little_memory(tmp_path: Path, use_dictionary: bool) -> None:
    """200 books of 600 kB: 120 MB of text in one page. pyarrow took 360 to 700 MB."""
    letters = random.Random(1)
    lines = ["".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=997)) for _ in range(800)]
    books = [f"{number}\n" + f"{number}.\n".join(lines[number : number + 600]) for number in range(200)]
    path = write(tmp_path / "a.parquet", books, compression="zstd", use_dictionary=use_dictionary)  # type: ignore[arg-type]
    run = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    grown, name = run.stdout.split(maxsplit=1)
    assert name.strip() == "a.parquet, row 0"
    assert int(grown) < 80 << 10  # KiB


def documents(path: Path) -> list[tuple[str, ...]]:
    items = read_source(SourceConfig(kind="parquet", path=str(path)))
    return [item.sentences for item in items if isinstance(item, Document)]


@pytest.mark.parametrize("codec", ["lz4", "snappy"])
def test_a_form_that_only_pyarrow_reads_is_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    """LZ4, or Snappy that does not consist of blocks: rows that came before the fault come once."""
    texts = [f"Row {number}.\n" + "word " * 200 for number in range(4_000)]
    path = write(tmp_path / "a.parquet", texts, compression=codec, data_page_size=1 << 16, use_dictionary=False)  # type: ignore[arg-type]
    monkeypatch.setattr(records, "_LARGE_BYTES", 0)
    whole = documents(path)
    monkeypatch.setattr(page_compression, "_SNAPPY_BLOCK", 1 << 40)
    monkeypatch.setattr(page_compression, "_MOST_SNAPPY_BYTES", 0)
    assert documents(path) == whole
    assert [sentences[0] for sentences in whole] == [f"Row {number}." for number in range(4_000)]


@pytest.mark.parametrize("codec", CODECS)
def test_damage_is_an_error_and_no_other_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    monkeypatch.setattr(records, "_LARGE_BYTES", 0)
    texts = [f"Sentence {number * 7919}." for number in range(3_000)]
    path = write(tmp_path / "a.parquet", texts, compression=codec, write_page_checksum=True)  # type: ignore[arg-type]
    whole = path.read_bytes()
    end = pq.ParquetFile(path).metadata.row_group(0).column(0).total_compressed_size
    for place in range(4, end, max(1, end // 200)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        message = ""
        try:
            found = documents(path)
        except ValueError as error:
            message = str(error)
        if message:
            assert "a.parquet: cannot be read near row " in message
        else:  # the byte is part of a number that nothing uses
            assert [text for sentences in found for text in sentences] == texts


def test_numbers_of_no_bits_take_no_more_memory_than_there_are_values() -> None:
    """A damaged run may claim 2**50 of them."""
    run = (1 << 50) | 1
    data = bytes([*(run >> shift & 0x7F | 0x80 for shift in range(0, 49, 7)), run >> 49])
    assert parquet_pages._decode_runs(data, count=5, width=0).tolist() == [0] * 5
