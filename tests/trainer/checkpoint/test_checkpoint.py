"""A checkpoint is whole or absent, continues bit for bit, and fits any world size, stage and precision."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toy_training
from checkpoint_faults import fail_to_write, flip_bit, listen, resume_nothing
from toy_training import gather_state, make_config, make_engine, save_checkpoint, train
from trainer.checkpoint import CheckpointWriter, commit, load
from trainer.checkpoint import writer as checkpoint_writer
from trainer.checkpoint.format import read_json, read_manifest, step_of, write_json, write_manifest
from trainer.checkpoint.load import CheckpointError, find_checkpoints, newest_verified, read_state, read_weights
from trainer.config.schema import TrainerConfig
from trainer.engine.deepspeed_setup import INITIAL_LOSS_SCALE
from trainer.engine.engine import Engine, LossScale
from worker_group import WorkerError, WorkerGroup

Groups = Callable[[int], WorkerGroup]
Curve = list[tuple[float, float]]
PLAN = {"plan_hash": "abc", "epoch": 1, "cursors": [3, 1, 4, 1]}


def train_and_save(rank: int, run: str, stage: int, precision: str, steps: list[int], last: int) -> tuple[Curve, Any]:
    """Train to `last`, saving after `steps`; the curve, and the whole state at the last save."""
    config = make_config(zero_stage=stage, precision=precision)
    engine = make_engine(config)
    curve: Curve = []
    state = None
    writer = CheckpointWriter(run, engine=engine, config=config)
    for step in range(1, last + 1):
        curve += train(engine, config, first=step, last=step)
        if step in steps:
            state = gather_state(engine)
            writer.save(step, plan_state=PLAN)
    writer.finish()
    engine.close()
    return curve, state


def resume_and_train(rank: int, run: str, stage: int, precision: str, last: int) -> tuple[int, Any, Curve]:
    """(step resumed at, whole state there, curve from there to `last`), begun from other weights."""
    config = make_config(zero_stage=stage, precision=precision)
    engine = make_engine(config, seed=99)
    found = load.resume(load.find_together(run), engine=engine)
    assert found is not None
    assert found.plan_state == PLAN
    state = gather_state(engine)
    curve = train(engine, config, first=found.step + 1, last=last)
    engine.close()
    return found.step, state, curve


LAYOUTS = [(0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (1, "bf16"), (2, "bf16"), (3, "bf16")]


@pytest.mark.parametrize(("world", "layouts"), [(1, LAYOUTS[::3]), (2, LAYOUTS)])
def test_resume_is_bit_exact(worker_group: Groups, tmp_path: Path, world: int, layouts: list[tuple[int, str]]) -> None:
    group = worker_group(world)
    for stage, precision in layouts:
        run = str(tmp_path / f"{stage}-{precision}")
        curve, saved = group.run(train_and_save, run, stage, precision, [3, 5], 8)[0]
        step, state, resumed = group.run(resume_and_train, run, stage, precision, 8)[0]
        assert step == 5
        assert_same_state(state, saved)
        assert resumed == curve[5:], (stage, precision)


def test_any_world_size_stage_and_precision(worker_group: Groups, tmp_path: Path) -> None:
    """Written by two ranks of each kind, read by one and by three of another: the same fp32 state, the same curve.

    DeepSpeed#2898, #3810, #6441, #5405: another number of GPUs refuses to load.
    """
    for number, (stage, precision) in enumerate(LAYOUTS):
        run = str(tmp_path / str(number))
        curve, saved = worker_group(2).run(train_and_save, run, stage, precision, [4], 7)[0]
        for world, (other_stage, other_precision) in ((1, LAYOUTS[number - 1]), (3, LAYOUTS[number - 3])):
            step, state, resumed = worker_group(world).run(resume_and_train, run, other_stage, other_precision, 7)[0]
            assert step == 4
            assert_same_state(state, saved)
            tolerance = 1e-5 if precision == other_precision == "fp32" else 0.03
            np.testing.assert_allclose(resumed, curve[4:], rtol=tolerance)


def save_at_scale(rank: int, run: str, precision: str, scale: float) -> None:
    config = make_config(zero_stage=1, precision=precision)
    engine = make_scaled_engine(config)
    engine.loss_scale = LossScale(scale, finite_steps=3)
    save_checkpoint(run, step=1, engine=engine, plan_state=PLAN, config=config)
    engine.close()


def resume_scale(rank: int, run: str) -> tuple[LossScale, float]:
    """Ours, and the one that DeepSpeed works with."""
    engine = make_scaled_engine(make_config(zero_stage=1, precision="fp16"))
    load.resume(load.find_together(run), engine=engine)
    scales = engine.loss_scale, float(engine._engine.optimizer.loss_scaler.cur_scale)
    engine.close()
    return scales


def make_scaled_engine(config: TrainerConfig) -> Engine:
    """Also in fp16, which the CPU's accelerator says it cannot."""
    from deepspeed.accelerator import get_accelerator

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)
        return make_engine(config)


@pytest.mark.parametrize(
    ("precision", "scale", "resumed"),
    [("fp16", 256.0, 256.0), ("fp16", 1.0, 1.0), ("bf16", 1.0, INITIAL_LOSS_SCALE), ("fp32", 1.0, INITIAL_LOSS_SCALE)],
)
def test_the_loss_scale_of_fp16_is_resumed_also_at_its_least(
    worker_group: Groups, tmp_path: Path, precision: str, scale: float, resumed: float
) -> None:
    """A checkpoint of another precision has none: fp16 begins with its first."""
    group = worker_group(1)
    group.run(save_at_scale, str(tmp_path), precision, scale)
    ours, deepspeeds = group.run(resume_scale, str(tmp_path))[0]
    assert ours == (LossScale(scale, finite_steps=3) if precision == "fp16" else LossScale(INITIAL_LOSS_SCALE))
    assert deepspeeds == resumed


def assert_same_state(state: dict[str, dict[str, torch.Tensor]], expected: dict[str, dict[str, torch.Tensor]]) -> None:
    assert state.keys() == expected.keys() == {"parameter", "exp_avg", "exp_avg_sq"}
    for kind, tensors in expected.items():
        assert state[kind].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(state[kind][name], tensor), (kind, name)


@pytest.fixture(scope="module")
def saved_run(worker_group: Groups, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run of two ranks with checkpoints after steps 1, 2 and 3, and its state after step 3."""
    run = tmp_path_factory.mktemp("run")
    _, state = worker_group(2).run(train_and_save, str(run), 1, "fp32", [1, 2, 3], 3)[0]
    return run, state


@pytest.fixture
def run_dir(saved_run: tuple[Path, Any], tmp_path: Path) -> Path:
    """A copy of the run, to be damaged."""
    return Path(shutil.copytree(saved_run[0], tmp_path / "run"))


def test_weights_are_read_without_deepspeed(saved_run: tuple[Path, Any]) -> None:
    run, state = saved_run
    weights = read_weights(run / "checkpoints" / "step-00000003")
    assert weights.keys() == state["parameter"].keys()
    for name, weight in weights.items():
        assert torch.equal(weight, state["parameter"][name])


def test_state_holds_all_that_is_no_tensor(saved_run: tuple[Path, Any]) -> None:
    state = read_state(saved_run[0] / "checkpoints" / "step-00000003")
    assert (state.step, state.steps_taken, state.world_size) == (3, 3, 2)
    assert state.plan_state == PLAN
    assert state.config == make_config(zero_stage=1).model_dump(mode="json")
    assert state.versions["torch"] == torch.__version__


def test_a_run_without_checkpoints_is_new(worker_group: Groups, tmp_path: Path) -> None:
    assert newest_verified(find_checkpoints(tmp_path)) is None
    assert worker_group(2).run(resume_nothing, str(tmp_path)) == [None, None]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def point_out(folder: Path) -> None:
    """Make the manifest, with a right hash of its own, list a file outside."""
    entries = read_manifest(folder)
    entries["../../secret"] = next(iter(entries.values()))
    write_manifest(folder, step=3, files=entries)


def link_out(folder: Path) -> None:
    part = folder / "rank-00000-of-00002.safetensors"
    part.rename(folder.parent.parent / "elsewhere")
    part.symlink_to(folder.parent.parent / "elsewhere")


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "bit": (lambda f: flip_bit(f / "rank-00001-of-00002.safetensors"), "rank-00001-of-00002.safetensors: sha256 is"),
    "torn": (lambda f: os.truncate(f / "rank-00000-of-00002.safetensors", 999), "has 999 bytes, but manifest.json"),
    "part": (lambda f: (f / "rank-00001-of-00002.safetensors").unlink(), "is missing .listed in manifest.json"),
    "state": (lambda f: (f / "state.json").unlink(), "state.json: is missing"),
    "state bit": (lambda f: flip_bit(f / "state.json"), "state.json: sha256 is"),
    "manifest": (lambda f: (f / "manifest.json").unlink(), "manifest.json: is missing"),
    "manifest torn": (lambda f: os.truncate(f / "manifest.json", 100), "manifest.json: is not valid JSON"),
    "manifest altered": (lambda f: edit(f / "manifest.json", '"bytes": ', '"bytes": 1'), "was altered after"),
    "format": (lambda f: edit(f / "manifest.json", "cloze-checkpoint-1", "cloze-checkpoint-9"), "format is"),
    "step": (lambda f: edit(f / "manifest.json", '"step": 3', '"step": 2'), "was altered after"),
    "stale": (
        lambda f: (f / "manifest.json").write_bytes((f.parent / "step-00000002/manifest.json").read_bytes()),
        "is of step 2, but its folder is called step-00000003",
    ),
    "outside": (point_out, "'../../secret' points outside the checkpoint"),
    "link": (link_out, "points outside the checkpoint"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_and_the_one_before_is_taken(
    run_dir: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """ray#33369; gpt-neox#750; DeepSpeed#2319: a missing part is a warning and the loss jumps."""
    spoil, message = DAMAGE[damage]
    folder = run_dir / "checkpoints" / "step-00000003"
    spoil(folder)
    with pytest.raises(CheckpointError, match=message):
        read_weights(folder)
    assert newest_verified(find_checkpoints(run_dir)) == run_dir / "checkpoints" / "step-00000002"
    assert "checkpoint step-00000003 is skipped" in caplog.text


def test_damaged_checkpoints_never_mean_a_new_start(worker_group: Groups, run_dir: Path) -> None:
    """KempnerForge#102: without `latest` a run starts at step 0 with a warning."""
    for folder in find_checkpoints(run_dir).folders:
        flip_bit(folder / "rank-00000-of-00002.safetensors")
    with pytest.raises(CheckpointError, match="none of its 3 checkpoints verifies"):
        newest_verified(find_checkpoints(run_dir))
    answers = worker_group(2).run(catch, resume_nothing, str(run_dir))
    assert "none of its 3 checkpoints verifies" in answers[0]
    assert answers[1] == answers[0]  # whichever rank the user hears first


def catch(rank: int, function: Callable[..., Any], *args: Any) -> str:
    """The message of the CheckpointError that every rank must get."""
    with pytest.raises(CheckpointError) as caught:
        function(rank, *args)
    return str(caught.value)


def save_with_trouble(rank: int, run: str, trouble: str) -> str | None:
    """Save step 4 while `trouble` befalls; the CheckpointError's message."""
    config = make_config(zero_stage=1, collective_timeout_s=5 if "stuck" in trouble else 120)
    engine = make_engine(config)
    try:
        with pytest.MonkeyPatch.context() as patch:
            TROUBLE[trouble](patch, rank)
            save_checkpoint(run, step=4, engine=engine, plan_state=PLAN, config=config)
    except CheckpointError as error:
        return str(error)
    finally:
        engine.close()
    return None


def part_fails_on(victim: int) -> Callable[[pytest.MonkeyPatch, int], None]:
    def arrange(patch: pytest.MonkeyPatch, rank: int) -> None:
        if rank == victim:
            patch.setattr(checkpoint_writer, "write_part", fail_to_write)

    return arrange


def commit_fails(patch: pytest.MonkeyPatch, rank: int) -> None:
    patch.setattr(commit, "write_manifest", fail_to_write)


def folder_fails(patch: pytest.MonkeyPatch, rank: int) -> None:
    patch.setattr(Path, "mkdir", fail_to_write)


def rank_is_stuck(victim: int) -> Callable[[pytest.MonkeyPatch, int], None]:
    def arrange(patch: pytest.MonkeyPatch, rank: int) -> None:
        if rank == victim:
            patch.setattr(checkpoint_writer._Save, "write", lambda save: None)

    return arrange


TROUBLE: dict[str, Callable[[pytest.MonkeyPatch, int], None]] = {
    "rank 0 fails": part_fails_on(0),
    "rank 1 fails": part_fails_on(1),
    "commit fails": commit_fails,
    "folder fails": folder_fails,
    "rank 0 stuck": rank_is_stuck(0),
    "rank 1 stuck": rank_is_stuck(1),
}


@pytest.mark.parametrize(
    ("trouble", "messages"),
    [
        ("rank 0 fails", ["rank 0 could not write .* No space left", "rank 0 gave up .*tmp-step-00000004"]),
        (
            "rank 1 fails",
            ["rank 1 could not write its part .* No space left", "rank 1 could not write .* No space left"],
        ),
        ("commit fails", ["rank 0 could not write .* No space left", "rank 0 gave up"]),
        ("folder fails", ["rank 0 could not create a folder in .* No space left", "rank 0 could not create a folder"]),
        ("rank 0 stuck", [None, "rank 0 has not committed in time"]),
        ("rank 1 stuck", [r"ranks \[1\] have not written their parts in time", None]),
    ],
)
def test_a_failed_save_ends_for_all_and_leaves_the_others_alone(
    worker_group: Groups, run_dir: Path, trouble: str, messages: list[str | None]
) -> None:
    """diffusion-pipe#159: `latest` points to an unfinished checkpoint."""
    answers = worker_group(2).run(save_with_trouble, str(run_dir), trouble)
    for answer, message in zip(answers, messages, strict=True):
        assert (answer is None) == (message is None)
        if message is not None:
            assert re.search(message, answer), answer
    assert newest_verified(find_checkpoints(run_dir)) == run_dir / "checkpoints" / "step-00000003"
    assert worker_group(2).run(save_with_trouble, str(run_dir), "none") == [None, None]
    assert newest_verified(find_checkpoints(run_dir)) == run_dir / "checkpoints" / "step-00000004"
    assert [path for path in (run_dir / "checkpoints").iterdir() if path.name.startswith(".")] == []


TROUBLE["none"] = lambda patch, rank: None


def die_in_save(rank: int, run: str, victim: int) -> None:
    config = make_config(zero_stage=1, collective_timeout_s=20)
    engine = make_engine(config)
    if rank == victim:
        checkpoint_writer.write_part = lambda *args, **kwargs: os._exit(1)
    save_checkpoint(run, step=4, engine=engine, plan_state=PLAN, config=config)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_in_a_save_leaves_the_one_before(worker_group: Groups, run_dir: Path, victim: int) -> None:
    group = WorkerGroup(2)
    with pytest.raises(WorkerError, match=f"rank {victim} of 2 died"):
        group.run(die_in_save, str(run_dir), victim)
    step, _, _ = worker_group(2).run(resume_and_train, str(run_dir), 1, "fp32", 3)[0]
    assert step == 3


def resume_other_model(rank: int, run: str) -> Any:
    toy_training.WIDTH = 16
    try:
        return resume_nothing(rank, run)
    finally:
        toy_training.WIDTH = 24


def test_another_model_is_refused(worker_group: Groups, saved_run: tuple[Path, Any]) -> None:
    for answer in worker_group(2).run(catch, resume_other_model, str(saved_run[0])):
        assert "parameter embedding.weight has shape (101, 24) there, but (101, 16) in this model" in answer


def test_changed_versions_and_threads_are_warned_of(worker_group: Groups, run_dir: Path) -> None:
    folder = run_dir / "checkpoints" / "step-00000003"
    state = read_json(folder / "state.json")
    state["versions"]["torch"] = "1.0"
    state["threads"] = 77
    files = read_manifest(folder)
    files["state.json"] = write_json(folder / "state.json", state)
    write_manifest(folder, step=3, files=files)
    messages = worker_group(2).run(resume_and_listen, str(run_dir))[0]
    assert any(f"torch was 1.0 when the checkpoint was written and is {torch.__version__} now" in m for m in messages)
    assert any("threads was 77" in message for message in messages)


def resume_and_listen(rank: int, run: str) -> list[str]:
    return listen(resume_nothing, rank, run)


def test_not_a_checkpoint_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a checkpoint; expected a folder called like step-00000100"):
        step_of(tmp_path / "final")
