"""Builds that were stopped and go on: fixtures of a small one, and what a start of it does.

A module that uses them imports base, folder and stopped, and lists them in __all__.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from corpora import make_documents
from pipeline.dataset.manifest import open_data_set
from pipeline.run import main
from small_builds import write_build_of_files

SPLITS = 4


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """c.yaml for two shards of training documents and one held out, from four files; whole/ is the set of it, and
    stopped/ what a build leaves that fails when all splits and shards are finished."""
    folder = tmp_path_factory.mktemp("resume")
    write_build_of_files(folder, make_documents(200), files=SPLITS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["--config", "c.yaml", "output=whole"]) == 0
        stop_before_publishing(patch)
    (folder / "out").rename(folder / "stopped")
    shutil.copytree(folder / "text", folder / "pristine")
    return folder


@pytest.fixture
def folder(base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, without an output."""
    monkeypatch.chdir(base)
    for name in ("out", "text"):
        shutil.rmtree(base / name, ignore_errors=True)
    shutil.copytree(base / "pristine", base / "text")
    return base


@pytest.fixture
def stopped(folder: Path) -> Path:
    """The same, with an output of which only the publishing is missing."""
    shutil.copytree(folder / "stopped", folder / "out")
    return folder


def check_same(*words: str) -> None:
    """out/ holds the files of an uninterrupted build, byte for byte, and nothing else."""
    if words:
        shutil.rmtree("other", ignore_errors=True)
        assert main(["--config", "c.yaml", "output=other", *words]) == 0
    root = "other" if words else "whole"
    found, whole = open_data_set("out", full=True), open_data_set(root, full=True)
    assert found == whole
    assert [shard.sha256 for shard in found.shards] == [shard.sha256 for shard in whole.shards]
    listed = [sorted(path.relative_to(folder) for path in Path(folder).rglob("*")) for folder in ("out", root)]
    assert listed[0] == listed[1]


def stop_before_publishing(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """All splits and shards are finished when the disk is full."""

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pipeline.build.recipe.write_set", full_disk)
        assert main(["--config", "c.yaml", *words]) == 2


def go_on(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """Run the same command again; the lines that it prints."""
    capsys.readouterr()
    assert main(["--config", "c.yaml", *words]) == 0
    return capsys.readouterr().out.splitlines()


def refuse(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The error of a start that is refused, which changes nothing."""
    before = {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["--config", "c.yaml", *words]) == 2
    assert {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()} == before
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.search("contains (an unfinished build|a data set built) with different settings or input: ", error)
    assert re.search("or delete the folder to (start over|build it again)", error)
    return error
