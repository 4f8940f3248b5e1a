"""hold_out: documents that share 13 words in a row with given texts are in no part of the set, and counted by file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from corpora import find_sides, make_config, make_documents, write_text
from pipeline.build import recipe
from pipeline.build.recipe import build
from pipeline.config import PipelineConfig
from pipeline.dataset.manifest import Manifest
from pipeline.documents import Document
from pipeline.errors import PassingError
from pipeline.settings import ConfigError, load_settings

DOCUMENTS = make_documents(40, seed=3, sentences=(8, 12))


def quote(number: int) -> str:
    """The middle of a document."""
    return " ".join(DOCUMENTS[number][2:6])


def write_sets(folder: Path) -> None:
    """Two evaluation sets, which quote documents 3, 4 and 5, and 6 and 3."""
    folder.mkdir()
    (folder / "squad.json").write_text(
        json.dumps({"data": [{"context": quote(number).upper()} for number in (3, 4, 5)]})
    )
    (folder / "glue.tsv").write_text("".join(f"{number}\t{quote(number)}\tyes\n" for number in (6, 3)))


def hold(folder: Path, **settings: Any) -> PipelineConfig:
    source = {"kind": "text", "path": str(write_text(folder / "text" / "corpus.txt", DOCUMENTS))}
    return make_config(folder, sources=[source], **{"hold_out": [str(folder / "eval")], **settings})


def ids_of(numbers: set[int]) -> set[bytes]:
    return {Document("", tuple(DOCUMENTS[number])).id for number in numbers}


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest, list[str]]:
    folder = tmp_path_factory.mktemp("held")
    write_sets(folder / "eval")
    said: list[str] = []
    config = hold(folder, validation_fraction=0.3, workers=2, cleaning={"keep_rejects": str(folder / "rejects")})
    return folder, build(config, say=said.append), said


def test_documents_with_a_passage_of_a_held_text_are_in_no_part(held: tuple[Path, Manifest, list[str]]) -> None:
    folder, manifest, _ = held
    sides = find_sides(folder, manifest)
    assert sides["train"] | sides["validation"] == ids_of(set(range(40)) - {3, 4, 5, 6})


def test_they_are_counted_by_file_and_kept_as_rejects(held: tuple[Path, Manifest, list[str]]) -> None:
    folder, manifest, said = held
    assert manifest.drops == {"in_hold_out: glue.tsv": 2, "in_hold_out: squad.json": 2}
    assert [line for line in said if line.startswith("hold_out: 2 files, 8 texts, ")]
    rejects = [json.loads(line) for line in (folder / "rejects" / "rejects.jsonl").read_text().splitlines()]
    assert (
        sorted(reject["reason"] for reject in rejects)
        == ["in_hold_out: glue.tsv"] * 2 + ["in_hold_out: squad.json"] * 2
    )
    assert all(reject["detail"].startswith("both have: ") for reject in rejects)
    report = (folder / "out" / "report.html").read_text()
    assert "in hold out: squad.json" in report


def test_a_finished_set_with_other_held_texts_is_another_set(held: tuple[Path, Manifest, list[str]]) -> None:
    folder, _, _ = held
    with pytest.raises(ValueError, match=r"different settings or input: inputs\.\(hold_out\): .* -> null"):
        build(hold(folder, validation_fraction=0.3, hold_out=[]), say=lambda line: None)
    said: list[str] = []
    build(hold(folder, validation_fraction=0.3), say=said.append)
    assert said[-1].endswith("already complete, nothing to do")


@pytest.mark.parametrize("path", ["nowhere", "eval/*.csv"])
def test_a_held_text_that_is_missing_is_refused_at_once(tmp_path: Path, path: str) -> None:
    write_sets(tmp_path / "eval")
    with pytest.raises(ValueError, match=r"hold_out: (no such file or folder|the glob)"):
        build(hold(tmp_path, hold_out=[str(tmp_path / path)]), say=lambda line: None)
    assert not (tmp_path / "out").exists()


def test_a_held_text_without_words_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("...")
    with pytest.raises(ValueError, match=r"hold_out: .*a\.txt has no words"):
        build(hold(tmp_path, hold_out=[str(tmp_path / "a.txt")]), say=lambda line: None)
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


def test_one_path_must_be_a_list(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("sources: [{kind: text, path: x}]\noutput: out\nhold_out: a.txt\n")
    with pytest.raises(ConfigError, match="hold_out"):
        load_settings(PipelineConfig, file=tmp_path / "c.yaml")


def test_a_stopped_build_goes_on_with_the_same_held_texts_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sets(tmp_path / "eval")
    whole = build(hold(tmp_path, output=str(tmp_path / "whole"), workers=2), say=lambda line: None)

    def fail(*_: object, **__: object) -> None:
        raise PassingError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(recipe, "check_labels", fail)
        with pytest.raises(PassingError):
            build(hold(tmp_path), say=lambda line: None)
    with pytest.raises(ValueError, match=r"inputs\.\(hold_out\)"):
        build(hold(tmp_path, hold_out=[str(tmp_path / "eval" / "glue.tsv")]), say=lambda line: None)
    said: list[str] = []
    manifest = build(hold(tmp_path), say=said.append)
    assert "resumed: 1 of 1 split and 1 of 1 shard kept" in said
    assert (manifest.hash, manifest.drops) == (whole.hash, whole.drops)
    for shard in manifest.shards:
        assert (tmp_path / "out" / shard.path).read_bytes() == (tmp_path / "whole" / shard.path).read_bytes()


def test_a_stopped_build_counts_by_the_new_name_of_a_held_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sets(tmp_path / "eval")

    def fail(*_: object, **__: object) -> None:
        raise PassingError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(recipe, "check_labels", fail)
        with pytest.raises(PassingError):
            build(hold(tmp_path), say=lambda line: None)
    (tmp_path / "eval" / "glue.tsv").rename(tmp_path / "eval" / "mrpc.tsv")
    manifest = build(hold(tmp_path), say=lambda line: None)
    assert manifest.drops == {"in_hold_out: mrpc.tsv": 2, "in_hold_out: squad.json": 2}


def test_a_large_held_text_is_known_by_its_time_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fingerprint does not cover every byte."""
    monkeypatch.setattr("pipeline.sources.fingerprints._WHOLE_BYTES", 100)
    monkeypatch.setattr("pipeline.sources.fingerprints._PLACE_BYTES", 10)
    write_sets(tmp_path / "eval")
    build(hold(tmp_path), say=lambda line: None)
    path = tmp_path / "eval" / "squad.json"
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime + 1))
    with pytest.raises(ValueError, match=r"modified\.\(hold_out\)"):
        build(hold(tmp_path), say=lambda line: None)
