"""Stop, run the same command again: the curve is that of a run that was never stopped."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from small_runs import RunReport, curve, make_config, rows_by_step, run, write_small_set
from trainer.checkpoint.load import find_checkpoints
from worker_group import WorkerError, WorkerGroup

MAX_STEPS = 9


@pytest.fixture(scope="module")
def pair(worker_group: Callable[[int], WorkerGroup]) -> WorkerGroup:
    return worker_group(2)


@pytest.fixture(scope="module")
def single(worker_group: Callable[[int], WorkerGroup]) -> WorkerGroup:
    return worker_group(1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    # 40 rows make an epoch of about 5 steps, so that runs cross its end, in row groups that micro-batches cross.
    write_small_set(folder)
    return folder


@pytest.fixture(scope="module")
def uninterrupted(pair: WorkerGroup, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("uninterrupted") / "run"
    report = run(pair, make_config(data, output))
    assert report.executed == list(range(1, MAX_STEPS + 1))
    assert report.outcome.finished
    return output


def run_in_parts(group: WorkerGroup, data: Path, output: Path, *, stops: tuple[int, ...]) -> list[RunReport]:
    config = make_config(data, output)
    return [run(group, config, stop_at=stop) for stop in (*stops, None)]


def test_three_resumes_in_a_row_give_the_same_bits(
    pair: WorkerGroup, data: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    """Interrupted at odd steps, in the epoch and around its end; counts the steps, so that none is done twice.

    llm-foundry#1277; composer#3725; accelerate#2016, #4071: resume is off by the packing, or at the epoch's end.
    """
    output = tmp_path / "run"
    reports = run_in_parts(pair, data, output, stops=(3, 5, 7))
    assert [report.executed for report in reports] == [[1, 2, 3], [4, 5], [6, 7], [8, 9]]
    assert [report.outcome.finished for report in reports] == [False, False, False, True]
    assert not any("are in the logs" in line for report in reports for line in report.said)
    assert [report.said[0].split(":")[0] for report in reports] == [
        "training from step 0 of 9",
        "resumed at step 3 of 9",
        "resumed at step 5 of 9",
        "resumed at step 7 of 9",
    ]
    assert curve(output) == curve(uninterrupted)
    assert rows_by_step(output) == rows_by_step(uninterrupted)


def test_a_run_that_starts_from_zero_again_is_told_from_a_resumed_one(
    pair: WorkerGroup, data: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    """The counting above can fail: without its checkpoints a run computes every step again, to the same curve."""
    output = tmp_path / "run"
    first = run(pair, make_config(data, output), stop_at=3)
    shutil.rmtree(output / "checkpoints")
    second = run(pair, make_config(data, output))
    assert first.executed + second.executed != list(range(1, MAX_STEPS + 1))
    assert second.executed == list(range(1, MAX_STEPS + 1))
    assert "steps 1 to 3 are in the logs, but in no checkpoint: done again, and recorded anew" in second.said
    assert curve(output) == curve(uninterrupted)


def test_what_was_computed_past_the_checkpoint_is_cut_and_computed_again(
    pair: WorkerGroup, data: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    """As after a kill at step 7, when the last checkpoint is of step 3."""
    output = tmp_path / "run"
    run(pair, make_config(data, output, checkpoint={"every_steps": 3}), stop_at=7)
    for checkpoint in find_checkpoints(output).folders[1:]:
        shutil.rmtree(checkpoint)
    assert len(curve(output)) == 7
    report = run(pair, make_config(data, output))
    assert report.executed == list(range(4, MAX_STEPS + 1))
    assert any(line.startswith("steps 4 to 7 are in the logs") for line in report.said)
    assert curve(output) == curve(uninterrupted)
    assert rows_by_step(output) == rows_by_step(uninterrupted)


def test_another_number_of_workers_goes_on_with_the_same_rows(
    pair: WorkerGroup, single: WorkerGroup, data: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    config = make_config(data, output)
    run(pair, config, stop_at=3)
    run(single, config.model_copy(update={"workers": 1, "zero_stage": 2}), stop_at=6)
    run(pair, config)
    assert rows_by_step(output) == rows_by_step(uninterrupted)
    for (step, loss, *_), (_, expected, *_) in zip(curve(output), curve(uninterrupted), strict=True):
        assert float.fromhex(loss) == pytest.approx(float.fromhex(expected), rel=1e-5), f"step {step}"


def test_a_damaged_newest_checkpoint_is_passed_over(
    pair: WorkerGroup, data: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    """diffusion-pipe#159: the newest that verifies is resumed, not the newest."""
    output = tmp_path / "run"
    run(pair, make_config(data, output, checkpoint={"every_steps": 3}), stop_at=7)
    victim = next((find_checkpoints(output).folders[-1]).glob("*.safetensors"))
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(content)
    report = run(pair, make_config(data, output))
    assert report.outcome.first_step == 6
    assert any(line.startswith("warning: checkpoint step-00000007 is skipped") for line in report.said)
    assert curve(output) == curve(uninterrupted)


def test_a_checkpoint_of_another_plan_is_refused(pair: WorkerGroup, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    run(pair, make_config(data, output), stop_at=2)
    with pytest.raises(WorkerError, match="data set, seed or batch settings differ"):
        run(pair, make_config(data, output, seed=7))
