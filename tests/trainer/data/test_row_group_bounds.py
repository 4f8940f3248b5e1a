"""Shards of a few kilobytes that would take gigabytes: refused by name before anything is decoded."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nested_parquet import write_nested
from object_store import bucket, s3_server
from pipeline import storage
from pipeline.dataset import footer_sha256, schema
from trainer.data.row_groups import RowGroupError, read_row_group

_ = (bucket, s3_server)
MIB = 1 << 20
IDS = schema.sentence_pair_schema(512, vocabulary_hash="")


def write(folder: Path, name: str, column: pa.Array, **options: Any) -> Path:
    path = folder / "a.parquet"
    pq.write_table(pa.table({name: column}), path, compression="zstd", **{"use_dictionary": False, **options})
    return path


def read(root: str | Path, column: str, *, of: Path) -> pa.Table:
    return read_row_group(root, path=of.name, footer_sha256=footer_sha256(of), row_group=0, columns=[column])


def id_lists(count: int) -> pa.Array:
    return pa.array([[7] * (count // 64)] * 64, IDS.field("input_ids").type)


@pytest.mark.parametrize(
    "options", [{}, {"use_dictionary": True}, {"column_encoding": {"input_ids.list.element": "DELTA_BINARY_PACKED"}}],
    ids=["plain", "dictionary", "differences"],
)  # fmt: skip
@pytest.mark.parametrize("place", ["folder", "store"])
def test_a_small_row_group_of_many_ids_is_refused(
    place: str, options: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = write(tmp_path, "input_ids", id_lists(64 * MIB), **options)
    assert path.stat().st_size < 50_000
    root: str | Path = tmp_path
    if place == "store":
        root = str(request.getfixturevalue("bucket"))
        storage.store_file(path, f"{root}/{path.name}")
    with pytest.raises(RowGroupError, match=r"a\.parquet, row group 0: \d+ bytes up to byte \d+ expand to \d+, more"):
        read(root, "input_ids", of=path)


def test_row_groups_on_a_store_are_read(bucket: str, tmp_path: Path) -> None:
    path = write(tmp_path, "input_ids", id_lists(6400))
    storage.store_file(path, f"{bucket}/{path.name}")
    assert read(bucket, "input_ids", of=path) == read(tmp_path, "input_ids", of=path)
    assert read(bucket, "input_ids", of=path)["input_ids"].to_pylist() == [[7] * 100] * 64


@pytest.mark.parametrize(
    ("column", "options", "message"),
    [
        ("document_id", {"use_dictionary": True}, "document_id has a value of 100000 bytes instead of 16"),
        ("document_id", {"column_encoding": {"document_id": "DELTA_BYTE_ARRAY"}}, "DELTA_BYTE_ARRAY, as no shard is"),
    ],
)
def test_a_long_value_that_is_repeated_is_refused(
    column: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """20,000 rows of 100 kB would be 2 GB; the page has 100 kB."""
    text = bytes(n * n * 7919 % 251 for n in range(100_000))
    values: Callable[[int], pa.Array] = lambda rows: pa.DictionaryArray.from_arrays(  # noqa: E731
        pa.array([0] * rows, pa.int32()), pa.array([text])
    )
    array = values(20_000) if "use_dictionary" in options else values(40).cast(pa.binary())
    path = write(tmp_path, column, array, **options, store_schema=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RowGroupError, match=message):
        read(tmp_path, column, of=path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000, "KiB"


def test_document_ids_are_read_as_bytes(tmp_path: Path) -> None:
    ids = [bytes([n % 5]) * 16 for n in range(100)]
    path = write(tmp_path, "document_id", pa.array(ids), use_dictionary=True)
    table = read(tmp_path, "document_id", of=path)
    assert table["document_id"].type == pa.binary()
    assert table["document_id"].to_pylist() == ids


@pytest.mark.parametrize("reader", ["trainer", "pipeline"])
def test_columns_nested_without_end_do_not_crash_the_process(reader: str, tmp_path: Path) -> None:
    """20,000 levels overflow the stack of pyarrow 25, and the process ends by SIGSEGV."""
    path = write_nested(tmp_path / "a.parquet", levels=20_000)
    program = {
        "trainer": "from trainer.data.row_groups import read_row_group; from pipeline.dataset import footer_sha256;"
        "import sys; p = sys.argv[1]; read_row_group(p[:-10], path='a.parquet', footer_sha256=footer_sha256(p), "
        "row_group=0, columns=['input_ids'])",
        "pipeline": "from pipeline.config.schema import SourceConfig; from pipeline.sources import list_splits;"
        "import sys; list_splits([SourceConfig(kind='parquet', path=sys.argv[1])])",
    }[reader]
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "columns are nested in more than 100 levels" in done.stderr.splitlines()[-1]
    assert str(path) in done.stderr.splitlines()[-1]
