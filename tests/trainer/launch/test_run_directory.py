"""The run directory: what it may hold, what a run may go on with changed, and what a checkpoint must fit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import cast

import pytest
from torch import nn

from checkpoint_faults import flip_bit
from pipeline.settings import ConfigError, load_settings
from pipeline.signals import StopRequest
from pipeline.storage.lease import hold, take
from small_runs import check_output, make_config, run, write_small_set
from trainer.checkpoint import CheckpointError, CheckpointWriter, find_checkpoints
from trainer.config.schema import TrainerConfig
from trainer.engine.engine import Engine
from trainer.launch import preflight
from trainer.launch.run_directory import MAY_CHANGE, write_config
from untrained_run import _StillEngine
from worker_group import WorkerGroup


def test_an_output_that_is_no_run_directory(tmp_path: Path, data: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="is a file; give a folder"):
        check_output(make_config(data, tmp_path / "file" / "run"))
    with pytest.raises(ConfigError, match=r"is not empty and not a run directory \(no config\.yaml\)"):
        check_output(make_config(data, tmp_path))
    (tmp_path / "empty").mkdir()
    assert check_output(make_config(data, tmp_path / "empty")) == []
    assert check_output(make_config(data, tmp_path / "a" / "b")) == []
    assert not (tmp_path / "a").exists()


def test_a_run_whose_folder_was_deleted_under_it_can_be_started_again(tmp_path: Path, data: Path) -> None:
    """Its command may have begun a checkpoint there before it noticed."""
    folder = tmp_path / "run"
    for draft in ("", ".tmp-step-00000115-00000000000000aa"):
        (folder / "checkpoints" / draft).mkdir(parents=True, exist_ok=True)
        (folder / "lease").mkdir(exist_ok=True)
        assert check_output(make_config(data, folder)) == []
    (folder / "checkpoints" / "mine").mkdir()
    with pytest.raises(ConfigError, match="is not empty and not a run directory"):
        check_output(make_config(data, folder))
    (folder / "checkpoints" / "mine").rmdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty and not a run directory"):
        check_output(make_config(data, folder))


@pytest.mark.parametrize("content", [b"", b"\xff", b"[1]", b"logging: 1", b"a: ]"])
def test_a_config_that_no_run_wrote_is_named(tmp_path: Path, data: Path, content: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/config\.yaml(:| line)"):
        check_output(make_config(data, tmp_path))


def test_an_output_that_may_not_be_written(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(ConfigError, match=f"no permission to write in {tmp_path}"):
        check_output(make_config(data, tmp_path / "run"))


def test_an_output_that_cannot_be_written(tmp_path: Path, data: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_config(make_config(data, tmp_path / "file" / "run"))


def test_every_name_above_a_checkpoint_and_its_logs_are_on_disk(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut takes a name away whose folder was not synced after it, and all that lies below."""
    synced: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    def renamed(source: Path, target: Path) -> None:
        replace(source, target)
        synced.append(f"renamed to {target}")

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(os, "replace", renamed)
    output = tmp_path / "runs" / "x"
    config = make_config(data, output)
    with hold(output, timeout_s=60, say=print, stop=StopRequest()):
        assert {str(tmp_path), str(tmp_path / "runs")} <= set(synced)
        assert {str(output), str(output / "lease")} <= set(synced)
        write_config(config)
        assert synced[-2:] == [f"renamed to {output / 'config.yaml'}", str(output)]
        synced.clear()
        (output / "metrics.jsonl").write_text("{}\n")
        writer = CheckpointWriter(output, engine=cast(Engine, _StillEngine(nn.Linear(2, 3))), config=config)
        writer.save(1, plan_state={})
        writer.finish()
        assert {str(output), str(output / "checkpoints"), str(output / "metrics.jsonl")} <= set(synced)
        assert synced.index(str(output / "metrics.jsonl")) < synced.index(str(output / "checkpoints"))


def test_a_run_that_never_began_leaves_its_output_free(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    config = make_config(data, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(ConfigError, match="No space left on device"):
            write_config(config)
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.yaml.0123456789abcdef").write_text("data:")  # killed while it wrote
    take(tmp_path / "run", timeout_s=60, say=print)  # and one that was killed before
    assert check_output(config) == []


@pytest.mark.parametrize(
    ("done", "before", "now", "name", "told"),
    [
        (40, 40, 60, "linear", "6e-05 at step 40 to 0.0008 at step 41"),
        (20, 40, 60, "linear", "0.00126 at step 20 to 0.0016 at step 21"),
        (40, 40, 60, "constant", ""),
        (20, 40, 60, "constant", ""),
        (20, 40, 40, "linear", ""),
        (0, 40, 60, "linear", ""),
        (40, 40, 30, "linear", ""),
    ],
)
def test_what_another_length_does_to_the_rate_is_told(
    tmp_path: Path, data: Path, done: int, before: int, now: int, name: str, told: str
) -> None:
    settings = {"schedule": {"name": name, "warmup_steps": 0}, "optimizer": {"learning_rate": 0.0024}}
    write_config(make_config(data, tmp_path / "run", max_steps=before, **settings))
    if done:
        (tmp_path / "run" / "checkpoints" / f"step-{done:08d}").mkdir(parents=True)
    lines = check_output(make_config(data, tmp_path / "run", max_steps=now, **settings))
    stretched = "max_steps 40 -> 60 stretches the schedule over other steps: the learning rate goes from "
    assert lines[1:] == ([stretched + told] if told else [])


def test_what_may_change_is_told_and_what_may_not_is_refused(tmp_path: Path, data: Path) -> None:
    write_config(make_config(data, tmp_path / "run"))
    changed = make_config(data, tmp_path / "run", max_steps=20, workers=1, checkpoint={"every_steps": 5})
    (line,) = check_output(changed)
    assert line == (
        "changed since this run began: max_steps: 9 -> 20; workers: 2 -> 1; checkpoint.every_steps: 1000 -> 5"
    )
    with pytest.raises(
        ConfigError, match=r"other settings \(seed: 12345 -> 1; optimizer\.learning_rate: 0\.003 -> 0\.1\)"
    ):
        check_output(make_config(data, tmp_path / "run", workers=1, seed=1, optimizer={"learning_rate": 0.1}))
    (tmp_path / "run").rename(tmp_path / "moved")
    assert check_output(make_config(data, tmp_path / "moved")) == []


def test_every_setting_is_known_to_change_or_not() -> None:
    fixed = {"model", "batch", "masking", "seed", "optimizer", "schedule", "deepspeed", "phases", "resume_from"}
    assert set(MAY_CHANGE) | fixed == set(TrainerConfig.model_fields)


def test_the_saved_config_is_the_resolved_one_and_runs_again(tmp_path: Path, data: Path) -> None:
    config = make_config(data, tmp_path / "run")
    assert load_settings(TrainerConfig, file=write_config(config)) == config


def test_a_checkpoint_of_another_plan_is_refused_before_anything_starts(
    worker_group: object, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = worker_group(2)  # type: ignore[operator]
    assert isinstance(group, WorkerGroup)
    config = make_config(data, tmp_path / "run")
    run(group, config, stop_at=1)
    assert not preflight.check(config).done
    write_small_set(tmp_path / "other", seed=1)
    with pytest.raises(
        ConfigError, match=r"is data set .*, but the checkpoint at step 1 was trained on .*; give the run's data"
    ):
        preflight.check(config.model_copy(update={"data": str(tmp_path / "other")}))
    with monkeypatch.context() as patch:
        patch.setattr(preflight, "check_run_directory", lambda config, **_: [])  # which refuses another seed before
        with pytest.raises(ValueError, match="the checkpoint at step 1 belongs to plan"):
            preflight.check(config.model_copy(update={"seed": 1}))
    (folder,) = find_checkpoints(tmp_path / "run").folders
    state = (folder / "state.json").read_text()
    flipped = (
        state.replace(known, changed) for known, changed in (("epoch", "epocj"), ('data_hash": "', 'data_hash": "0'))
    )
    for content in ("{", "{}", "[1]", *flipped):
        (folder / "state.json").write_text(content)
        assert preflight.check(config).lines  # the workers pass over a checkpoint that is not whole, or refuse


def test_a_finished_run_whose_last_checkpoint_is_damaged_is_not_done(
    worker_group: object, tmp_path: Path, data: Path
) -> None:
    group = worker_group(2)  # type: ignore[operator]
    assert isinstance(group, WorkerGroup)
    config = make_config(data, tmp_path / "run", max_steps=2, checkpoint={"every_steps": 1})
    run(group, config)
    assert preflight.check(config).done
    flip_bit(tmp_path / "run/checkpoints/step-00000002/rank-00000-of-00002.safetensors")
    assert not preflight.check(config).done
    again = run(group, config)
    assert again.executed == [2]
    assert preflight.check(config).done
    (bare := tmp_path / "run/checkpoints/step-00000003").mkdir()
    shutil.copy(tmp_path / "run/checkpoints/step-00000002/state.json", bare)  # alone
    assert not preflight.check(config).done
    shutil.rmtree(bare)
    for folder in find_checkpoints(tmp_path / "run").folders:
        flip_bit(folder / "rank-00000-of-00002.safetensors")
    with pytest.raises(CheckpointError, match="none of its 2 checkpoints verifies"):
        preflight.check(config)
