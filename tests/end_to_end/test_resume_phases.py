"""A run of three phases stopped at every kind of boundary, and at other world sizes, is the uninterrupted run.

PROBLEMS.md ("Training"): off by the packing ratio or at the epoch boundary; loses its place or replays; another number
of workers; learning rates that jump; rows that are lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.dataset.manifest import open_data_set
from small_runs import RunReport, curve, make_config, rows_by_step, run
from synthetic import write_data_set
from trainer.checkpoint.format import read_manifest
from trainer.checkpoint.load import find_checkpoints, read_state
from trainer.config.schema import TrainerConfig
from trainer.data.plan import PlanState
from trainer.export.folder import ExportError, export
from trainer.telemetry.metrics import EVALUATIONS_NAME, METRICS_NAME, read_json_lines
from worker_group import WorkerGroup

Groups = Callable[[int], WorkerGroup]
MAX_STEPS = 14
ROWS = {(shard, group, row) for shard in range(2) for group in range(4) for row in range(5)}
"""Of either data set: 40 in 8 row groups."""


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("sets")
    facts: dict[str, Any] = {"shards": 2, "row_groups": 4, "rows": 5, "mask_sets": 2, "vocabulary_size": 256}
    write_data_set(root / "short", max_seq_length=32, **facts)
    write_data_set(root / "long", max_seq_length=48, seed=1, **facts)
    return root / "short", root / "long"


def config_of(sets: tuple[Path, Path], output: Path, **changes: Any) -> TrainerConfig:
    """Three phases of 5, 7 and 2 steps.

    In the first every lane takes one row group a step (exactly 20 pairs in 4 lanes, row groups of 5) and an epoch is 2
    steps, so that its third epoch takes the first mask set again. The second has micro-batches by tokens, 5 lanes, and
    another set.
    """
    settings: dict[str, Any] = {
        "max_steps": MAX_STEPS,
        "batch": {"pairs": 20, "lanes": 4, "exact_pairs": True},
        "phases": (
            {"data": str(sets[0]), "max_steps": 5},
            {"max_steps": 7, "batch": {"pairs": 8, "lanes": 5, "exact_pairs": False}},
            {"data": str(sets[0]), "batch": {"pairs": 10, "lanes": 5}},
        ),
        "schedule": {"warmup_steps": 3},
    }
    return make_config(sets[1], output, **{**settings, **changes})


@dataclass(frozen=True)
class Uninterrupted:
    output: Path
    report: RunReport
    states: dict[int, PlanState]
    """After each step."""
    middle_epoch_end: int
    """Last step of the second phase's first epoch."""


@pytest.fixture(scope="module")
def uninterrupted(
    worker_group: Groups, sets: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Uninterrupted:
    output = tmp_path_factory.mktemp("uninterrupted") / "run"
    config = config_of(sets, output, checkpoint={"every_steps": 1, "keep_last": MAX_STEPS})
    report = run(worker_group(2), config)
    assert report.executed == list(range(1, MAX_STEPS + 1))
    states = {}
    for folder in find_checkpoints(output).folders:
        state = PlanState.from_tree(read_state(folder).plan_state)
        states[state.step] = state
    ends = [step for step, state in states.items() if state.phase == 1 and state.epoch == 1]
    middle = min(ends)
    return Uninterrupted(output, report, states, middle)


def test_the_run_has_every_kind_of_boundary(uninterrupted: Uninterrupted) -> None:
    states = uninterrupted.states
    place = {step: (state.phase, state.phase_step, state.epoch) for step, state in states.items()}
    assert place[1] == (0, 1, 0)
    assert states[1].cursors == (5, 5, 5, 5), "a row group of every lane is done"
    assert place[2] == (0, 2, 1)
    assert place[4] == (0, 4, 2), "two epochs are done: the mask sets begin again"
    assert place[5] == (0, 5, 2), "a phase is done, in the midst of an epoch"
    assert place[6] == (1, 1, 0)
    assert any(states[uninterrupted.middle_epoch_end].cursors), "a lane is in the next epoch already"
    assert 6 < uninterrupted.middle_epoch_end < 12
    assert place[12][:2] == (1, 7)
    assert place[14][:2] == (2, 2)
    assert len({state.plan_hash for state in states.values()}) == 3
    assert [len(states[step].cursors) for step in (5, 6, 13)] == [4, 5, 5]


@pytest.mark.parametrize("stops", [(1, 4, 5), (2, 9, 12), (3, 0, 13)], ids=["early", "late", "middle"])
def test_three_resumes_in_a_row_give_the_same_bits(
    worker_group: Groups, sets: tuple[Path, Path], uninterrupted: Uninterrupted, tmp_path: Path, stops: tuple[int, ...]
) -> None:
    """At ends of row groups, epochs and phases (0 stands for the second phase's epoch): all of the state at the end."""
    stops = tuple(stop or uninterrupted.middle_epoch_end for stop in stops)
    output, micro_batches = tmp_path / "run", {}
    config = config_of(sets, output)
    for first, stop in zip((0, *stops), (*stops, None), strict=True):
        report = run(worker_group(2), config, stop_at=stop)
        assert report.executed == list(range(first + 1, (stop or MAX_STEPS) + 1))
        micro_batches.update(report.micro_batches)
    assert curve(output) == curve(uninterrupted.output)
    assert rows_by_step(output) == rows_by_step(uninterrupted.output)
    assert micro_batches == uninterrupted.report.micro_batches
    evaluations = read_json_lines(output / EVALUATIONS_NAME)
    assert evaluations == read_json_lines(uninterrupted.output / EVALUATIONS_NAME)
    assert [record["step"] for record in evaluations] == [5, 12, 14]
    first, second, third = (record["masked"] for record in evaluations)
    assert first == third != second, "each phase is evaluated on its own data set"
    hashes = [open_data_set(sets[index]).hash for index in (0, 1, 0)]
    assert [(record["phase"], record["data_hash"]) for record in evaluations] == list(enumerate(hashes))
    assert read_state(find_checkpoints(output).folders[-1]).guard["phase"] == 2
    assert tensors_of(output) == tensors_of(uninterrupted.output)


def tensors_of(output: Path) -> dict[str, str]:
    """File -> sha256 of the last checkpoint's tensors: parameters, both moments, generators."""
    last = find_checkpoints(output).folders[-1]
    files = {name: entry["sha256"] for name, entry in read_manifest(last).items() if name.endswith(".safetensors")}
    assert (last.name, len(files)) == (f"step-{MAX_STEPS:08d}", 2)
    return files


@pytest.mark.parametrize(("worlds", "stops"), [((1, 2, 1), (3, 8)), ((4, 3), (6,))], ids=["1-2-1", "4-3"])
def test_other_numbers_of_workers_take_the_same_rows_masks_and_rates(
    worker_group: Groups,
    sets: tuple[Path, Path],
    uninterrupted: Uninterrupted,
    tmp_path: Path,
    worlds: tuple[int, ...],
    stops: tuple[int, ...],
) -> None:
    output, micro_batches = tmp_path / "run", {}
    for number, (world_size, stop) in enumerate(zip(worlds, (*stops, None), strict=True)):
        config = config_of(sets, output, workers=world_size, zero_stage=1 + number % 2)
        micro_batches.update(run(worker_group(world_size), config, stop_at=stop).micro_batches)
    assert micro_batches == uninterrupted.report.micro_batches
    assert rows_by_step(output) == rows_by_step(uninterrupted.output)
    for (step, loss, _, rate), (_, expected, _, same_rate) in zip(
        curve(output), curve(uninterrupted.output), strict=True
    ):
        assert rate == same_rate
        assert float.fromhex(loss) == pytest.approx(float.fromhex(expected), rel=1e-5), f"step {step}"
    assert_epochs_are_whole(output)


def test_every_row_of_an_epoch_is_logged_once(uninterrupted: Uninterrupted) -> None:
    assert_epochs_are_whole(uninterrupted.output)
    (first, *_) = read_json_lines(uninterrupted.output / "rows-0.jsonl")
    assert first.keys() == {"step", "phase", "epoch", "rows"}
    record = read_json_lines(uninterrupted.output / METRICS_NAME)[-1]
    assert (record["step"], record["phase"], record["epoch"]) == (MAX_STEPS, 2, 0)


def test_an_export_takes_the_tokenizer_of_the_last_phase(uninterrupted: Uninterrupted, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"/short: its manifest lists no tokenizer/tokenizer\.json"):
        export(uninterrupted.output, out=tmp_path / "model")


def assert_epochs_are_whole(output: Path) -> None:
    """By RUN/rows-RANK.jsonl: every row once in each epoch that ended, at most once in the others."""
    counts: dict[tuple[int, int], Counter[tuple[int, ...]]] = {}
    for path in output.glob("rows-*.jsonl"):
        for record in read_json_lines(path):
            for epoch, *row in record["rows"]:
                counts.setdefault((record["phase"], epoch), Counter())[tuple(row)] += 1
    assert sorted(counts) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]
    for place, counted in counts.items():
        assert set(counted.values()) == {1}, place
    for place in ((0, 0), (0, 1), (1, 0)):
        assert counts[place].keys() == ROWS, place
