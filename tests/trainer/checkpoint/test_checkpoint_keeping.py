"""Which checkpoints stay: the last, every so-manieth, none of an abandoned future; and the generators in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint_faults import fail_to_write, flip_bit, listen, resume_nothing, save_again_and_again
from toy_training import make_config, make_engine, save_checkpoint
from trainer.checkpoint import commit, writer
from trainer.checkpoint.load import find_checkpoints, newest_verified, read_state
from worker_group import WorkerGroup

Groups = Callable[[int], WorkerGroup]
PLAN = {"plan_hash": "abc", "epoch": 1, "cursors": [3, 1, 4, 1]}


def save_steps(rank: int, run: str, steps: list[int], settings: dict[str, int]) -> None:
    config = make_config(zero_stage=0, checkpoint=settings)
    engine = make_engine(config)
    for step in steps:
        save_checkpoint(run, step=step, engine=engine, plan_state=PLAN, config=config)
    engine.close()


def kept(run: Path) -> list[int]:
    return [read_state(folder).step for folder in find_checkpoints(run).folders]


def test_keeps_the_last_and_every_so_manieth(worker_group: Groups, tmp_path: Path) -> None:
    settings = {"every_steps": 1, "keep_last": 2, "keep_every_steps": 4}
    worker_group(1).run(save_steps, str(tmp_path), list(range(1, 8)), settings)
    assert kept(tmp_path) == [4, 6, 7]


def save_without_removing(rank: int, run: str) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "remove", fail_to_write)
        return listen(save_steps, rank, run, [1, 2], {"keep_last": 1})


def test_a_checkpoint_that_cannot_be_removed_is_a_warning(worker_group: Groups, tmp_path: Path) -> None:
    (warning,) = worker_group(1).run(save_without_removing, str(tmp_path))[0]
    assert "cannot be removed: [Errno 28] No space left" in warning
    assert kept(tmp_path) == [1, 2]


def test_saving_again_replaces_and_drops_the_abandoned_future(worker_group: Groups, tmp_path: Path) -> None:
    worker_group(1).run(save_steps, str(tmp_path), [1, 2, 3], {"keep_last": 3})
    flip_bit(tmp_path / "checkpoints" / "step-00000002" / "rank-00000-of-00001.safetensors")
    flip_bit(tmp_path / "checkpoints" / "step-00000003" / "rank-00000-of-00001.safetensors")
    assert newest_verified(find_checkpoints(tmp_path)) == tmp_path / "checkpoints" / "step-00000001"
    worker_group(1).run(save_steps, str(tmp_path), [2], {"keep_last": 3})
    assert kept(tmp_path) == [1, 2]
    assert newest_verified(find_checkpoints(tmp_path)) == tmp_path / "checkpoints" / "step-00000002"


def test_a_save_that_is_given_up_is_not_taken_for_the_checkpoint_of_before(tmp_path: Path) -> None:
    """The same step is saved again after a run went back; an earlier save of it may stand there."""
    assert save_again_and_again(tmp_path) == [False, True, False, True]


def test_generators_continue(worker_group: Groups, tmp_path: Path) -> None:
    draws = worker_group(2).run(save_then_draw, str(tmp_path))
    assert worker_group(2).run(resume_then_draw, str(tmp_path)) == draws
    assert draws[0] != draws[1]


def save_then_draw(rank: int, run: str) -> float:
    engine = make_engine(make_config(zero_stage=1))
    torch.manual_seed(rank + 5)
    save_checkpoint(run, step=1, engine=engine, plan_state=PLAN, config=make_config())
    engine.close()
    return torch.rand(()).item()


def resume_then_draw(rank: int, run: str) -> float:
    resume_nothing(rank, run)
    return torch.rand(()).item()


def test_a_part_that_is_heard_of_as_ended_is_touched_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 may commit, which renames the folder, as soon as it hears of it: here before the call returns."""
    draft = commit.open_draft(tmp_path, step=1, token=7, world_size=1)
    draft.begin()
    draft.begin_part(0)

    def commit_if_heard() -> None:
        if draft.collect_finished({0}):
            draft.seal({})
            draft.commit()

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            result = function(*given)
            monkeypatch.undo()
            commit_if_heard()
            return result

        return call

    monkeypatch.setattr(commit, "write_json", wrap(commit.write_json))
    draft.end_part(0, entries={})
    commit_if_heard()
    assert [path.name for path in (tmp_path / "step-00000001").iterdir()] == ["manifest.json"]
