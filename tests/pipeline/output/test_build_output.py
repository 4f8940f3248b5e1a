"""The output folder of a build: recognised, refused, locked, swept, replaced."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from pipeline.build import recipe
from pipeline.dataset.manifest import MANIFEST_NAME
from pipeline.run import main
from pipeline.storage import hold, replaced_by
from pipeline.storage.lease import take
from small_builds import refused, write_build


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_build(tmp_path)


def test_what_a_build_killed_at_its_very_end_left_is_swept(folder: Path) -> None:
    words = ["--config", str(folder / "c.yaml"), f"sources.0.path={folder}/corpus.txt"]
    words += [f"vocabulary.path={folder}/vocab.txt", f"output={folder}/out"]
    assert main(words) == 0
    names = sorted(path.name for path in (folder / "out").iterdir())
    for left in (["_tmp/spills", "_build.json"], ["_build.json"]):
        for name in left:
            path = folder / "out" / name
            path.mkdir(parents=True) if "/" in name else path.write_text("{}")
        assert main(words) == 0
        assert sorted(path.name for path in (folder / "out").iterdir()) == names


def test_a_finished_build_is_recognised(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", str(folder / "c.yaml"), f"sources.0.path={folder}/corpus.txt"]
    words += [f"vocabulary.path={folder}/vocab.txt", f"output={folder}/out"]
    assert main(words) == 0
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*")}
    capsys.readouterr()
    assert main([*words, "workers=3"]) == 0
    assert "already complete" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*")} == before
    # moved input is the same input
    os.rename(folder / "corpus.txt", folder / "moved.txt")
    assert main([*words, f"sources.0.path={folder}/moved.txt"]) == 0
    for change, difference in (
        ("seed=7", "config.seed: 12345 -> 7"),
        ("masks_per_pair=3", "config.masks_per_pair: 1 -> 3"),
    ):
        assert main([*words, f"sources.0.path={folder}/moved.txt", change]) == 2
        assert difference in capsys.readouterr().err
    with open(folder / "moved.txt", "a") as stream:
        stream.write("\nda di\n")
    assert main([*words, f"sources.0.path={folder}/moved.txt"]) == 2
    assert "inputs.text-en: " in capsys.readouterr().err
    (folder / "out" / "data" / "train-00000-of-00001.parquet").write_bytes(b"PAR1")
    assert main([*words, f"sources.0.path={folder}/moved.txt"]) == 2
    assert "train-00000-of-00001.parquet" in capsys.readouterr().err


def test_all_of_a_set_is_on_the_disk_before_its_manifest(folder: Path, disk_events: list[str]) -> None:
    out = folder / "out"
    words = ["--config", str(folder / "c.yaml"), f"sources.0.path={folder}/corpus.txt"]
    assert main([*words, f"vocabulary.path={folder}/vocab.txt", f"output={out}"]) == 0
    manifest = f"name {out / MANIFEST_NAME}"
    before, after = disk_events[: disk_events.index(manifest)], disk_events[disk_events.index(manifest) + 1 :]
    found = [path.relative_to(out) for path in out.rglob("*") if path.name != MANIFEST_NAME]
    assert {"README.md", "token_counts.parquet", "tokenizer", "data"} <= {str(path) for path in found}
    assert {f"sync {out / '_tmp' / path}" for path in found} <= set(before)
    assert before[-2] == f"sync {out}"
    assert replaced_by(before[-1].rpartition("/")[2]) == MANIFEST_NAME
    assert before[-1].startswith(f"sync {out}/.")
    assert after == [f"sync {out}"]


def test_another_vocabulary_is_another_build(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(["--config", "c.yaml"]) == 0
    with open(folder / "vocab.txt", "a") as stream:
        stream.write("dada\n")
    assert "vocabulary_hash: " in refused(folder, capsys=capsys)


def test_foreign_and_unusable_outputs_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A non-empty output is never written into (WriteToParquet (measured))."""
    monkeypatch.chdir(folder)
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.tex").write_text("x")
    error = refused(folder, "output=mine", capsys=capsys)
    assert "thesis.tex" in error
    assert "choose an empty or new folder" in error
    (folder / "mine" / "_build.json").write_text("{}")
    assert "thesis.tex" in refused(folder, "output=mine", capsys=capsys)
    assert "cannot be created or opened" in refused(folder, "output=corpus.txt", capsys=capsys)
    assert "cannot be created or opened" in refused(folder, "output=corpus.txt/x", capsys=capsys)


def test_an_output_that_cannot_be_written_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tests may run as root, whom no permission stops: writing itself is made to fail."""
    monkeypatch.chdir(folder)

    def read_only(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pipeline.output.folder.OutputFolder._write_mark", read_only)
    assert "cannot be written (Permission denied)" in refused(folder, capsys=capsys)


def test_two_builds_do_not_write_into_one_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (folder / "out").mkdir()
    with hold(folder / "out" / "_tmp", timeout_s=60, say=print):
        who = f"another command works there (process {os.getpid()} on "
        assert f"error: output={folder / 'out'}: {who}" in refused(folder, capsys=capsys)
    assert main(["--config", "c.yaml"]) == 0
    assert "lease" not in {path.name for path in (folder / "out").rglob("*")}


def test_a_folder_of_that_name_without_a_mark_is_not_ours(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for a lease alone, of a build that was killed before it wrote its mark."""
    monkeypatch.chdir(folder)
    (folder / "out" / "_tmp").mkdir(parents=True)
    (folder / "out" / "_tmp" / "thesis.tex").write_text("x")
    assert "contains files that no build has written (_tmp)" in refused(folder, capsys=capsys)
    (folder / "out" / "_tmp" / "thesis.tex").rename(folder / "thesis.tex")
    dead = take(folder / "out" / "_tmp", timeout_s=60, say=print)
    (claim,) = (folder / "out" / "_tmp" / "lease").glob("*.json")
    claim.write_text(claim.read_text().replace(f'"started": {dead.started}', '"started": 1'))
    assert main(["--config", "c.yaml"]) == 0
    assert not (folder / "out" / "_tmp").exists()


def test_a_folder_that_cannot_be_locked_is_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(folder)

    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert main(["--config", "c.yaml"]) == 0
    assert "cannot be locked" in caplog.text


def test_what_a_killed_build_left_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rerun leaves no old shards beside new ones (WriteToParquet (measured); streaming#737)."""
    monkeypatch.chdir(folder)
    (folder / "out" / "_tmp" / "spills").mkdir(parents=True)
    (folder / "out" / "_tmp" / "spills" / "x.arrow").write_bytes(b"half")
    (folder / "out" / "data").mkdir()
    (folder / "out" / "data" / "train-00000-of-00009.parquet").write_bytes(b"half")
    (folder / "out" / "_build.json").write_text("{}")
    assert main(["--config", "c.yaml"]) == 0
    assert sorted(path.name for path in (folder / "out" / "data").iterdir()) == ["train-00000-of-00001.parquet"]
    assert not (folder / "out" / "_tmp").exists()
    assert not (folder / "out" / "_build.json").exists()


def test_interruption_cleans_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recipe, "run_graph", interrupted)
    assert main(["--config", "c.yaml"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"
    assert not (folder / "out").exists()
