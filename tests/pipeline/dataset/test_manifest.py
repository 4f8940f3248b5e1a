from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.dataset.manifest import (
    MANIFEST_NAME,
    DataSetError,
    Manifest,
    footer_sha256,
    open_data_set,
    read_manifest,
    write_manifest,
)
from synthetic import write_data_set


@pytest.fixture
def data_set(tmp_path: Path) -> Path:
    root = tmp_path / "set"
    write_data_set(root)
    return root


def edit(root: Path, **changes: object) -> None:
    """Change manifest entries and state the matching hash again."""
    path = root / MANIFEST_NAME
    tree = json.loads(path.read_text())
    tree.update(changes)
    tree.pop("hash")
    run = tree.pop("run")
    write_manifest(root, Manifest.model_validate_json(json.dumps(tree)), run=run)


def test_a_set_opens_and_survives_a_round_trip(data_set: Path) -> None:
    manifest = open_data_set(data_set, full=True)
    write_manifest(data_set, manifest, run={"workers": 7})
    assert read_manifest(data_set) == manifest
    assert manifest.num_rows("train") == sum(shard.rows for shard in manifest.shards_of("train")) > 0


def test_run_facts_enter_no_hash(data_set: Path) -> None:
    before = read_manifest(data_set).hash
    write_manifest(data_set, read_manifest(data_set), run={"seconds": 1.5})
    assert read_manifest(data_set).hash == before


def test_missing_folder_and_missing_manifest(tmp_path: Path) -> None:
    with pytest.raises(DataSetError, match="no such data set folder"):
        read_manifest(tmp_path / "absent")
    with pytest.raises(DataSetError, match=r"has no manifest\.json"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("inside", ["data", "tokenizer", "manifest.json", "data/train-00000-of-00002.parquet"])
def test_a_part_of_a_set_asks_for_the_set(data_set: Path, inside: str) -> None:
    with pytest.raises(DataSetError) as caught:
        read_manifest(data_set / inside)
    assert (
        str(caught.value) == f"{data_set / inside}: is inside the data set {data_set}; give the set itself, {data_set}"
    )


@pytest.mark.parametrize("text", ["{", "[]", '{"hash": "x"}', '{"hash": "x", "run": {}, "schema_version": 2}'])
def test_damaged_manifest(data_set: Path, text: str) -> None:
    (data_set / MANIFEST_NAME).write_text(text)
    with pytest.raises(DataSetError, match="damaged manifest"):
        read_manifest(data_set)


def test_other_schema_version(data_set: Path) -> None:
    path = data_set / MANIFEST_NAME
    path.write_text(path.read_text().replace('"schema_version": 2', '"schema_version": 99'))
    with pytest.raises(DataSetError, match="schema version 99"):
        read_manifest(data_set)


def test_edited_manifest(data_set: Path) -> None:
    path = data_set / MANIFEST_NAME
    tree = json.loads(path.read_text())
    tree["seed"] += 1
    path.write_text(json.dumps(tree))
    with pytest.raises(DataSetError, match="does not match its own hash"):
        read_manifest(data_set)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", "", "a\\b"])
def test_paths_cannot_leave_the_folder(data_set: Path, name: str) -> None:
    edit(data_set, files={name: "0" * 64})
    with pytest.raises(DataSetError, match="leaves the data set's folder"):
        read_manifest(data_set)


def test_missing_shard(data_set: Path) -> None:
    path = data_set / read_manifest(data_set).shards[0].path
    path.unlink()
    with pytest.raises(DataSetError, match="listed in the manifest but missing") as caught:
        open_data_set(data_set)
    assert str(path) in str(caught.value)


def test_grown_shard(data_set: Path) -> None:
    path = data_set / read_manifest(data_set).shards[0].path
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(DataSetError, match="bytes, the manifest says"):
        open_data_set(data_set)


def test_changed_footer(data_set: Path) -> None:
    path = data_set / read_manifest(data_set).shards[0].path
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataSetError, match="footer hash"):
        open_data_set(data_set)


def test_a_flipped_bit_in_the_data_needs_the_full_check(data_set: Path) -> None:
    path = data_set / read_manifest(data_set).shards[0].path
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    open_data_set(data_set)
    with pytest.raises(DataSetError, match="sha256"):
        open_data_set(data_set, full=True)


def test_changed_and_missing_other_files(data_set: Path) -> None:
    name = next(iter(read_manifest(data_set).files))
    path = data_set / name
    content = path.read_bytes()
    path.write_bytes(content + b"x")
    with pytest.raises(DataSetError, match="sha256"):
        open_data_set(data_set)
    path.unlink()
    with pytest.raises(DataSetError, match="missing"):
        open_data_set(data_set)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"x" * 20, b"PAR1\xff\xff\xff\x7fPAR1"])
def test_what_is_no_parquet_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    with pytest.raises(DataSetError, match="Parquet"):
        footer_sha256(path)
