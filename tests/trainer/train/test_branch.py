"""Branches start from a checkpoint of another run, in an output of their own, and leave that run as it is."""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from object_store import bucket, s3_server, upload_tree
from pipeline import storage
from pipeline.dataset.manifest import read_manifest, write_manifest
from pipeline.settings import ConfigError, dump_yaml, split_arguments
from small_runs import curve, make_config, rows_by_step, run
from synthetic import write_data_set
from trainer.checkpoint.format import write_json
from trainer.checkpoint.load import find_checkpoints, read_state, read_weights
from trainer.config import saved as config_saved
from trainer.config.schema import TrainerConfig
from trainer.export.model_card import render_model_card
from trainer.launch import processes, run_directory
from trainer.launch.preflight import check, read_config
from trainer.run import PROGRAM, main
from trainer.train import loop
from trainer.train.branch import find_branch_start, resolve_source
from trainer.train.link import Link, WorkerPlace
from trainer_command import refusal
from worker_group import WorkerError, WorkerGroup

__all__ = ["bucket", "s3_server"]


@pytest.fixture(scope="module")
def pair(worker_group: Callable[[int], WorkerGroup]) -> WorkerGroup:
    return worker_group(2)


@pytest.fixture(scope="module")
def original(pair: WorkerGroup, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 9 steps with checkpoints at 3, 6 and 9, evaluated at all of them."""
    output = tmp_path_factory.mktemp("runs") / "original"
    run(pair, configure(data, output))
    return output


def configure(data: Path, output: Path, **changes: Any) -> TrainerConfig:
    settings = {"checkpoint": {"every_steps": 3, "keep_last": 9}, "evaluation": {"every_steps": 3, "max_pairs": 16}}
    return make_config(data, output, **{**settings, **changes})


def branch(group: WorkerGroup, config: TrainerConfig, **how: Any) -> Any:
    """Check and run as the command does; returns the lines of the checks and the report."""
    checked = check(config)
    return checked.lines, run(group, checked.config, **how)


def snapshot(folder: Path) -> dict[str, tuple[str, int]]:
    """Bytes and time of every file."""
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def assert_same_weights(first: Path, second: Path) -> None:
    one, two = (read_weights(find_checkpoints(output).folders[-1]) for output in (first, second))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


# ---- the curve


def test_a_branch_with_the_same_settings_is_the_original_bit_for_bit(
    pair: WorkerGroup, data: Path, original: Path, tmp_path: Path
) -> None:
    before = snapshot(original)
    source = original / "checkpoints" / "step-00000003"
    lines, report = branch(pair, configure(data, tmp_path / "branch", resume_from=str(source)))
    assert report.executed == [4, 5, 6, 7, 8, 9]
    assert report.outcome.first_step == 3
    assert curve(tmp_path / "branch") == [line for line in curve(original) if line[0] > 3]
    assert rows_by_step(tmp_path / "branch") == {
        step: rows for step, rows in rows_by_step(original).items() if step > 3
    }
    assert_same_weights(tmp_path / "branch", original)
    assert snapshot(original) == before
    assert lines[0] == (f"branch of {source}: takes over weights, moments and step 3; the data continue from there")
    assert any(line.startswith(f"resumed at step 3 of 9 (a branch of {source}): BERT") for line in report.said)
    evaluations = (tmp_path / "branch" / "evaluations.jsonl").read_text().splitlines()
    assert evaluations == (original / "evaluations.jsonl").read_text().splitlines()
    assert [read_state(folder).step for folder in find_checkpoints(tmp_path / "branch").folders] == [3, 6, 9]


def test_a_branch_that_was_stopped_goes_on_without_the_original(
    pair: WorkerGroup, data: Path, original: Path, tmp_path: Path
) -> None:
    """`resume_from` a run directory means the checkpoint that was the newest when the branch began."""
    moved = Path(shutil.copytree(original, tmp_path / "original"))
    shutil.rmtree(moved / "checkpoints" / "step-00000009")
    config = configure(data, tmp_path / "branch", resume_from=f"{moved}/", max_steps=12)
    _, report = branch(pair, config, stop_at=8)
    assert report.executed == [7, 8]
    saved = config_saved.read_run_config(tmp_path / "branch")
    assert saved is not None
    assert saved.resume_from == str(moved / "checkpoints" / "step-00000006")
    shutil.rmtree(moved)
    lines, report = branch(pair, config)
    assert report.executed == [9, 10, 11, 12]
    assert not any("branch of" in line for line in lines)
    _, whole = branch(
        pair, configure(data, tmp_path / "whole", resume_from=str(original_at(original, 6)), max_steps=12)
    )
    assert whole.executed == list(range(7, 13))
    assert curve(tmp_path / "branch") == curve(tmp_path / "whole")


def original_at(original: Path, step: int) -> Path:
    return original / "checkpoints" / f"step-{step:08d}"


def test_a_branch_killed_before_its_first_checkpoint_begins_where_it_would_have(
    data: Path, original: Path, tmp_path: Path
) -> None:
    """Its config.yaml says which checkpoint was meant, whatever the other run has written since."""
    copy = Path(shutil.copytree(original, tmp_path / "original"))
    shutil.rmtree(original_at(copy, 9))
    config = configure(data, tmp_path / "branch", resume_from=str(copy), max_steps=12)
    run_directory.write_config(check(config).config)
    shutil.copytree(original_at(original, 9), original_at(copy, 9))
    assert check(config).config.resume_from == str(original_at(copy, 6))
    with pytest.raises(ConfigError, match=r"holds a run with other settings \(resume_from: .*06 -> .*03\)"):
        check(config.model_copy(update={"resume_from": str(original_at(copy, 3))}))


@pytest.mark.parametrize("zero_stage", [0, 3])
def test_another_stage_and_world_size(
    worker_group: Callable[[int], WorkerGroup], data: Path, original: Path, tmp_path: Path, zero_stage: int
) -> None:
    config = configure(
        data, tmp_path / "branch", resume_from=str(original_at(original, 3)), workers=1, zero_stage=zero_stage
    )
    branch(worker_group(1), config)
    ours, theirs = curve(tmp_path / "branch"), [line for line in curve(original) if line[0] > 3]
    assert [line[0] for line in ours] == [line[0] for line in theirs]
    for one, two in zip(ours, theirs, strict=True):
        assert float.fromhex(one[1]) == pytest.approx(float.fromhex(two[1]), rel=1e-4)
    assert rows_by_step(tmp_path / "branch") == {
        step: rows for step, rows in rows_by_step(original).items() if step > 3
    }


def test_other_rate_precision_and_length(pair: WorkerGroup, data: Path, original: Path, tmp_path: Path) -> None:
    """The schedule is of the whole run: step 4 of 20, with a warm-up that is not over."""
    config = configure(
        data,
        tmp_path / "branch",
        resume_from=str(original_at(original, 3)),
        optimizer={"learning_rate": 1e-3, "beta2": 0.98, "clip_norm": 0.5},
        schedule={"warmup_steps": 10},
        max_steps=20,
        precision="bf16",
        guard={"spike_factor": 3.0, "spike_window": 5},
    )
    branch(pair, config, stop_at=5)
    rates = [float.fromhex(line[3]) for line in curve(tmp_path / "branch")]
    assert rates == pytest.approx([4e-4, 5e-4])
    state = read_state(find_checkpoints(tmp_path / "branch").folders[-1])
    assert (state.step, state.steps_taken) == (5, 5)


def test_with_another_batch_the_data_begin_anew(pair: WorkerGroup, data: Path, original: Path, tmp_path: Path) -> None:
    config = configure(
        data, tmp_path / "branch", resume_from=str(original_at(original, 3)), batch={"pairs": 4, "lanes": 2}
    )
    lines, _ = branch(pair, config, stop_at=4)
    assert lines[0].endswith("step 3; the data start over (other data or batch)")
    _, report = branch(pair, config)
    assert report.outcome.finished
    scratch = configure(data, tmp_path / "scratch", batch={"pairs": 4, "lanes": 2})
    run(pair, scratch, stop_at=2)
    rows = rows_by_step(tmp_path / "branch")
    assert [rows[4], rows[5]] == list(rows_by_step(tmp_path / "scratch").values())


def test_phases_take_the_step_where_it_falls(data: Path, original: Path, tmp_path: Path) -> None:
    source = str(original_at(original, 6))
    phases = ({"max_steps": 6}, {"max_steps": 6, "batch": {"pairs": 4}})
    checked = check(configure(data, tmp_path / "a", resume_from=source, max_steps=12, phases=phases))
    assert "the data continue" in checked.lines[0]
    phases = ({"max_steps": 4}, {"max_steps": 8, "batch": {"pairs": 4}})
    checked = check(configure(data, tmp_path / "b", resume_from=source, max_steps=12, phases=phases))
    assert "the data start over" in checked.lines[0]


def test_the_guard_passes_over_what_the_original_would_and_counts_anew(
    data: Path, original: Path, tmp_path: Path
) -> None:
    from trainer.data.phases import open_phases, resolve_phases

    state = read_state(original_at(original, 3))
    guard = {"bad_steps": 2, "first_bad": 3, "rollbacks": 1, "skips": [[4, 5]], "losses": [5.0]}
    for batch, kept in (({"pairs": 8, "lanes": 4}, {"skips": [[4, 5]], "losses": [5.0]}), ({"pairs": 4}, {})):
        config = configure(data, tmp_path, batch=batch, workers=1)
        phases = open_phases(resolve_phases(config), manifests=[read_manifest(data)])
        assert find_branch_start(replace(state, guard=guard), phases=phases).state.guard == kept


def test_the_rows_that_weights_have_seen_are_those_of_both_runs(
    pair: WorkerGroup, data: Path, original: Path, tmp_path: Path
) -> None:
    """An export says the longest, and keeps the heads that the original has trained."""
    assert read_state(original_at(original, 3)).rows["longest"] == 32
    write_data_set(tmp_path / "longer", rows=10, max_seq_length=48, vocabulary_size=256, next_sentence="none", shards=2)
    source = str(original_at(original, 3))
    branch(pair, configure(tmp_path / "longer", tmp_path / "branch", resume_from=source), stop_at=4)
    rows = read_state(find_checkpoints(tmp_path / "branch").folders[-1]).rows
    assert (rows["longest"], rows["next_sentence"]) == (48, True)
    run(pair, configure(tmp_path / "longer", tmp_path / "scratch"), stop_at=1)
    rows = read_state(find_checkpoints(tmp_path / "scratch").folders[-1]).rows
    assert (rows["longest"], rows["next_sentence"]) == (48, False)


def test_the_original_may_lie_on_a_store(
    data: Path, original: Path, bucket: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = upload_tree(original, f"{bucket}/runs/original")
    before = {file.name: file.modified for file in storage.list_files(url)}
    file = tmp_path / "c.yaml"
    file.write_text(dump_yaml(configure(data, tmp_path / "branch", max_steps=11)), encoding="utf-8")
    assert main(["--config", str(file), f"resume_from={url}"]) == 0
    assert f"resumed at step 9 of 11 (a branch of {url}/checkpoints/step-00000009): BERT" in capfd.readouterr().out
    assert [line[0] for line in curve(tmp_path / "branch")] == [10, 11]
    assert {file.name: file.modified for file in storage.list_files(url)} == before


def test_paths_are_made_absolute_and_the_model_card_names_the_source(
    data: Path, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(dump_yaml(make_config(data, tmp_path / "run")), encoding="utf-8")
    words = split_arguments(["--config", "c.yaml", "resume_from=old/run"], program=PROGRAM)
    config = read_config(words, repository=repository)
    assert config.resume_from == str(tmp_path / "old" / "run")
    card = render_model_card(
        config, manifest=read_manifest(data), data_card="", step=9, num_parameters=1, training=None, evaluation=None
    )
    assert f"it continues from the checkpoint `{tmp_path / 'old' / 'run'}` of another run" in card
    assert "from scratch" not in card


# ---- after divergence


@contextmanager
def diverge(link: Link, place: WorkerPlace) -> Iterator[Link]:
    """Steps from 5 on have a gradient of NaN where the peak rate is above 2e-3."""
    train_step = loop.train_step

    def poisoned(context: loop.TrainContext, step: int, **how: float) -> Any:
        backward = context.engine.backward
        if step >= 5 and context.config.optimizer.learning_rate > 2e-3:
            context.engine.backward = lambda loss, *, last: backward(loss * float("nan"), last=last)  # type: ignore[method-assign]
        return train_step(context, step, **how)

    loop.train_step = poisoned
    yield link


def test_the_command_of_the_message_goes_on(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = processes.run_in_processes
    monkeypatch.setattr(processes, "run_in_processes", partial(original, watch=diverge))
    file = tmp_path / "c.yaml"
    guard = {"max_bad_steps": 1, "skip_before": 0}
    file.write_text(dump_yaml(configure(data, tmp_path / "a run", guard=guard)), encoding="utf-8")
    message = refusal(capfd, "--config", file)
    found = re.search(r"need a new output: python trainer/run\.py (.*)$", message)
    assert found is not None, message
    words = shlex.split(found[1])
    assert words[:2] == ["--config", str(tmp_path / "a run" / "config.yaml")]
    assert words[2].startswith(f"resume_from={tmp_path / 'a run' / 'checkpoints' / 'step-'}")
    before = snapshot(tmp_path / "a run")
    assert main([*words, "--dry-run"]) == 0
    done = int(words[2][-8:])
    assert f"steps: {9 - done} of 9 to do" in capfd.readouterr().out
    assert main(words) == 0
    shown = capfd.readouterr().out
    assert f"(a branch of {words[2].removeprefix('resume_from=')})" in shown
    assert snapshot(tmp_path / "a run") == before
    output = Path(words[3].removeprefix("output="))
    assert read_state(find_checkpoints(output).folders[-1]).step == 9
    assert main(words) == 0
    assert "all 9 steps are done; nothing to train" in capfd.readouterr().out


# ---- what is refused


def test_what_does_not_go_with_the_checkpoint_is_refused(data: Path, original: Path, tmp_path: Path) -> None:
    source = str(original_at(original, 3))

    def refused(**changes: Any) -> str:
        with pytest.raises(ValueError, match=r".") as caught:
            check(configure(data, tmp_path / "branch", **{"resume_from": source, **changes}))
        return str(caught.value)

    assert "was trained with model.size=tiny, but this run has model.size=mini" in refused(model={"size": "mini"})
    assert "model.norm=post, but this run has model.norm=pre" in refused(model={"size": "tiny", "norm": "pre"})
    assert "3 steps are done, and max_steps=3 includes them" in refused(max_steps=3)
    assert "was trained with optimizer.name=adamw, whose moments optimizer.name=muon cannot continue" in refused(
        optimizer={"name": "muon"}
    )
    check(configure(data, tmp_path / "branch", resume_from=source, optimizer={"name": "lamb"}))
    assert "and model.initialize_from=/m both give the initial weights" in refused(
        model={"size": "tiny", "initialize_from": "/m"}
    )
    assert f"resume_from={tmp_path}: holds no checkpoint" in refused(resume_from=str(tmp_path))
    assert not (tmp_path / "branch").exists()


def test_an_output_of_another_origin_is_refused(data: Path, original: Path, tmp_path: Path) -> None:
    config = configure(data, original, resume_from=str(original_at(original, 3)), max_steps=12)
    with pytest.raises(ConfigError, match=r"holds a run with other settings \(resume_from: None -> .*step-00000003\)"):
        check(config)


def test_a_damaged_checkpoint_is_refused_and_in_a_run_passed_over(data: Path, original: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(original, tmp_path / "original"))
    (part,) = original_at(copy, 9).glob("rank-00000*")
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    config = configure(data, tmp_path / "branch", max_steps=12)
    with pytest.raises(ConfigError, match=r"resume_from=.*step-00000009: .*sha256 is .*; give another checkpoint"):
        resolve_source(config.model_copy(update={"resume_from": str(original_at(copy, 9))}), saved=None)
    settled = resolve_source(config.model_copy(update={"resume_from": str(copy)}), saved=None)
    assert settled.resume_from == str(original_at(copy, 6))


def test_damage_that_comes_later_is_seen_by_the_workers(
    pair: WorkerGroup, data: Path, original: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(original, tmp_path / "original"))
    config = check(configure(data, tmp_path / "branch", resume_from=str(copy), max_steps=12)).config
    (part,) = original_at(copy, 9).glob("rank-00001*")
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(WorkerError, match=r"CheckpointError: resume_from=.*step-00000009: .*sha256 is"):
        run(pair, config)


def test_another_vocabulary_is_refused(data: Path, original: Path, tmp_path: Path) -> None:
    """Of the same size too; of checkpoints that do not say theirs, the run's data set is asked."""
    manifest = write_data_set(
        tmp_path / "other", shards=2, row_groups=2, rows=10, max_seq_length=32, vocabulary_size=256, seed=9
    )
    write_manifest(tmp_path / "other", manifest.model_copy(update={"vocabulary_hash": "f" * 64}), run={})
    config = configure(tmp_path / "other", tmp_path / "branch", resume_from=str(original_at(original, 3)))
    message = r"resume_from=.*: was trained with vocabulary synthetic-25, but data=.*other has ffffffffffff"
    with pytest.raises(ConfigError, match=message):
        check(config)
    old = Path(shutil.copytree(original, tmp_path / "old"))
    forget_rows(original_at(old, 3), data=str(data))
    config = config.model_copy(update={"resume_from": str(original_at(old, 3))})
    with pytest.raises(ConfigError, match=message):
        check(config)
    forget_rows(original_at(old, 3), data=str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"vocabulary cannot be compared: .*gone: no such data set"):
        check(config)


def forget_rows(checkpoint: Path, *, data: str) -> None:
    """As checkpoints were before they said which rows their weights had seen."""
    import json

    from trainer.checkpoint.format import STATE, read_manifest, write_manifest

    files = read_manifest(checkpoint)
    state = json.loads((checkpoint / STATE).read_text())
    state.pop("rows", None)
    state["config"]["data"] = data
    files[STATE] = write_json(checkpoint / STATE, state)
    write_manifest(checkpoint, step=state["step"], files=files)
