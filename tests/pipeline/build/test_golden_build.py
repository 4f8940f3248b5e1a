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
    "data/train-00000-of-00002.parquet": "1d0d9e21b277095efdded6bbecea125237b5f17c5aec07a092ad90971a83de88",
    "data/train-00001-of-00002.parquet": "1e72c1c59ee535591f6937786644518ade748778e755025deb625d95381314b6",
    "data/validation-00000-of-00001.parquet": "aa8cafae3cb6674dad145163c1183d0bbad33275a317274bb8d438ea07b2a2e8",
    "token_counts.parquet": "41998c557394ce8698bf8cdfd28ecb53ef96d8c7c7212671000da9eb5b4730b3",
}
ROWS = "d7fe619e2b091ffdccfb917612b8de08af173fadf521cd769770c509b467d7e0"
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
