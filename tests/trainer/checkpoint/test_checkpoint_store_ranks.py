"""Checkpoints on an object store written and read by several ranks, of which some fail, as the store does."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest
from test_checkpoint import PLAN, assert_same_state, catch, resume_and_train, resume_nothing, train_and_save

from checkpoint_faults import fail_to_write
from object_store import bucket, environment_of, s3_server
from pipeline import storage
from stored_checkpoints import fail_times, flip_bit, kept, names_in
from toy_training import make_config as make_toy_config
from toy_training import make_engine, save_checkpoint
from trainer.checkpoint import writer
from trainer.checkpoint.format import open_manifest, verify
from trainer.checkpoint.load import CheckpointError
from worker_group import WorkerGroup

__all__ = ["bucket", "s3_server"]
Groups = Callable[[int], WorkerGroup]


@pytest.fixture
def run(bucket: str) -> str:
    return f"{bucket}/runs/x"


def test_a_store_that_does_not_answer_is_no_damage(
    worker_group: Groups, run: str, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older checkpoint must not take the place of one that only could not be read."""
    group, environment = worker_group(2), environment_of(s3_server)
    group.run(within, environment, train_and_save, run, 1, "fp32", [1, 2], 2)
    for answer in group.run(within, environment, resume_without_store, run, "open_input"):
        assert re.search(r"step-00000002: cannot be read: s3://b/x: the store was too busy", answer)
    for answer in group.run(within, environment, resume_without_store, run, "list_files"):
        assert re.search(r"checkpoints: cannot be read: s3://b/x: the store was too busy", answer)


def resume_without_store(rank: int, run: str, name: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, name, fail_times(99 if rank == 0 else 0, getattr(storage, name)))
        return catch(rank, resume_nothing, run)


def within(rank: int, environment: dict[str, str], function: Callable[..., Any], *args: Any) -> Any:
    """Call in a worker, which was forked before the server had an address."""
    os.environ.update(environment)
    return function(rank, *args)


def test_resume_is_bit_exact_and_fits_any_world_size(worker_group: Groups, run: str, s3_server: str) -> None:
    environment = environment_of(s3_server)
    curve, saved = worker_group(2).run(within, environment, train_and_save, run, 2, "fp32", [3, 5], 8)[0]
    for world, stage in ((2, 2), (1, 0), (3, 3)):
        answers = worker_group(world).run(within, environment, resume_and_train, run, stage, "fp32", 8)
        step, state, resumed = answers[0]
        assert step == 5
        assert_same_state(state, saved)
        if world == 2:
            assert resumed == curve[5:]


def test_each_rank_verifies_its_share(worker_group: Groups, run: str, s3_server: str) -> None:
    group, environment = worker_group(2), environment_of(s3_server)
    group.run(within, environment, train_and_save, run, 1, "fp32", [1, 2], 2)
    place, files = open_manifest(f"{run}/checkpoints/step-00000002")
    for number, name in enumerate(files):
        original = storage.read_bytes(storage.join(place, name))
        flip_bit(storage.join(place, name))
        for rank in range(3):
            if rank == number:
                with pytest.raises(CheckpointError, match=f"{name}: sha256 is"):
                    verify(f"{run}/checkpoints/step-00000002", rank=rank, world_size=3)
            else:
                verify(f"{run}/checkpoints/step-00000002", rank=rank, world_size=3)
        states = group.run(within, environment, resume_nothing, run)
        assert [state.step for state in states] == [1, 1]
        storage.write_bytes(storage.join(place, name), original)
    assert group.run(within, environment, resume_nothing, run)[0].step == 2


def save_with_trouble(rank: int, run: str, victim: int) -> str | None:
    """Save step 4 while a rank cannot write its part; the CheckpointError's message."""
    config = make_toy_config(zero_stage=1, collective_timeout_s=120)
    engine = make_engine(config)
    try:
        with pytest.MonkeyPatch.context() as patch:
            if rank == victim:
                patch.setattr(writer, "write_part", fail_to_write)
            save_checkpoint(run, step=4, engine=engine, plan_state=PLAN, config=config)
    except CheckpointError as error:
        return str(error)
    finally:
        engine.close()
    return None


def test_a_failed_save_ends_for_all_and_leaves_the_others_alone(worker_group: Groups, run: str, s3_server: str) -> None:
    group, environment = worker_group(2), environment_of(s3_server)
    group.run(within, environment, train_and_save, run, 1, "fp32", [3], 3)
    for victim, messages in (
        (0, (r"rank 0 could not write s3://.*No space", r"rank 0 gave up step-00000004/[0-9a-f]{16}; see its own")),
        (1, (r"rank 1 could not write its part of step-00000004.*No space", r"rank 1 could not write s3://.*No space")),
    ):
        answers = group.run(within, environment, save_with_trouble, run, victim)
        for answer, message in zip(answers, messages, strict=True):
            assert re.search(message, str(answer)), answer
        assert kept(run) == [3]
    assert group.run(within, environment, save_with_trouble, run, -1) == [None, None]
    assert {name.split("/")[0] for name in names_in(run)} == {"step-00000003", "step-00000004"}
