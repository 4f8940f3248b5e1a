"""The card of a data set: what its front matter declares, and what it says of settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from corpora import build_text, make_config, make_documents, write_text
from pipeline.build.recipe import build
from pipeline.dataset.manifest import Manifest
from pipeline.output.data_card import render_card


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    folder = tmp_path_factory.mktemp("card")
    return folder / "out", build_text(folder, make_documents(120), validation_fraction=0.2)


def test_the_card_declares_the_splits(built: tuple[Path, Manifest], tmp_path: Path) -> None:
    root, manifest = built
    text = (root / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    card = yaml.safe_load(front)
    assert card["configs"] == [
        {
            "config_name": "default",
            "data_files": [
                {"split": "train", "path": "data/train-*.parquet"},
                {"split": "validation", "path": "data/validation-*.parquet"},
            ],
        }
    ]
    assert card["language"] == ["en"]
    assert card["size_categories"] == ["n<1K"]
    assert f"| train | {manifest.statistics['splits']['train']['documents']:,} |" in body
    path = write_text(tmp_path / "a.txt", make_documents(10))
    config = make_config(tmp_path, sources=[{"kind": "text", "path": str(path), "language": "ko"}])
    build(config, say=lambda line: None)
    card = yaml.safe_load((tmp_path / "out" / "README.md").read_text().split("---\n", 2)[1])
    assert [entry["split"] for entry in card["configs"][0]["data_files"]] == ["train"]
    assert card["language"] == ["ko"]


def test_the_card_says_so_where_the_published_algorithm_was_used(tmp_path: Path) -> None:
    build_text(tmp_path, make_documents(10), mode="reference", masks_per_pair=1)
    assert "one stream of documents a shard" in (tmp_path / "out" / "README.md").read_text()


def test_the_card_says_how_documents_were_held_out(built: tuple[Path, Manifest]) -> None:
    _, manifest = built
    assert "chosen by the hash of their text; none appears" in render_card(manifest)
    for setting in ({"unit": "chapter"}, {"rows_per_document": 9}):
        config = {**manifest.config, "sources": [{**source, **setting} for source in manifest.config["sources"]]}
        card = render_card(manifest.model_copy(update={"config": config}))
        assert "by the hash of their text (parts of a book together, by the hash of its first part); none" in card


def test_settings_show_the_entries_that_the_vocabulary_has(built: tuple[Path, Manifest], tmp_path: Path) -> None:
    root, manifest = built
    assert manifest.vocabulary_size == 145
    assert manifest.config["vocabulary"]["size"] == 30_522  # what a training would have had
    card = (root / "README.md").read_text().split("```yaml\n")[1].split("```")[0]
    assert yaml.safe_load(card)["vocabulary"]["size"] == 145
    assert json.loads((root / "report.json").read_text())["config"]["vocabulary"]["size"] == 145


def test_names_are_shown_as_they_are(built: tuple[Path, Manifest]) -> None:
    """A config takes no such name; a manifest may hold one."""
    _, manifest = built
    name = "<img src=x>|# ```"
    statistics = {**manifest.statistics, "sources": [{**manifest.statistics["sources"][0], "name": name}]}
    changes = {"sources": (name,), "statistics": statistics, "config": {**manifest.config, "note": name}}
    body, settings = render_card(manifest.model_copy(update=changes)).split("---\n", 2)[2].split("## Settings")
    shown = r"\<img src=x\>\|\# \`\`\`"
    assert f"| {shown} | text |" in body
    assert f"source of A: 0 {shown} |" in body
    assert "\n````yaml\n" in settings
