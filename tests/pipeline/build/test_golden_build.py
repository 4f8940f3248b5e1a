"""The bytes of one tiny build. A change here changes everybody's data: raise CODE_VERSION of pipeline.versions with it.

Seen to fail with planted mistakes: rows permuted by a key without the bucket's content, masks at 82% instead of 80%
(rows), row groups of another size (files only).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pytest

from corpora import build_text, make_documents, read_rows

GOLDEN_PYARROW = "25.0.1"
"""The files carry the writer's version; other versions write other bytes for the same rows."""
FILES = {
    "data/train-00000-of-00002.parquet": "6f60adcbf77cff158087a66af79a932b960fa9de726c6a66a86dac970627c0cc",
    "data/train-00001-of-00002.parquet": "b9afb3a98cd3263c1171a0ba4241dace2fd1488fc3c72160a0c84b15d5e44bfb",
    "data/validation-00000-of-00001.parquet": "6c8c2170e6b386dce2c83bbf15464c7c462aa5453b6089627d6a59e9b710ef3c",
    "token_counts.parquet": "63751a4444d599f53f62fad3485b1701d626db0ebdeea83dc63576804ba0952b",
}
ROWS = "27a1282e4456510d7b55971105d0b931748fafcdcd0456d7a3eb6c15900ed039"
"""sha256 of all rows as JSON, whatever wrote the files."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], str]:
    folder = tmp_path_factory.mktemp("golden")
    manifest = build_text(
        folder,
        [*make_documents(40), ["one word"], ["di"], ["ba de fi " * 40]],
        shards=2,
        validation_fraction=0.1,
        passes=2,
        max_seq_length=32,
    )
    found = {shard.path: shard.sha256 for shard in manifest.shards}
    found["token_counts.parquet"] = manifest.files["token_counts.parquet"]
    rows = read_rows(folder / "out", manifest).to_pylist()
    text = json.dumps(rows, default=lambda value: value.hex(), sort_keys=True)
    return found, hashlib.sha256(text.encode()).hexdigest()


def test_rows_are_the_golden_ones(built: tuple[dict[str, str], str]) -> None:
    assert built[1] == ROWS


@pytest.mark.skipif(pa.__version__ != GOLDEN_PYARROW, reason=f"golden bytes are those of pyarrow {GOLDEN_PYARROW}")
def test_files_are_the_golden_ones(built: tuple[dict[str, str], str]) -> None:
    assert built[0] == FILES


def test_the_vocabulary_of_the_golden_build_is_fixed(tmp_path: Path) -> None:
    manifest = build_text(tmp_path, make_documents(3))
    assert manifest.vocabulary_hash == "de4b17453aaaeb875401c27b2e45b3506cfff8965ab461ed35591568ff426a63"
