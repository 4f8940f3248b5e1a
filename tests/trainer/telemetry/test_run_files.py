"""Logs and trackers' files of a run on an object store: sent, brought to another host, in a folder that is ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from object_store import bucket, s3_server
from pipeline import storage
from pipeline.settings import ConfigError
from pipeline.storage import files as stored
from stored_checkpoints import fail_times, make_writer
from trainer.checkpoint import writer
from trainer.telemetry import log_files
from trainer.telemetry.log_files import RunFiles

__all__ = ["bucket", "s3_server"]


@pytest.fixture
def run(bucket: str) -> str:
    return f"{bucket}/runs/x"


def test_the_last_logs_are_sent_as_patiently(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = RunFiles(run, working_folder=str(tmp_path))
    files.fetch_logs()
    (files.folder / "metrics.jsonl").write_text("1")
    monkeypatch.setattr(writer, "RETRY_S", 0.01)
    monkeypatch.setattr(storage, "store_file", fail_times(2, storage.store_file))
    make_writer(run, files=files).send_logs()
    assert storage.read_bytes(f"{run}/metrics.jsonl") == b"1"
    assert caplog.text.count("the end of the run waits for the store: s3://b/x: the store was too busy") == 2


def test_what_trackers_keep_is_sent_and_mlflow_goes_on_on_another_host(run: str, tmp_path: Path) -> None:
    first, second = (RunFiles(run, working_folder=str(tmp_path / name)) for name in "ab")
    kept = ("mlflow/1/m/metrics/loss", "mlflow_run.txt")
    for name in (*kept, "wandb/offline-1/run.wandb", "tensorboard/events.1"):
        (first.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (first.folder / name).write_text(name)
    first.make_durable()
    assert {file.name for file in storage.list_files(run)} >= {
        kept[0],
        "wandb/offline-1/run.wandb",
        "tensorboard/events.1",
    }
    (second.folder / "mlflow").mkdir(parents=True)
    (second.folder / "mlflow" / "of an earlier start").touch()
    second.fetch_logs()
    brought = {path.relative_to(second.folder).as_posix() for path in second.folder.rglob("*") if path.is_file()}
    assert brought == set(kept)
    assert (second.folder / kept[0]).read_text() == kept[0]


def test_a_tracker_may_remove_its_files_while_they_are_sent(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RunFiles(run, working_folder=str(tmp_path))
    gone, kept = (files.folder / "tensorboard" / name for name in ("a", "b"))
    kept.parent.mkdir(parents=True)
    kept.write_text("b")
    monkeypatch.setattr(files, "_tracker_files", lambda: iter([gone, kept]))
    files.make_durable()
    assert {file.name for file in storage.list_files(run)} == {"tensorboard/b"}


def test_the_folder_for_logs_is_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host that others use, who might have put a link to a file of ours there."""
    monkeypatch.setattr(log_files.tempfile, "gettempdir", lambda: str(tmp_path))
    RunFiles("s3://b/run")._make_folder()
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(log_files.os, "getuid", lambda: folder.stat().st_uid + 1)
    (tmp_path / f"cloze-{folder.stat().st_uid + 1}").mkdir()
    with pytest.raises(ConfigError, match=r"is another user's; give working_folder, or set TMPDIR"):
        RunFiles("s3://b/run")._make_folder()


def test_only_what_changed_is_sent(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RunFiles(f"{bucket}/run", working_folder=str(tmp_path))
    files.fetch_logs()
    sent: list[str] = []
    write = storage.write_bytes
    for module in (storage, stored):
        noted = lambda path, data: (sent.append(Path(path).name), write(path, data))  # noqa: E731
        monkeypatch.setattr(module, "write_bytes", noted)
    (files.folder / "tensorboard").mkdir()
    for name in ("metrics.jsonl", "evaluations.jsonl", "tensorboard/events", "notes.txt"):
        (files.folder / name).write_text("1\n")
    files.make_durable()
    assert sorted(sent) == ["evaluations.jsonl", "events", "metrics.jsonl"]
    (files.folder / "metrics.jsonl").write_text("1\n2\n")
    files.make_durable()
    assert sent[3:] == ["metrics.jsonl"]
    on_disk = RunFiles(tmp_path / "run")
    assert (on_disk.folder, on_disk.is_local_copy) == (tmp_path / "run", False)
    on_disk.fetch_logs()
    on_disk.make_durable()
    assert not (tmp_path / "run").exists()
