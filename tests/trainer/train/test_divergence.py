"""Steps that are not finite: never applied, noted with their rows, gone back from, skipped; resumed exactly."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.accelerator import get_accelerator

from small_runs import RunReport, make_config, rows_by_step, run_rank
from synthetic import write_data_set
from trainer.checkpoint.format import step_name
from trainer.checkpoint.load import find_checkpoints, read_state, read_weights
from trainer.config import GuardConfig, TrainerConfig
from trainer.engine.deepspeed_setup import INITIAL_LOSS_SCALE
from trainer.engine.engine import Engine
from trainer.launch.run_directory import write_config
from trainer.telemetry.metrics import read_json_lines
from trainer.train import loop
from trainer.train.branch import branch_command
from trainer.train.divergence import BAD_STEPS_NAME, DivergenceError, DivergenceGuard, Fault, RollBack, note_bad_step
from worker_group import WorkerError, WorkerGroup

NAN, INF = float("nan"), float("inf")


# ---- the rules, by hand


def make_guard(**settings: Any) -> DivergenceGuard:
    return DivergenceGuard(GuardConfig(**settings))


def judge(
    guard: DivergenceGuard, step: int, *, loss: float = 5.0, norm: float = 1.0, scaled: bool = False, phase: int = 0
) -> Fault | None:
    bad = not (math.isfinite(norm) or scaled)
    return guard.judge(step, phase=phase, loss=loss, grad_norm=norm, norm_is_bad=bad)


def test_what_is_bad() -> None:
    """DeepLearningExamples#543, #1135: overflow or NaN with the published recipe; fp16's scaler may overflow."""
    guard = make_guard()
    assert judge(guard, 1) is None
    assert judge(guard, 2, norm=INF, scaled=True) is None
    for loss, norm, scaled in ((NAN, 1.0, False), (INF, 1.0, True), (5.0, NAN, False), (5.0, INF, False)):
        fault = judge(guard, 3, loss=loss, norm=norm, scaled=scaled)
        assert fault is not None
        assert fault.reason == f"loss {loss:g}, gradient norm {norm:g} (the update was not applied)"
        assert not fault.applied


def test_bad_steps_are_counted_in_a_row() -> None:
    guard = make_guard(max_bad_steps=2)
    judge(guard, 4, loss=NAN)
    assert not guard.is_exhausted()
    judge(guard, 5)
    judge(guard, 6, loss=NAN)
    assert (guard.bad_steps, guard.first_bad) == (1, 6)
    judge(guard, 7, loss=NAN)
    assert guard.is_exhausted()


def test_the_window_reaches_back_but_not_behind_the_checkpoint() -> None:
    guard = make_guard(max_bad_steps=2, skip_before=3)
    for step in (10, 11):
        judge(guard, step, loss=NAN)
    assert guard.go_back(step=11, to=4, tree={}) == [7, 11]
    assert [step for step in range(20) if guard.is_skipped(step)] == [7, 8, 9, 10, 11]
    assert (guard.bad_steps, guard.rollbacks) == (0, 1)
    judge(guard, 15, loss=NAN)
    assert guard.go_back(step=15, to=14, tree={}) == [15, 15]
    assert [step for step in range(20) if guard.is_skipped(step)] == [7, 8, 9, 10, 11, 15]


def test_the_run_stops_when_it_went_back_often_enough(tmp_path: Path) -> None:
    guard = make_guard(max_bad_steps=1, max_rollbacks=1)
    fault = judge(guard, 8, loss=NAN)
    assert fault is not None
    output = tmp_path / "my run"
    for step in (2, 7, 9):
        (output / "checkpoints" / step_name(step)).mkdir(parents=True)
    config = make_config(tmp_path, output)
    guard.check_may_go_back(RollBack(fault, step=8), config=config)
    guard.go_back(step=8, to=7, tree={})
    judge(guard, 9, loss=NAN)
    with pytest.raises(DivergenceError) as caught:
        guard.check_may_go_back(RollBack(fault, step=9), config=config)
    message = (
        f"step 9: loss nan, gradient norm 1 (the update was not applied), 1 bad step in a row from step 9 on, after "
        f"going back 1 time; their rows are in {output / BAD_STEPS_NAME}. With another precision or a higher "
        f"guard.max_rollbacks the same command continues from the last checkpoint; a lower rate, a longer warm-up or "
        f"other data need a new output: "
    )
    assert str(caught.value) == (
        f"{message}python trainer/run.py --config '{output}/config.yaml' 'resume_from={output}/checkpoints/"
        f"step-00000007' 'output={output}-from-7' optimizer.learning_rate=0.0015"
    )
    given = config.model_copy(update={"model": config.model.model_copy(update={"initialize_from": "/models/x"})})
    assert "step-00000007' model.initialize_from=null 'output=" in str(
        guard.give_up(RollBack(fault, step=9), config=given, why="")
    )
    chosen = {"initialize_from": "/models/x", "initialize_layers": "every_other", "new_tokens": "pieces"}
    given = config.model_copy(update={"model": config.model.model_copy(update=chosen)})
    forgotten = "model.initialize_from=null model.initialize_layers=all model.new_tokens=refuse 'output="
    assert f"step-00000007' {forgotten}" in branch_command(given, before=9)
    assert branch_command(config, before=2).endswith(f"'output={output}-from-0' optimizer.learning_rate=0.0015")
    phases = {"phases": ({"max_steps": 5}, {"learning_rate": 1e-3}), "schedule": {"span": "phase"}}
    phased = make_config(tmp_path, output, **phases)
    assert branch_command(phased, before=6).endswith(" phases.1.learning_rate=0.0005")
    assert branch_command(phased, before=5).endswith(" optimizer.learning_rate=0.0015")


def test_spikes_are_told_from_noise_once_the_usual_loss_is_known() -> None:
    guard = make_guard(spike_factor=1.5, spike_window=3)
    assert judge(guard, 1, loss=100.0) is None
    assert [judge(guard, step, loss=loss) for step, loss in ((2, 4.0), (3, 4.0), (4, 5.9))] == [None] * 3
    fault = judge(guard, 5, loss=7.1)  # the median of 4.0, 4.0, 5.9 is 4.0
    assert fault == Fault("loss 7.1, gradient norm 1: over 1.5 times the median 4 of 3 steps", applied=True)
    assert judge(guard, 6, loss=6.0) is None  # 7.1 did not enter the median
    assert make_guard(spike_window=1)._losses.maxlen == 1
    assert judge(make_guard(), 9, loss=1e9) is None


def test_the_usual_loss_is_that_of_the_phase() -> None:
    """Longer rows, or another corpus, have another loss: the first steps of a phase are no spikes for it."""
    settings = {"spike_factor": 1.5, "spike_window": 2}
    guard = make_guard(**settings)
    assert [judge(guard, step, loss=loss) for step, loss in ((1, 2.0), (2, 2.0))] == [None] * 2
    again = DivergenceGuard(
        GuardConfig(**settings), tree=json.loads(json.dumps(guard.to_tree()))
    )  # resumed where a phase ends
    for each in (guard, again):
        assert [judge(each, step, loss=loss, phase=1) for step, loss in ((3, 9.0), (4, 8.0))] == [None] * 2
        fault = judge(each, 5, loss=20.0, phase=1)
        assert fault is not None
        assert "the median 8.5 of 2 steps" in fault.reason
    guard.go_back(step=5, to=2, tree=make_guard().to_tree() | {"losses": [2.0, 2.0]})  # into the first phase
    assert judge(guard, 3, loss=2.9) is None
    assert judge(guard, 4, loss=9.0) is not None


def test_a_state_without_a_phase_is_of_the_first() -> None:
    """As runs of earlier versions wrote it."""
    tree = {"losses": [2.0, 2.0]}
    settings = GuardConfig(spike_factor=1.5, spike_window=2)
    assert judge(DivergenceGuard(settings, tree=tree), 3, loss=9.0) is not None
    assert judge(DivergenceGuard(settings, tree=tree), 3, loss=9.0, phase=1) is None


def test_the_state_goes_through_json_and_decides_the_same() -> None:
    guard = make_guard(max_bad_steps=3, spike_factor=2.0, spike_window=2)
    for step, loss in enumerate([1.0, 1.1, 9.0, NAN], start=1):
        judge(guard, step, loss=loss)
    guard.skips.append([7, 9])
    again = DivergenceGuard(
        GuardConfig(max_bad_steps=3, spike_factor=2.0, spike_window=2), tree=json.loads(json.dumps(guard.to_tree()))
    )
    assert again.to_tree() == guard.to_tree()
    assert judge(again, 5, loss=2.2) == judge(guard, 5, loss=2.2) is not None
    assert again.is_exhausted()
    assert again.is_skipped(8)
    guard.go_back(step=5, to=2, tree={"losses": [1.0, 1.1]})
    assert guard.to_tree()["losses"] == [1.0, 1.1]


def test_rows_are_noted_by_shard_and_row_group(tmp_path: Path) -> None:
    rows = [(1, 1, 0, 7), (1, 0, 2, 5), (1, 1, 0, 3), (2, 0, 2, 5)]
    for step in (3, 4):
        note_bad_step(tmp_path, step=step, epoch=1, fault=Fault("why", applied=False), rows=rows, shards=["a", "b"])
    records = read_json_lines(tmp_path / BAD_STEPS_NAME)
    assert [record["step"] for record in records] == [3, 4]
    assert records[0] == {
        "step": 3,
        "epoch": 1,
        "reason": "why",
        "applied": False,
        "rows": [
            {"epoch": 1, "shard": "a", "row_group": 2, "rows": [5]},
            {"epoch": 1, "shard": "b", "row_group": 0, "rows": [3, 7]},
            {"epoch": 2, "shard": "a", "row_group": 2, "rows": [5]},
        ],
    }


# ---- whole runs of two workers


def run_poisoned(rank: int, config: TrainerConfig, stop_at: int | None, how: str, steps: list[int]) -> RunReport:
    """As run_rank, but in `steps` lane 1 has a gradient of NaN, a loss of inf with a finite gradient, or a gradient
    that only fp16 cannot hold."""
    factors = {"gradient": NAN, "overflow": 1e6}
    seed, backward, forward = loop.dropout_seed, Engine.backward, Engine.__call__
    bad = False

    def noted(base: int, *, step: int, lane: int) -> int:
        nonlocal bad
        bad = step in steps and lane == 1
        return seed(base, step=step, lane=lane)

    def poisoned(engine: Engine, loss: torch.Tensor, *, last: bool) -> None:
        backward(engine, loss * factors[how] if bad and how in factors else loss, last=last)

    def lost(engine: Engine, *inputs: Any) -> Any:
        output = forward(engine, *inputs)
        return output._replace(mlm_loss_sum=output.mlm_loss_sum + INF) if bad and how == "loss" else output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "dropout_seed", noted)
        patch.setattr(Engine, "backward", poisoned)
        patch.setattr(Engine, "__call__", lost)
        patch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)  # slow on CPUs, but right
        return run_rank(rank, config, stop_at)


def run(
    group: WorkerGroup, config: TrainerConfig, *, how: str = "gradient", steps: list[int], stop_at: int | None = None
) -> RunReport:
    write_config(config)
    reports = group.run(run_poisoned, config, stop_at, how, steps)
    assert all(report.executed == reports[0].executed for report in reports)
    assert isinstance(reports[0], RunReport)
    return reports[0]


@pytest.fixture(scope="module")
def pair(worker_group: Callable[[int], WorkerGroup]) -> WorkerGroup:
    return worker_group(2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data_set(folder, shards=2, row_groups=2, rows=10, max_seq_length=32, vocabulary_size=256, validation_shards=0)
    return folder


def configure(data: Path, output: Path, **guard: Any) -> TrainerConfig:
    settings = {"max_bad_steps": 2, "skip_before": 1, **guard}
    return make_config(data, output, guard=settings, checkpoint={"every_steps": 2, "keep_last": 9})


def losses(output: Path) -> dict[int, tuple[str, str]]:
    return {
        record["step"]: (record["loss"].hex(), record["grad_norm"].hex())
        for record in read_json_lines(output / "metrics.jsonl")
        if record["loss"] is not None and record["grad_norm"] is not None
    }


@pytest.mark.parametrize("how", ["gradient", "loss"])
def test_a_bad_step_is_not_applied_and_the_run_goes_on(pair: WorkerGroup, data: Path, tmp_path: Path, how: str) -> None:
    """Of one lane on one rank; no rank applies it, also where the loss alone is not finite."""
    run(pair, configure(data, tmp_path / "clean").model_copy(update={"max_steps": 5}), steps=[], stop_at=4)
    config = configure(data, tmp_path / "run").model_copy(update={"max_steps": 5})
    report = run(pair, config, how=how, steps=[5])
    assert report.outcome.finished
    assert {step: values for step, values in losses(tmp_path / "run").items() if step < 5} == losses(tmp_path / "clean")
    before, after = (read_weights(find_checkpoints(tmp_path / name).folders[-1]) for name in ("clean", "run"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    state = read_state(find_checkpoints(tmp_path / "run").folders[-1])
    assert (state.step, state.steps_taken, state.guard["bad_steps"]) == (5, 4, 1)
    (record,) = read_json_lines(tmp_path / "run" / BAD_STEPS_NAME)
    assert record["step"] == 5
    shards = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
    noted = [(g["epoch"], shards.index(g["shard"]), g["row_group"], row) for g in record["rows"] for row in g["rows"]]
    assert sorted(noted) == rows_by_step(tmp_path / "run")[5]
    assert any("step 5: loss" in line and "its rows are in bad_steps.jsonl" in line for line in report.said)


def test_after_too_many_the_run_goes_back_and_passes_the_window_over(
    pair: WorkerGroup, data: Path, tmp_path: Path
) -> None:
    """DeepLearningExamples#543: back to the checkpoint of step 4, past the data of steps 5 to 7, on to the end."""
    report = run(pair, configure(data, tmp_path / "run"), steps=[6, 7])
    assert report.executed == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert report.outcome.finished
    assert any("back to the checkpoint of step 4; the data of steps 5 to 7 are skipped" in s for s in report.said)
    assert sorted(losses(tmp_path / "run")) == [1, 2, 3, 4, 8, 9]
    state = read_state(find_checkpoints(tmp_path / "run").folders[-1])
    assert (state.step, state.steps_taken) == (9, 6)
    assert state.guard["skips"] == [[5, 7]]
    assert state.plan_state["step"] == 9
    assert [record["step"] for record in read_json_lines(tmp_path / "run" / BAD_STEPS_NAME)] == [6, 7]
    assert sorted(rows_by_step(tmp_path / "run")) == [1, 2, 3, 4, 8, 9]

    for name, stop, steps in (("in the streak", 6, [6, 7]), ("after it", 8, [6, 7])):
        output = tmp_path / name
        run(pair, configure(data, output), steps=steps, stop_at=stop)
        run(pair, configure(data, output), steps=steps)
        assert losses(output) == losses(tmp_path / "run"), name
        assert read_state(find_checkpoints(output).folders[-1]).guard["skips"] == [[5, 7]]


def test_a_run_killed_right_after_going_back_goes_on_as_one_that_was_not(
    pair: WorkerGroup, data: Path, tmp_path: Path
) -> None:
    """The checkpoint that it went back to holds the window: the fault need not come again."""
    run(pair, configure(data, tmp_path / "whole"), steps=[6, 7])
    output = tmp_path / "run"
    run(pair, configure(data, output), steps=[6, 7], stop_at=8)
    newest = find_checkpoints(output).folders
    assert [read_state(folder).step for folder in newest] == [2, 4, 6, 8]
    for folder in newest[2:]:
        shutil.rmtree(folder)
    report = run(pair, configure(data, output), steps=[])
    assert report.executed == [8, 9]
    assert report.outcome.first_step == 4
    assert losses(output) == losses(tmp_path / "whole")


def test_fp16_recovers_from_overflows_without_going_back(pair: WorkerGroup, data: Path, tmp_path: Path) -> None:
    """Each halves the loss scale and is skipped, also more in a row than max_bad_steps. The run learns as one in
    fp32 that skips the same steps, and a run that stopped amid them goes on with the same bits."""
    planted = [4, 5, 6, 7, 20]

    def configure_long(name: str, **changes: Any) -> TrainerConfig:
        longer = {"max_steps": 40, "precision": "fp16", **changes}
        return configure(data, tmp_path / name).model_copy(update=longer)

    report = run(pair, configure_long("run"), how="overflow", steps=planted)
    assert report.executed == list(range(1, 41))
    records = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    assert [record["step"] for record in records if record["skipped"]] == planted
    assert not (tmp_path / "run" / BAD_STEPS_NAME).exists()
    state = read_state(find_checkpoints(tmp_path / "run").folders[-1])
    assert (state.step, state.steps_taken, state.guard["skips"]) == (40, 35, [])
    assert state.loss_scale == {"value": INITIAL_LOSS_SCALE / 2**5, "finite_steps": 20}

    run(pair, configure_long("stopped"), how="overflow", steps=planted, stop_at=6)
    run(pair, configure_long("stopped"), how="overflow", steps=planted)
    assert losses(tmp_path / "stopped") == losses(tmp_path / "run")
    patient = GuardConfig(max_bad_steps=9)
    run(pair, configure_long("fp32", precision="fp32", guard=patient), steps=planted)
    wanted = [record["loss"] for record in read_json_lines(tmp_path / "fp32" / "metrics.jsonl")]
    assert [record["loss"] for record in records] == pytest.approx(wanted, rel=0.02)
    assert wanted[-1] < 0.9 * wanted[0]


def test_faults_that_do_not_end_stop_the_run_with_a_clear_message(
    pair: WorkerGroup, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(WorkerError, match=r"DivergenceError: step 8: loss .*from step 7 on, after going back 1 time"):
        run(pair, configure(data, tmp_path / "run", skip_before=0), steps=[5, 6, 7, 8, 9])
    state = read_state(find_checkpoints(tmp_path / "run").folders[-1])
    assert (state.step, state.steps_taken) == (6, 4)  # written in the window that was skipped
    assert [record["step"] for record in read_json_lines(tmp_path / "run" / BAD_STEPS_NAME)] == [5, 6, 7, 8]
