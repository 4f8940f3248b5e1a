"""What a start reads: the run's checkpoints and the data set's manifest once, however many checks use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import storage
from pipeline.settings import dump_yaml
from small_runs import make_config
from trainer.launch import processes
from trainer.launch.failures import WorkerError
from trainer.launch.run_directory import write_config
from trainer.run import main
from trainer.train.link import Outcome


@pytest.fixture
def reads(data: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often "checkpoints" were listed, and the "manifest" of the data set was read."""
    found: Counter[str] = Counter()
    list_folder, read = Path.iterdir, storage.read_bytes

    def listed(folder: Path) -> Iterator[Path]:
        found[folder.name] += folder.name == "checkpoints"
        return list_folder(folder)

    def counted(path: Any) -> bytes:
        found["manifest"] += Path(path) == data / "manifest.json"
        return read(path)

    monkeypatch.setattr(Path, "iterdir", listed)
    monkeypatch.setattr(storage, "read_bytes", counted)
    return found


@pytest.fixture
def words(data: Path, tmp_path: Path) -> list[str]:
    """The command for a run of two phases over one set that has a checkpoint."""
    phases = ({"max_steps": 4}, {"max_steps": 5})
    config = make_config(data, tmp_path / "run", max_steps=9, phases=phases, max_restarts=1)
    write_config(config)
    (tmp_path / "run" / "checkpoints" / "step-00000004").mkdir(parents=True)
    (tmp_path / "c.yaml").write_text(dump_yaml(config))
    return ["--config", str(tmp_path / "c.yaml")]


def test_a_start_lists_checkpoints_once_and_opens_a_set_once(
    words: list[str], reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once more before each further attempt, and for the results: they have changed by then."""
    at_attempts: list[tuple[int, int]] = []

    def attempt(*_: Any, **__: Any) -> Outcome:
        at_attempts.append((reads["checkpoints"], reads["manifest"]))
        if len(at_attempts) == 1:
            raise WorkerError("worker 0 was lost")
        return Outcome(first_step=4, last_step=9, finished=True)

    monkeypatch.setattr(processes, "run_in_processes", attempt)
    assert main(words) == 0
    assert at_attempts == [(1, 1), (2, 1)]
    assert reads["checkpoints"] == 3


@pytest.mark.parametrize("from_run", [False, True])
def test_a_dry_run_reads_no_more_than_a_start(
    words: list[str], reads: Counter[str], tmp_path: Path, from_run: bool
) -> None:
    config = ["--config", str(tmp_path / "run" / "config.yaml")] if from_run else words
    assert main([*config, "--dry-run"]) == 0
    assert (reads["checkpoints"], reads["manifest"]) == (1, 1)
