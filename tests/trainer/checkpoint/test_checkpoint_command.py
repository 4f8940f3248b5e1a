"""Which checkpoints stay, that one always does, and the command that lists, verifies and prunes them."""

from __future__ import annotations

import ctypes
import math
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline.signals import StopRequest
from pipeline.storage import durable
from pipeline.storage.lease import hold
from small_runs import make_config
from stored_checkpoints import kept, make_writer, write
from trainer.checkpoint import command
from trainer.checkpoint import writer as checkpoint_writer
from trainer.checkpoint.format import read_manifest, restore_moved_aside, write_json, write_manifest
from trainer.checkpoint.load import CheckpointError, find_checkpoints, newest_verified, read_state
from trainer.checkpoint.retention import choose_kept, rank_evaluations
from trainer.config import CheckpointConfig, TrainerConfig
from trainer.launch.run_directory import write_config
from trainer.telemetry.metrics import EVALUATIONS_NAME, JsonLines


def flip_bit(folder: Path) -> None:
    path = next(folder.glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Checkpoints 1 to 6 and held-out losses of 1 to 5; the least at 2, then 4."""
    write_config(make_config(tmp_path, tmp_path / "run", checkpoint={"keep_last": 2}))
    write(tmp_path / "run", *range(1, 7), keep_last=9)
    evaluations = JsonLines(tmp_path / "run" / EVALUATIONS_NAME, keep_through=0)
    for step, loss in enumerate([5.0, 2.0, 4.0, 2.5, float("nan")], start=1):
        evaluations.write({"step": step, "mlm_loss": loss, "nsp_loss": 0.5 if step == 1 else None})
    evaluations.close()
    return tmp_path / "run"


# ---- which stay


def test_the_rule_by_hand() -> None:
    losses = {2: 3.0, 4: 1.0, 6: 1.0, 99: 0.1}

    def choose(**settings: Any) -> list[int]:
        return sorted(choose_kept(range(1, 9), config=CheckpointConfig(**settings), rankings=[losses]))

    assert choose(keep_last=1) == [8]
    assert choose(keep_last=2, keep_every_steps=3) == [3, 6, 7, 8]
    assert choose(keep_last=1, keep_best=1) == [4, 8]
    assert choose(keep_last=1, keep_best=2) == [4, 6, 8]
    assert choose(keep_last=1, keep_best=9) == [2, 4, 6, 8]
    assert choose(keep_last=99) == list(range(1, 9))


def test_losses_are_those_of_the_evaluations(run: Path) -> None:
    assert rank_evaluations(run) == [{1: 5.5, 2: 2.0, 3: 4.0, 4: 2.5}]


def test_a_next_sentence_loss_that_is_not_finite_is_never_the_best(tmp_path: Path) -> None:
    """It is null, as where no pair has a label; but then there is no accuracy either."""
    evaluations = JsonLines(tmp_path / EVALUATIONS_NAME, keep_through=0)
    for step, nsp_loss, accuracy in ((1, 0.5, 0.8), (2, math.nan, 0.5)):
        evaluations.write({"step": step, "mlm_loss": 5.0, "nsp_loss": nsp_loss, "nsp_accuracy": accuracy})
    evaluations.write({"step": 3, "mlm_loss": 4.0, "nsp_loss": None, "nsp_accuracy": None})
    evaluations.close()
    assert rank_evaluations(tmp_path) == [{1: 5.5, 3: 4.0}]


def test_losses_of_different_sets_are_not_compared(tmp_path: Path) -> None:
    """Short rows are easier than long ones: the best of the first phase says nothing about the second."""
    evaluations = JsonLines(tmp_path / EVALUATIONS_NAME, keep_through=0)
    kinds = [(0, "short", 64, 900), (1, "long", 64, 3600), (1, "long", 32, 1800), (1, "other", 64, 3600)]
    losses = {1: (0, 2.0), 2: (0, 1.0), 3: (1, 5.0), 4: (1, 4.0), 5: (2, 1.5), 6: (3, 9.0), 7: (3, 8.0), 8: (1, 4.5)}
    for step, (kind, loss) in losses.items():
        phase, data_hash, pairs, masked = kinds[kind]
        values = {"phase": phase, "data_hash": data_hash, "pairs": pairs, "masked": masked}
        evaluations.write({"step": step, "mlm_loss": loss, "nsp_loss": None, **values})
    evaluations.close()
    rankings = rank_evaluations(tmp_path)
    assert rankings == [{1: 2.0, 2: 1.0}, {5: 1.5}, {6: 9.0, 7: 8.0}, {3: 5.0, 4: 4.0, 8: 4.5}]
    kept = choose_kept(range(1, 10), config=CheckpointConfig(keep_last=1, keep_best=1), rankings=rankings)
    assert kept == {2, 4, 5, 7, 9}


def test_the_writer_keeps_the_best_of_each_phase(tmp_path: Path) -> None:
    evaluations = JsonLines(tmp_path / EVALUATIONS_NAME, keep_through=0)
    for step, phase, loss in ((1, 0, 1.0), (2, 0, 1.5), (3, 1, 5.0), (4, 1, 4.0), (5, 1, 4.5)):
        evaluations.write({"step": step, "phase": phase, "mlm_loss": loss, "nsp_loss": None})
    evaluations.close()
    write(tmp_path, *range(1, 7), keep_last=1, keep_best=1)
    assert kept(tmp_path) == [1, 4, 6]


def test_the_writer_keeps_the_best(run: Path) -> None:
    write(run, 7, keep_last=1, keep_best=2)
    assert kept(run) == [2, 4, 7]


def test_keeping_the_best_needs_evaluations() -> None:
    settings = {"data": "d", "output": "o", "batch": {"pairs": 8}, "max_steps": 9, "checkpoint": {"keep_best": 1}}
    with pytest.raises(
        ValueError, match=r"keep_best=1 needs held-out losses during training; set evaluation\.every_steps"
    ):
        TrainerConfig.model_validate(settings)


class Killed(BaseException):
    """In the place of SIGKILL."""


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("step", [1, 2])
def test_a_kill_at_any_rename_leaves_a_checkpoint_that_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool, step: int
) -> None:
    """With keep_last: 1, in a save of the next step and in one of the same step again (KempnerForge#102)."""
    if not exchange:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    rename, count = Path.rename, 0
    for after in (False, True):
        for victim in range(1, 100):
            folder = tmp_path / f"{after}-{victim}"
            write(folder, 1, keep_last=1)
            writer, count = make_writer(folder, keep_last=1), 0

            def renamed(path: Path, target: Path, *, last: int = victim, late: bool = after) -> Path:
                nonlocal count
                count += 1
                if count >= last and not late:
                    raise Killed
                done = rename(path, target)
                if count >= last:
                    raise Killed
                return done

            with monkeypatch.context() as patch:
                patch.setattr(Path, "rename", renamed)
                writer.save(step, plan_state={})
                try:
                    writer.finish()
                    finished = True
                except Killed:
                    finished = False
            restore_moved_aside(folder)
            assert newest_verified(find_checkpoints(folder)) is not None
            if finished:
                assert kept(folder) == [step]
                break
            write(folder, 3, keep_last=1)
            assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000003"]
        assert count >= (1 if exchange and step == 1 else 2)


def test_saving_is_off_the_training_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ray#48801; DeepSpeed#5721, #7533: the copy is taken at once, the writing blocks neither steps nor collectives."""
    writer = make_writer(tmp_path)
    may_write, weight = threading.Event(), writer._engine.local_slices()[0].tensors["parameter"]
    write_part, expected = checkpoint_writer.write_part, weight.clone()

    def slow(*args: Any, **kwargs: Any) -> Any:
        assert may_write.wait(60)
        return write_part(*args, **kwargs)

    monkeypatch.setattr(checkpoint_writer, "write_part", slow)
    writer.save(1, plan_state={})
    assert find_checkpoints(tmp_path).folders == ()
    weight.add_(1.0)  # the next step, while nothing is written yet
    may_write.set()
    writer.finish()
    saved = checkpoint_writer_weights(tmp_path)
    assert (saved.view(-1) == expected).all()


def checkpoint_writer_weights(run: Path) -> Any:
    from trainer.checkpoint.load import read_weights

    return read_weights(find_checkpoints(run).folders[-1])["weight"]


# ---- room on the disk


def test_a_save_without_room_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 1)
    monkeypatch.setattr(checkpoint_writer, "free_bytes", lambda folder: 1000)
    writer = make_writer(tmp_path)
    needed = f"{9 * 3 * 4 + checkpoint_writer.METADATA_BYTES:,}"
    message = rf"checkpoints: a checkpoint needs {needed} bytes, but 1,000 are free; free space there, lower"
    assert re.search(message, caplog.text)  # told when the run begins
    with pytest.raises(CheckpointError, match=rf"step 2: .*{message}"):
        writer.save(2, plan_state={})
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_room_is_that_of_the_folder_or_its_first_parent(tmp_path: Path) -> None:
    assert durable.free_bytes(tmp_path / "a" / "b") > 0


# ---- the command


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = command.main([str(word) for word in words])
    output = capsys.readouterr()
    return status, output.out, output.err


def test_list_and_verify(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = call(capsys, run)
    lines = text.splitlines()
    assert status == 0
    assert lines[0].split() == ["step", "size", "written", "workers", "state"]
    assert [line.split()[0] for line in lines[1:]] == list("123456")
    assert all(
        re.fullmatch(r" +\d +[\d.]{1,4} kB  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d +1  verified", line) for line in lines[1:]
    )
    assert call(capsys, run, "verify")[0] == 0

    flip_bit(find_checkpoints(run).folders[2])
    (find_checkpoints(run).folders[3] / "manifest.json").unlink()
    (find_checkpoints(run).folders[4] / "state.json").write_text("{")
    status, text, _ = call(capsys, run, "verify")
    assert status == 1
    states = [line.rpartition("  ")[2] for line in text.splitlines()[1:]]
    assert [state == "verified" for state in states] == [True, True, False, False, False, True]
    assert "sha256 is" in states[2]
    assert "manifest.json: is missing" in states[3]
    assert "state.json: is not valid JSON" in states[4]
    assert call(capsys, run, "list")[0] == 0


def test_prune_by_the_runs_settings_or_those_given(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = call(capsys, run, "prune", "--keep-best", "1")
    assert status == 0
    assert kept(run) == [2, 5, 6]
    assert re.search(r"removed 3 checkpoints, [\d.]+ kB: steps 1, 3, 4", text)
    call(capsys, run, "prune", "--keep-last", "1", "--keep-every-steps", "5")
    assert kept(run) == [5, 6]


def test_prune_counts_only_what_verifies(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_bit(find_checkpoints(run).folders[5])
    flip_bit(find_checkpoints(run).folders[4])
    assert call(capsys, run, "prune", "--keep-last", "1")[0] == 0
    assert kept(run) == [4, 5, 6]
    assert call(capsys, run, "prune", "--damaged")[0] == 0
    assert kept(run) == [4]
    flip_bit(find_checkpoints(run).folders[0])
    status, _, errors = call(capsys, run, "prune", "--damaged")
    assert status == 2
    assert "no checkpoint verifies" in errors
    assert kept(run) == [4]


def test_refusals_of_the_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: object) -> str:
        status, _, errors = call(capsys, *words)
        assert status == 2
        return errors

    assert "holds no checkpoint; give a run directory" in refused(tmp_path / "absent")
    assert "is not a run directory (no config.yaml)" in refused(tmp_path / "absent", "prune")
    assert "list takes no --keep-*" in refused(run, "--keep-last", "1")
    assert "keep_last=0" in refused(run, "prune", "--keep-last", "0")
    with hold(run, timeout_s=60, say=print, stop=StopRequest()):
        assert "another command works there" in refused(run, "prune")
    assert kept(run) == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_of_before_is_still_read(run: Path) -> None:
    """state.json without the fields that came later."""
    import json

    folder = find_checkpoints(run).folders[0]
    state = json.loads((folder / "state.json").read_text())
    del state["guard"], state["data_hash"]
    files = read_manifest(folder)
    files["state.json"] = write_json(folder / "state.json", state)
    write_manifest(folder, step=state["step"], files=files)
    assert read_state(folder).guard == {}
    assert read_state(folder).data_hash == ""
