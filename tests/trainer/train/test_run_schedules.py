"""Runs that end by time, and a decay that starts from any checkpoint, through whole runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import small_runs
from small_runs import check_output, curve, make_config, run, run_rank, write_small_set
from trainer.checkpoint.load import find_checkpoints, read_state
from trainer.config.schema import TrainerConfig
from trainer.launch.preflight import check
from trainer.launch.run_directory import write_config
from trainer.telemetry.metrics import read_json_lines
from trainer.train import loop
from worker_group import WorkerGroup

Groups = Callable[[int], WorkerGroup]
WSD = {"name": "wsd", "warmup_steps": 2, "decay_steps": 3}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_set(tmp_path_factory.mktemp("sets") / "set")


def rates(output: Path) -> list[float]:
    return [float.fromhex(rate) for _, _, _, rate in curve(output)]


def test_a_decay_starts_from_any_checkpoint(worker_group: Groups, small: Path, tmp_path: Path) -> None:
    """As a branch, and in the run itself by another max_steps, which is no jump of the rate unless the run is done."""
    pair = worker_group(2)

    def configure(output: str, **changes: Any) -> TrainerConfig:
        checkpoint = {"every_steps": 4, "keep_last": 9}
        return make_config(small, tmp_path / output, schedule=WSD, checkpoint=checkpoint, **changes)

    run(pair, configure("long", max_steps=100), stop_at=4)
    assert rates(tmp_path / "long") == pytest.approx([1.5e-3, 3e-3, 3e-3, 3e-3])
    source = str(tmp_path / "long" / "checkpoints" / "step-00000004")
    run(pair, configure("branch", max_steps=7, resume_from=source))
    assert rates(tmp_path / "branch") == pytest.approx([3e-3, 2e-3, 1e-3])
    shorter = configure("long", max_steps=7)
    lines = check_output(shorter)
    assert any("max_steps: 100 -> 7" in line for line in lines)
    assert not any("stretches the schedule" in line for line in lines)
    run(pair, shorter)
    assert curve(tmp_path / "long")[4:] == curve(tmp_path / "branch")
    assert any("stretches the schedule" in line for line in check_output(configure("long", max_steps=9)))


@contextmanager
def seconds_a_step(seconds: float) -> Iterator[None]:
    """Rank 0's clock of training advances by this much with every step that it measures, and not otherwise."""

    def measure(clock: loop.Clock) -> float:
        return clock.seconds + seconds

    with mock.patch.object(loop.Clock, "measure", measure):
        yield


def run_by_clock(rank: int, config: TrainerConfig, stop_at: int | None) -> small_runs.RunReport:
    with seconds_a_step(360.0 if rank == 0 else 9999.0):
        return run_rank(rank, config, stop_at)


def test_a_run_ends_by_time_and_keeps_the_time_used(worker_group: Groups, small: Path, tmp_path: Path) -> None:
    """Six minutes a step by rank 0's clock: an hour is ten steps, of which the first two are warm-up."""
    pair = worker_group(2)

    def configure(output: str, **changes: Any) -> TrainerConfig:
        schedule = {"warmup_fraction": 0.2}
        return make_config(
            small, tmp_path / output, schedule=schedule, **{"max_steps": 50, "max_hours": 1.0, **changes}
        )

    def go(config: TrainerConfig, stop_at: int | None = None) -> small_runs.RunReport:
        write_config(config)
        return pair.run(run_by_clock, config, stop_at)[0]

    report = go(configure("whole"))
    assert (report.outcome.finished, report.outcome.last_step) == (True, 10)
    wanted = [0, 1.5e-3, *(3e-3 * (1 - (hours - 0.2) / 0.8) for hours in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9))]
    assert rates(tmp_path / "whole") == pytest.approx(wanted)
    checked = check(configure("whole"))
    assert checked.done
    assert not check(configure("whole", max_hours=1.5)).done
    (changed,) = check_output(configure("whole", max_hours=None, max_steps=60))
    assert "max_hours: 1.0 -> None" in changed
    assert "max_steps: 50 -> 60" in changed

    assert not go(configure("stopped"), stop_at=4).outcome.finished
    newest = find_checkpoints(str(tmp_path / "stopped")).folders[-1]
    assert read_state(newest).seconds == 4 * 360
    assert go(configure("stopped")).outcome.last_step == 10
    assert curve(tmp_path / "stopped") == curve(tmp_path / "whole")
    hours = [record["hours"] for record in read_json_lines(tmp_path / "stopped" / "metrics.jsonl")]
    assert hours == pytest.approx([0.1 * step for step in range(1, 11)])


def test_the_clock_goes_on_from_the_seconds_before() -> None:
    clock = loop.Clock(100.0)
    time.sleep(0.01)
    assert clock.seconds == 100.0
    assert clock.measure() >= 100.01


def test_many_epochs_are_no_warning_if_time_ends_the_run(small: Path, tmp_path: Path) -> None:
    def warns(**changes: Any) -> bool:
        lines = check(make_config(small, tmp_path / "run", max_steps=10_000, **changes)).lines
        return any("epochs: 10,000 steps read 40 pairs" in line for line in lines)

    assert (warns(), warns(max_hours=1.0)) == (True, False)


def test_time_and_steps_of_phases_are_not_mixed(small: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"max_hours=1\.0 makes one schedule .*schedule\.span=phase; leave one"):
        make_config(small, tmp_path, max_hours=1, schedule={"span": "phase"}, phases=({"share": 0.5}, {}))
    with pytest.raises(ValueError, match=r"schedule\.warmup_steps=3 .*max_hours=1\.0 makes schedules over time; set"):
        make_config(small, tmp_path, max_hours=1, schedule={"warmup_steps": 3})
