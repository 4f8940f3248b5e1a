"""Batch warm-up: the batch grows in a line, by micro-batches of some lanes in turn, and no row is lost or repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from ingest_streams import assert_same, make_plan, run
from pipeline.dataset.manifest import Manifest
from small_runs import curve, make_config, run_rank, write_small_set
from synthetic import write_data_set
from trainer.data import open_phases, resolve_phases
from trainer.data.plan import BatchWarmup, PlanError
from trainer.engine import Engine
from trainer.launch.run_directory import write_config
from trainer.telemetry.metrics import read_json_lines
from worker_group import WorkerGroup

WARMUP = BatchWarmup(12, Fraction(1, 4))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    root = tmp_path_factory.mktemp("ingest")
    return root, write_data_set(root, shards=3, row_groups=3, rows=21)


def test_the_batch_grows_in_a_line() -> None:
    """From a quarter in step 1 by a sixteenth a step to the whole in step 13."""
    sizes = np.diff([float(WARMUP.full_batches(steps)) for steps in range(16)])
    assert sizes.tolist() == [0.25 + 0.0625 * step for step in range(12)] + [1.0] * 3


def test_steps_take_full_micro_batches_of_lanes_in_turn(data: tuple[Path, Manifest]) -> None:
    """8 lanes of 7 pairs each: 2 of them in step 1, all from step 13 on, and each lane has given as much as any other
    but one micro-batch."""
    plan = make_plan(data[1], lanes=8, warmup=WARMUP)
    assert plan.pairs == 56
    due = np.array([plan.pairs_due(rounds) for rounds in range(20)])
    each = np.diff(due, axis=0)
    assert set(each.ravel().tolist()) == {0, 7}
    assert each[0].tolist() == [7, 7, 0, 0, 0, 0, 0, 0]
    assert (each > 0).sum(axis=1).tolist() == [2, 2, 3, 4, 4, 4, 5, 6, 6, 6, 7, *[8] * 8]
    assert np.ptp(due, axis=1).max() == 7
    assert make_plan(data[1], lanes=8).hash != plan.hash


def test_the_same_steps_for_any_world_size_and_every_row_once(data: tuple[Path, Manifest]) -> None:
    root, manifest = data
    plan = make_plan(manifest, lanes=5, warmup=WARMUP)
    expected = run(plan, root, steps=40)
    for world_size in (2, 3, 4, 5):
        steps = run(plan, root, world_size=world_size, steps=40)
        assert_same(steps, expected)
        for step, lanes in steps:
            places = range(-(-5 // world_size))
            given = [any(lanes.get(p * world_size + r) is not None for r in range(world_size)) for p in places]
            assert step.used == tuple(given)
    assert_same(run(plan, root, world_size=2, steps=33, state=expected[6][0].state), expected[7:])
    taken = Counter(
        (int(m.epochs[i]), int(m.shards[i]), int(m.row_groups[i]), int(m.rows[i]))
        for _, lanes in expected
        for m in lanes.values()
        if m is not None
        for i in range(m.num_pairs)
    )
    assert set(taken.values()) == {1}
    assert sum(epoch == 0 for epoch, *_ in taken) == manifest.num_rows("train")
    assert all(step.used == (True,) * 5 for step, _ in run(make_plan(manifest, lanes=5), root, steps=3))


def count_backwards(rank: int, config: Any, stop_at: int | None) -> tuple[list[int], Any]:
    """The number of backward passes of each step, and the report of the run."""
    counts = [0]
    backward, step = Engine.backward, Engine.step

    def counted(engine: Engine, loss: Any, *, last: bool) -> None:
        counts[-1] += 1
        backward(engine, loss, last=last)

    def ended(engine: Engine, rate: float) -> Any:
        counts.append(0)
        return step(engine, rate)

    with mock.patch.object(Engine, "backward", counted), mock.patch.object(Engine, "step", ended):
        report = run_rank(rank, config, stop_at)
    return counts[:-1], report


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_runs_skip_what_no_rank_has_and_agree_over_world_sizes(
    worker_group: Callable[[int], WorkerGroup], tmp_path: Path, zero_stage: int
) -> None:
    small = write_small_set(tmp_path / "set")

    def configure(output: str, **changes: Any) -> Any:
        batch = {"pairs": 8, "lanes": 4, "warmup_steps": 4, "warmup_from": 0.25}
        return make_config(small, tmp_path / output, batch=batch, max_steps=7, zero_stage=zero_stage, **changes)

    def go(workers: int, output: str, stop_at: int | None = None) -> tuple[list[int], Any]:
        config = configure(output, workers=workers)
        write_config(config)
        counts: tuple[list[int], Any] = worker_group(workers).run(count_backwards, config, stop_at)[0]
        return counts

    assert go(1, "alone")[0] == [1, 1, 3, 3, 4, 4, 4]
    assert go(2, "pair")[0] == [1, 1, 2, 2, 2, 2, 2]
    alone, pair = ([float.fromhex(row[1]) for row in curve(tmp_path / run)] for run in ("alone", "pair"))
    assert pair == pytest.approx(alone, rel=1e-4)
    go(2, "stopped", stop_at=3)
    go(2, "stopped")
    assert curve(tmp_path / "stopped") == curve(tmp_path / "pair")
    pairs = [record["pairs"] for record in read_json_lines(tmp_path / "pair" / "metrics.jsonl")]
    assert pairs[0] == 2
    assert 38 <= sum(pairs) <= 2 * (1 + 1 + 3 + 3 + 4 + 4 + 4)  # a lane with long rows lags


def test_epochs_and_tokens_count_small_steps_as_small(tmp_path: Path) -> None:
    manifest = write_data_set(tmp_path)

    def opened(**batch: Any) -> Any:
        config = make_config(tmp_path, tmp_path / "run", batch={"pairs": 8, "lanes": 4, **batch}, max_steps=20)
        return open_phases(resolve_phases(config), manifests=[manifest])[0]

    plain, warm = opened(), opened(warmup_steps=10, warmup_from=0.25)
    assert plain.full_steps(5) == 15
    assert warm.full_steps(0) == pytest.approx(20 - 10 * 0.75 * 11 / 20)
    assert warm.epochs / plain.epochs == pytest.approx(warm.full_steps(0) / 20)
    assert "batch warm-up: from 25% of the batch, 1 of 4 micro-batches a step, to the whole after 10 steps" in (
        warm.describe()
    )
    with pytest.raises(PlanError, match=r"batch\.warmup_from=0\.2 is less than one of the 4 .*at least 0\.25"):
        opened(warmup_steps=10, warmup_from=0.2)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"warmup_from": 0.5}, r"batch\.warmup_from=0\.5 .*every step has a full batch; set batch\.warmup_steps"),
        ({"warmup_steps": 5, "exact_pairs": True}, r"exact_pairs asks for equal steps, .*=5 for growing ones; leave"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(tmp_path: Path, batch: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(tmp_path, tmp_path / "run", batch={"pairs": 8, **batch})
