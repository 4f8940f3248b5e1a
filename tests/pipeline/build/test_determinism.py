"""The same documents, config and seed give the same bytes: any number of workers, order, folder and bundling."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from corpora import make_config, make_documents, write_text
from pipeline.build.recipe import build
from pipeline.config.schema import PipelineConfig
from pipeline.dataset.manifest import Manifest, read_manifest
from pipeline.settings import dump_yaml
from pipeline.shuffle import levels

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


def scattered(folder: Path, documents: list[list[str]], *, seed: int) -> list[dict[str, object]]:
    """Two sources over seven files, the documents shuffled, the files listed backwards."""
    shuffled = random.Random(seed).sample(documents, len(documents))
    for number in range(7):
        write_text(folder / ("x" if number % 2 else "y") / f"part-{(number * 5) % 7}.txt", shuffled[number::7])
    return [
        {"kind": "text", "path": [str(path) for path in sorted((folder / name).iterdir(), reverse=True)]}
        for name in ("y", "x")
    ]


def test_four_processes_another_order_and_folder_change_nothing(
    tmp_path: Path, documents: list[list[str]], reference: Manifest
) -> None:
    """Seeded pairs, whatever the workers (LDDL (source))."""
    config = make_config(tmp_path, sources=scattered(tmp_path, documents, seed=4), workers=4, **SETTINGS)
    manifest = quiet(config)
    assert hashes(manifest) == hashes(reference)
    assert manifest.files == reference.files
    assert manifest.statistics["splits"] == reference.statistics["splits"]


def test_documents_reach_their_buckets_in_one_step_or_in_two(
    tmp_path: Path, documents: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more than 1,024 buckets there are two; the second also in worker processes, and near duplicates by part."""
    settings = {**SETTINGS, "shards": 1100, "cleaning": {"near_duplicates": {}}}
    more = [*documents, *([*document[:-1], "ba be bi"] for document in documents[:9]), documents[5]]
    manifests = []
    for name, workers, most in (("two", 1, 1024), ("processes", 2, 1024), ("one", 1, 2000)):
        monkeypatch.setattr(levels, "MOST_BUCKETS_A_FILE", most)
        folder = tmp_path / name
        sources = scattered(folder, more, seed=workers)
        manifests.append(quiet(make_config(folder, sources=sources, workers=workers, **settings)))
    assert manifests[0].drops["duplicate"] == 1
    assert manifests[0].drops["near_duplicate"]
    assert len(manifests[0].shards) > 20
    for other in manifests[1:]:
        assert hashes(other) == hashes(manifests[0])
        assert other.drops == manifests[0].drops


def test_the_script_with_two_processes_builds_the_same(
    tmp_path: Path, repository: Path, documents: list[list[str]], reference: Manifest
) -> None:
    """`python pipeline/run.py` from another folder, where the package need not be on the path."""
    config = make_config(tmp_path, sources=scattered(tmp_path, documents, seed=2), workers=2, **SETTINGS)
    (tmp_path / "c.yaml").write_text(dump_yaml(config))
    done = subprocess.run(
        [sys.executable, str(repository / "pipeline" / "run.py"), "--config", "c.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].endswith("2 workers")
    assert "Traceback" not in done.stderr
    assert hashes(read_manifest(tmp_path / "out")) == hashes(reference)


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
