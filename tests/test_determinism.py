"""The same documents, config and seed give the same bytes: any number of workers, order, folder and bundling."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from corpora import make_config, make_documents, write_text

from pipeline.config import PipelineConfig
from pipeline.manifest import Manifest
from pipeline.run import build

SETTINGS = {"shards": 5, "validation_fraction": 0.1, "passes": 2, "max_seq_length": 32}


def hashes(manifest: Manifest) -> dict[str, str]:
    return {shard.path: shard.sha256 for shard in manifest.shards}


def quiet(config: PipelineConfig) -> Manifest:
    return build(config, say=lambda line: None)


@pytest.fixture(scope="module")
def documents() -> list[list[str]]:
    return make_documents(300)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, documents: list[list[str]]) -> Manifest:
    """One worker, one file."""
    folder = tmp_path_factory.mktemp("reference")
    path = write_text(folder / "text" / "corpus.txt", documents)
    manifest = quiet(make_config(folder, sources=[{"kind": "text", "path": str(path)}], **SETTINGS))
    assert len(manifest.shards_of("train")) == 5
    assert len(manifest.shards_of("validation")) == 1
    return manifest


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_order_and_folders_change_nothing(
    tmp_path: Path, documents: list[list[str]], reference: Manifest, workers: int
) -> None:
    """Other processes, the documents shuffled over seven files in two sources elsewhere, listed backwards."""
    shuffled = random.Random(workers).sample(documents, len(documents))
    names = [f"part-{(number * 5) % 7}.txt" for number in range(7)]
    for number, name in enumerate(names):
        write_text(tmp_path / ("x" if number % 2 else "y") / name, shuffled[number::7])
    sources = [
        {"kind": "text", "path": [str(path) for path in sorted((tmp_path / folder).iterdir(), reverse=True)]}
        for folder in ("y", "x")
    ]
    manifest = quiet(make_config(tmp_path, sources=sources, workers=workers, **SETTINGS))
    assert hashes(manifest) == hashes(reference)
    assert manifest.files == reference.files
    assert manifest.statistics["splits"] == reference.statistics["splits"]


def test_the_same_build_elsewhere_is_the_same_data_set(
    tmp_path: Path, documents: list[list[str]], reference: Manifest
) -> None:
    path = write_text(tmp_path / "other name.txt", documents)
    manifest = quiet(make_config(tmp_path, sources=[{"kind": "text", "path": str(path)}], **SETTINGS))
    assert manifest == reference
    assert manifest.hash == reference.hash


def test_a_repeated_document_changes_no_row(tmp_path: Path, documents: list[list[str]], reference: Manifest) -> None:
    path = write_text(tmp_path / "corpus.txt", [*documents, documents[0]])
    manifest = quiet(make_config(tmp_path, sources=[{"kind": "text", "path": str(path)}], **SETTINGS))
    assert hashes(manifest) == hashes(reference)
    assert manifest.drops == {"duplicate": 1}


@pytest.mark.parametrize("change", [{"seed": 1}, {"passes": 3}, {"short_sequence_probability": 0.5}])
def test_settings_that_shape_the_data_change_it(
    tmp_path: Path, documents: list[list[str]], reference: Manifest, change: dict[str, float]
) -> None:
    path = write_text(tmp_path / "corpus.txt", documents)
    manifest = quiet(make_config(tmp_path, sources=[{"kind": "text", "path": str(path)}], **{**SETTINGS, **change}))
    assert not set(hashes(manifest).values()) & set(hashes(reference).values())
