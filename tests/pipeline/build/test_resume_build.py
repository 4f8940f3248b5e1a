"""Builds that were stopped: what is finished is verified and kept, nothing is half visible, the bytes are the same."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import killed_build
from pipeline.build import inputs
from pipeline.engines.local import WorkerError
from pipeline.output.folder import OutputFolder
from pipeline.run import main
from pipeline.runtime.failures import choose_kept
from pipeline.shuffle.spill import SpillWriter
from pipeline.sources import fingerprints
from pipeline.sources.fingerprints import fingerprint_inputs
from pipeline.units import count_of
from stopped_builds import SPLITS, base, check_same, folder, go_on, refuse, stop_before_publishing, stopped

__all__ = ["base", "folder", "stopped"]
KILLED = Path(killed_build.__file__)


def test_a_build_killed_at_every_stage_ends_with_the_same_bytes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One output, killed while it reads, before it plans, while it writes shards, and while it publishes."""
    points = [
        ("pipeline.shuffle.spill", "SpillWriter._flush", 3, 2, 0),
        ("pipeline.build.graph", "plan_shards", 1, SPLITS, 0),
        ("pipeline.build.write_shard", "_commit", 2, SPLITS, 1),
        ("pipeline.build.recipe", "write_manifest", 1, SPLITS, 3),
    ]
    before = (0, 0)
    for module, name, count, splits, shards in points:
        done = subprocess.run(
            [sys.executable, str(KILLED), module, name, str(count), "--config", "c.yaml"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        records = [path.name for path in (folder / "out/_tmp/finished").iterdir()]
        assert sum(name.startswith("split-") for name in records) == splits
        assert sum(name.startswith("shard-") for name in records) == shards
        assert not (folder / "out" / "manifest.json").exists()
        assert (folder / "out" / "data").exists() == (shards == 3), "data/ appears whole, when all is ready"
        resuming = f"resuming: found records of {before[0]} of {SPLITS} splits and of {count_of(before[1], 'shard')}"
        assert (resuming in done.stdout) == (before != (0, 0))
        before = (splits, shards)
    lines = go_on(capsys)
    assert f"resumed: {SPLITS} of {SPLITS} splits and 3 of 3 shards kept" in lines
    check_same()


def test_the_workers_of_a_killed_build_are_waited_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.run", "--config", "c.yaml", "workers=2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not list((folder / "out").glob("_tmp/finished/split-*.json")):
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert any(line.startswith("resumed: ") for line in go_on(capsys))
    check_same()


def test_a_folder_that_workers_still_hold_is_refused(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipeline.output.folder._WAIT_S", 0.0)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pipeline.engines.beam_worker import hold_folder; hold_folder(sys.argv[1]);"
            "print('held', flush=True); sys.stdin.read()",
            "out/_tmp",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert main(["--config", "c.yaml"]) == 2
    assert "worker processes of an earlier build still write there" in capsys.readouterr().err
    holder.communicate()
    assert main(["--config", "c.yaml"]) == 0


def test_a_failed_build_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk that is full in the third split: two are kept, of the third nothing is left."""
    flush, calls = SpillWriter._flush, []

    def full_disk(self: SpillWriter) -> None:
        calls.append(1)
        flush(self)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(SpillWriter, "_flush", full_disk)
        assert main(["--config", "c.yaml"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "No space left on device" in error
    assert "free space there and run the same command again" in error
    assert len(list((folder / "out/_tmp/spills").iterdir())) == 2
    assert "resumed: 2 of 4 splits and 0 of 3 shards kept" in go_on(capsys)
    check_same()


def test_other_settings_are_refused(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything that shapes the data; what does not, such as limits, may change."""
    folder = stopped
    assert "config.seed: 12345 -> 7;" in refuse(capsys, "seed=7")
    assert "config.masks_per_pair: 1 -> 2;" in refuse(capsys, "masks_per_pair=2")
    with monkeypatch.context() as patch:
        patch.setattr(inputs, "hash_code", lambda: "another")
        assert 'code: "' in refuse(capsys)
    with monkeypatch.context() as patch:
        patch.setattr(inputs, "library_versions", lambda config: {"numpy": "0.1"})
        assert '-> "0.1"' in refuse(capsys)
    vocabulary = (folder / "vocab.txt").read_text()
    (folder / "vocab.txt").write_text(vocabulary + "dada\n")
    assert "vocabulary_hash: " in refuse(capsys)
    (folder / "vocab.txt").write_text(vocabulary)
    text = (folder / "text" / "0.txt").read_bytes()
    (folder / "text" / "0.txt").write_bytes(text + b"\nda di\n")
    assert "inputs.text-en: " in refuse(capsys)
    (folder / "text" / "0.txt").write_bytes(text)
    os.utime(folder / "text" / "0.txt")  # hashed whole: the same
    lines = go_on(capsys, "not_next_bounds=[0,1]")
    assert "resumed: 4 of 4 splits and 3 of 3 shards kept" in lines
    check_same()


def test_a_large_file_must_also_be_of_the_same_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its hash does not look at every byte."""
    monkeypatch.setattr(fingerprints, "_WHOLE_BYTES", 1)
    monkeypatch.setattr(fingerprints, "_PLACE_BYTES", 64)
    stop_before_publishing(monkeypatch)
    path = folder / "text" / "2.txt"
    before, sampled = path.stat(), fingerprint_inputs([str(path)])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 5_000_000_000))
    assert "modified.text-en." in refuse(capsys)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "resumed: 4 of 4 splits and 3 of 3 shards kept" in go_on(capsys)
    text = path.read_bytes()
    assert text[100:102].islower()
    path.write_bytes(text[:100] + text[100:102].upper() + text[102:])
    assert fingerprint_inputs([str(path)]) == sampled
    error = refuse(capsys)
    given = re.search(r'modified\.text-en\.\d: "([^"]+ UTC)" -> "', error)
    assert given, error
    assert "set that back (touch -d 'TIME' FILE), else choose another output" in error
    path.write_bytes(text)
    subprocess.run(["touch", "-d", given.group(1), path], check=True)
    path.rename(path.with_name("moved.txt"))
    assert go_on(capsys) == [f"{folder}/out: already complete, nothing to do"]


def test_finished_pieces_outlive_a_start_that_cannot_write(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pipeline.output.folder.OutputFolder._write_mark", full_disk)
        assert main(["--config", "c.yaml"]) == 2
    assert "cannot be written (No space left on device)" in capsys.readouterr().err
    assert "resumed: 4 of 4 splits and 3 of 3 shards kept" in go_on(capsys)


def test_settings_that_are_to_blame_leave_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command must change, so that nothing of it can be used."""
    assert main(["--config", "c.yaml", "validation_fraction=0.0001"]) == 2
    assert "the smallest value that works here" in capsys.readouterr().err
    assert not (folder / "out").exists()


@pytest.mark.parametrize(("found", "kept"), [("same", "hash of the vocabulary"), ("mended", None)])
def test_a_vocabulary_of_input_that_was_mended_is_trained_anew(folder: Path, found: str, kept: str | None) -> None:
    identity: dict[str, object] = {"config": {}, "inputs": "same", "modified": {}}
    with OutputFolder("out2", identity=identity) as output:
        (Path(output.folder("finished")) / "split-1.json").write_text("{}")
        output.note_vocabulary("hash of the vocabulary")
        error = WorkerError("cut.bz2", details="", keeps="unchanged_input")
        output._clean_up(choose_kept(error))
    with OutputFolder("out2", identity={**identity, "inputs": found}) as output:
        assert output.resumes
        assert output.vocabulary_hash == kept
    shutil.rmtree("out2")


def test_a_build_killed_while_it_wrote_its_first_mark_is_ours(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "._build.json.0123456789abcdef").write_text("{")
    with OutputFolder("out", identity={}) as output:
        assert not output.resumes
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["_build.json", "_tmp"]


def test_a_vocabulary_trained_for_the_build_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["vocabulary={size: 150}"]
    stop_before_publishing(monkeypatch, *words)
    path = folder / "out/_tmp/vocabulary/vocab.txt"
    tokens = path.read_text().splitlines()
    path.write_text("\n".join([*tokens[:-2], tokens[-1], tokens[-2]]) + "\n")
    lines = go_on(capsys, *words)
    assert f"damaged, so rebuilt: {path}: changed since it was written" in lines
    assert "resumed: 4 of 4 splits and 3 of 3 shards kept" in lines
    shutil.rmtree(folder / "out")
    stop_before_publishing(monkeypatch, *words)
    lines = go_on(capsys, *words)
    assert not any(line.startswith("training a vocabulary") for line in lines)
    check_same(*words)


def test_near_duplicates_and_rejects_survive_a_stop(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files of signatures and of what was left out are pieces too."""
    words = ["cleaning={min_words: 20, near_duplicates: {}, keep_rejects: rejects}"]
    stop_before_publishing(monkeypatch, *words)
    assert "resumed: 4 of 4 splits and 3 of 3 shards kept" in go_on(capsys, *words)
    rejects = (folder / "rejects" / "rejects.jsonl").read_bytes()
    check_same(*words)
    assert (folder / "rejects" / "rejects.jsonl").read_bytes() == rejects
    assert rejects
