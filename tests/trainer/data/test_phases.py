"""Phases: what they inherit, how long they are, where a checkpoint stands in them; the shipped example counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.dataset.manifest import Manifest, Shard, read_manifest
from pipeline.settings import ConfigError, load_settings, split_arguments
from small_runs import check_output, make_config
from synthetic import make_manifest, write_data_set
from trainer.config import PhaseConfig, TrainerConfig
from trainer.data.phases import OpenPhase, find_start, open_phases, order_seed, resolve_phases
from trainer.data.plan import Plan, PlanError, PlanState, lanes_of
from trainer.engine.schedules import learning_rate
from trainer.export.model_card import render_model_card
from trainer.launch import preflight
from trainer.launch.run_directory import write_config
from trainer.run import PROGRAM, main

ROW_GROUP = 4096


def load(*overrides: str) -> TrainerConfig:
    return load_settings(TrainerConfig, overrides=["data=d", "output=o", "max_steps=100", "batch.pairs=8", *overrides])


def long_manifest(*, length: int, tokens: int) -> Manifest:
    """A data set of about `tokens` tokens in rows of `length`; nothing of it is on a disk."""
    groups = round(tokens / (length * ROW_GROUP))
    shards = []
    for index, start in enumerate(range(0, groups, 64)):
        count = min(64, groups - start)
        shards.append(
            Shard(
                path=f"data/train-{index:05d}.parquet",
                split="train",
                rows=count * ROW_GROUP,
                tokens=count * ROW_GROUP * length,
                bytes=1,
                sha256="0",
                footer_sha256="0",
                row_group_rows=(ROW_GROUP,) * count,
                row_group_tokens=(ROW_GROUP * length,) * count,
                max_masked=20,
                masked=count * ROW_GROUP * 19 * 2,
            )
        )
    return make_manifest(shards, max_seq_length=length, max_predictions=20 if length == 128 else 77)


# ---- the shipped example


@pytest.fixture(scope="module")
def example(repository: Path) -> tuple[OpenPhase, ...]:
    """bert_large_two_phases.yaml over a corpus of 3.3 B tokens, cut to rows of 128 and of 512."""
    config = load_settings(TrainerConfig, file=repository / "trainer/configs/bert_large_two_phases.yaml")
    manifests = [long_manifest(length=length, tokens=3_300_000_000) for length in (128, 512)]
    return open_phases(resolve_phases(config), manifests=manifests)


def test_the_example_takes_a_million_steps_of_256_pairs(example: tuple[OpenPhase, ...]) -> None:
    short, long = example
    assert (short.phase.first_step, short.phase.last_step) == (0, 900_000)
    assert (long.phase.first_step, long.phase.last_step) == (900_000, 1_000_000)
    assert [opened.shape.pairs_mean for opened in example] == [256, 256]
    assert [opened.phase.num_steps * 256 for opened in example] == [230_400_000, 25_600_000]
    tokens = [opened.phase.num_steps * opened.shape.tokens_mean for opened in example]
    assert tokens == pytest.approx([29.5e9, 13.1e9], rel=2e-3)
    assert short.phase.config.workers <= min(short.plan.lanes, long.plan.lanes)


def test_the_example_has_the_published_optimizer(example: tuple[OpenPhase, ...]) -> None:
    """google-research/bert, optimization.py: Adam without bias correction, and its numbers."""
    for opened in example:
        found = opened.phase.config.optimizer
        assert (found.bias_correction, found.learning_rate, found.beta1, found.beta2) == (False, 1e-4, 0.9, 0.999)
        assert (found.epsilon, found.weight_decay, found.clip_norm) == (1e-6, 0.01, 1.0)


def test_the_example_reads_the_epochs_that_its_comments_state(example: tuple[OpenPhase, ...], repository: Path) -> None:
    assert [opened.epochs for opened in example] == pytest.approx([8.94, 3.97], abs=0.01)
    paper = 1_000_000 * 256 * 512 / 3.3e9
    assert paper == pytest.approx(39.7, abs=0.05)
    text = (repository / "trainer/configs/bert_large_two_phases.yaml").read_text()
    for number in ("8.94 and 3.97 epochs", "= 39.7", "230.4 M pairs, 29.5 B", "25.6 M pairs, 13.1 B", "42.6 B"):
        assert number in text, number
    assert example[1].describe_place(2) == "phase 2 of 2: steps 900,001 to 1,000,000, 3.97 epochs"


def test_the_epochs_of_the_example_are_those_of_its_plan(example: tuple[OpenPhase, ...]) -> None:
    """As many micro-batches in the longest lane as the shape says steps an epoch."""
    for opened in example:
        micro_batch = min(opened.plan.shape.tokens // opened.manifest.max_seq_length, opened.plan.shape.pairs)
        assert -(-int(opened.plan.lane_rows(0).max()) // micro_batch) == opened.shape.steps_per_epoch


def test_the_example_has_one_schedule_over_both_phases(repository: Path) -> None:
    config = load_settings(TrainerConfig, file=repository / "trainer/configs/bert_large_two_phases.yaml")
    rates = [learning_rate(step, config) for step in (5_000, 10_000, 900_000, 900_001, 1_000_000)]
    assert rates == pytest.approx([5e-5, 1e-4, 1e-4 * 0.100001, 1e-4 * 0.1, 1e-4 * 1e-6])


# ---- what a phase inherits


def test_a_run_without_phases_is_one() -> None:
    config = load()
    (phase,) = resolve_phases(config)
    assert (phase.index, phase.first_step, phase.last_step, phase.config) == (0, 0, 100, config)
    assert order_seed(7, phase=0) == 7


def test_a_phase_inherits_what_it_does_not_give() -> None:
    config = load(
        "batch={pairs: 8, lanes: 4, tokens_per_slot: 256}",
        "evaluation={every_steps: 10, max_pairs: 9}",
        "phases=[{share: 0.25}, {data: e, batch: {tokens: 512, lanes: 2}, evaluation: {max_pairs: 5}}]",
    )
    first, second = resolve_phases(config)
    assert first.config == config.model_copy(update={"phases": ()})
    assert (first.num_steps, second.first_step, second.last_step) == (25, 25, 100)
    assert (second.config.data, second.config.output) == ("e", "o")
    batch, evaluation = second.config.batch, second.config.evaluation
    assert (batch.pairs, batch.tokens, batch.lanes, batch.tokens_per_slot) == (None, 512, 2, 256)
    assert (evaluation.every_steps, evaluation.max_pairs) == (10, 5)
    assert order_seed(7, phase=1) not in (7, order_seed(7, phase=2), order_seed(8, phase=1))


def test_phases_survive_yaml_and_take_overrides(tmp_path: Path) -> None:
    config = load(f"output={tmp_path}", "phases=[{share: 0.5}, {}]", "phases.1.batch.pairs=16", "phases.1.data=e")
    assert config.phases == (PhaseConfig(share=0.5), PhaseConfig.model_validate({"data": "e", "batch": {"pairs": 16}}))
    assert load_settings(TrainerConfig, file=write_config(config)) == config


@pytest.mark.parametrize(
    ("phases", "steps"),
    [
        ("[{share: 0.9}, {share: 0.1}]", (90, 10)),
        ("[{share: 0.333}, {share: 0.333}, {share: 0.334}]", (33, 34, 33)),
        ("[{max_steps: 7}, {}, {share: 0.5}]", (7, 43, 50)),
        ("[{}]", (100,)),
    ],
)
def test_lengths(phases: str, steps: tuple[int, ...]) -> None:
    assert load(f"phases={phases}").phase_steps == steps


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["phases=[{}, {}]"], "phases 0, 1 set neither max_steps nor share"),
        (["phases=[{max_steps: 60}, {max_steps: 41}]"], "take 101 steps in total, but max_steps=100; make them equal"),
        (["phases=[{max_steps: 100}, {}]"], r"phases\.1 gets 0 of max_steps=100 steps"),
        (["phases=[{max_steps: 120}, {}]"], r"phases\.1 gets -20 of max_steps=100 steps"),
        (
            ["phases=[{max_steps: 50, share: 0.5}, {}]"],
            r"phases\.0: max_steps=50 and share=0\.5 both set the phase's length",
        ),
        (["phases=[{share: 0.5}, {batch: {exact_pairs: true, tokens: 9}}]"], r"phases\.1: batch\.exact_pairs needs"),
        (["phases=[{batch: {pairs: 4, tokens: 9}}]"], r"phases\.0: give exactly one of batch\.pairs and batch\.tokens"),
        (["phases=[{batch: {lanes: 2}}]", "workers=3"], r"workers=3 exceeds phases\.0\.batch\.lanes=2"),
        (["phases=[{learning_rate: 1}]"], r"phases\.0 has its own learning_rate or schedule.*set schedule\.span=phase"),
        (["phases=[{schedule: {warmup_steps: 1}}]"], r"phases\.0 has its own learning_rate or schedule"),
        (
            ["phases=[{share: 0.9}, {}]", "schedule={span: phase, warmup_steps: 10}"],
            r"phases\.1\.schedule\.warmup_steps=10 leaves none of the 10 steps of phases\.1",
        ),
        (["phases=[{dat: x}]"], r"unknown key 'phases\.0\.dat'.*did you mean 'data'"),
    ],
)
def test_refusals(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(*overrides)


def test_a_schedule_may_span_a_phase() -> None:
    config = load(
        "optimizer.learning_rate=1",
        "schedule={span: phase, warmup_steps: 10, final_factor: 0.5}",
        "phases=[{max_steps: 60}, {learning_rate: 0.1, schedule: {warmup_fraction: 0.5, name: constant}}]",
    )
    steps = (5, 10, 11, 36, 60, 61, 70, 80, 81, 100, 200)
    rates = [learning_rate(step, config) for step in steps]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.51, 0.005, 0.05, 0.1, 0.1, 0.1, 0.1])


def test_the_last_update_of_each_phase_learns() -> None:
    config = load(
        "optimizer.learning_rate=1", "schedule={span: phase, warmup_steps: 0}", "phases=[{max_steps: 60}, {}]"
    )
    rates = [learning_rate(step, config) for step in (1, 60, 61, 100)]
    assert rates == pytest.approx([1.0, 1 / 60, 1.0, 1 / 40])


# ---- data sets and plans


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("sets")
    write_data_set(root / "short", rows=10, max_seq_length=32, vocabulary_size=256)
    write_data_set(root / "long", rows=10, max_seq_length=48, vocabulary_size=256, seed=1)
    return root / "short", root / "long"


def two_phases(sets: tuple[Path, Path], output: Path, **changes: Any) -> TrainerConfig:
    second = {"data": str(sets[1]), "batch": {"pairs": 6, "lanes": 3}}
    return make_config(sets[0], output, **{"phases": ({"max_steps": 4}, second), **changes})


def test_what_each_phase_reads_is_said_before_anything_starts(sets: tuple[Path, Path], tmp_path: Path) -> None:
    text = "\n".join(preflight.check(two_phases(sets, tmp_path / "run")).lines)
    assert "phase 1 of 2: steps 1 to 4" in text
    assert f"data: {sets[0]}: 40 pairs" in text
    assert "phase 2 of 2: steps 5 to 9" in text
    assert "rows of at most 48 tokens" in text
    assert "plan: 3 lanes" in text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("lanes", "workers", "empty"), [(8, 5, 2), (4, 3, 2), (6, 4, 2), (8, 4, 0), (8, 1, 0)])
def test_micro_steps_that_compute_nothing_are_said(
    sets: tuple[Path, Path], tmp_path: Path, lanes: int, workers: int, empty: int
) -> None:
    config = make_config(sets[0], tmp_path / "run", workers=workers, batch={"pairs": 16, "lanes": lanes})
    found = [line for line in preflight.check(config).lines if "empty micro-steps" in line]
    micro_steps = [lane for rank in range(workers) for lane in lanes_of(rank, world_size=workers, lanes=lanes)]
    assert micro_steps.count(-1) == empty
    share = f"{empty / len(micro_steps):.0%}"
    expected = (
        f"WARNING: empty micro-steps: {empty} of {len(micro_steps)} a step, {share} of the time of all workers, since "
        f"{lanes} lanes run on {workers} workers; give a number of workers that divides the lanes "
    )
    assert [line.partition("(1, ")[0] for line in found] == ([expected] if empty else [])
    if (lanes, workers) == (8, 5):
        assert found[0].endswith("divides the lanes (1, 2, 4, 8), or in a new run batch.lanes=10")


def test_another_vocabulary_in_a_phase_is_refused_before_anything_starts(
    sets: tuple[Path, Path], tmp_path: Path
) -> None:
    write_data_set(tmp_path / "other", rows=10, max_seq_length=32, vocabulary_size=300)
    with pytest.raises(ConfigError, match=r"phases\.1\.data=.*other: its vocabulary .*300 entries.*with one vocab"):
        preflight.check(two_phases((sets[0], tmp_path / "other"), tmp_path / "run"))


def test_a_phase_that_does_not_fit_model_or_workers_is_refused(sets: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"long: max_seq_length=48 exceeds model\.max_positions=40"):
        preflight.check(two_phases(sets, tmp_path / "run", model={"size": "tiny", "max_positions": 40}))
    phases = ({"max_steps": 4, "batch": {"lanes": 4}}, {"batch": {"pairs": 1}})
    with pytest.raises(ConfigError, match=r"workers=2 exceeds the 1 lane .*set phases\.1\.batch\.lanes=2"):
        preflight.check(make_config(sets[0], tmp_path / "run", batch={"pairs": 8}, phases=phases))
    phases = ({"max_steps": 4}, {"batch": {"pairs": 2}})
    with pytest.raises(PlanError, match=r"phases\.1: batch\.pairs=2 .*fewer than batch\.lanes=4"):
        preflight.check(make_config(sets[0], tmp_path / "run", phases=phases))


def test_paths_of_phases_are_relative_to_the_current_directory(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(
        "data: set\noutput: run\nbatch: {pairs: 8}\nmax_steps: 5\nphases: [{max_steps: 2}, {data: sub/../other}, "
        "{data: /abs, max_steps: 1}]\n"
    )
    config = preflight.read_config(split_arguments(["--config", "c.yaml"], program=PROGRAM), repository=repository)
    assert [phase.data for phase in config.phases] == [None, str(tmp_path / "other"), "/abs"]
    assert config.phase_steps == (2, 2, 1)


# ---- where a checkpoint stands


def opened(config: TrainerConfig) -> tuple[OpenPhase, ...]:
    phases = resolve_phases(config)
    return open_phases(phases, manifests=[read_manifest(phase.config.data) for phase in phases])


def at(plan: Plan, *, step: int, phase: int, phase_step: int) -> PlanState:
    return PlanState(plan.hash, step, 1, (2,) * plan.lanes, phase, phase_step, phase_step)


def test_the_next_step_is_found_in_and_between_phases(sets: tuple[Path, Path], tmp_path: Path) -> None:
    phases = opened(two_phases(sets, tmp_path))
    first, second = (each.plan for each in phases)
    assert find_start(phases, None) == first.start()
    inside = at(first, step=3, phase=0, phase_step=3)
    assert find_start(phases, inside) == inside
    begin = find_start(phases, at(first, step=4, phase=0, phase_step=4))
    assert begin == PlanState(second.hash, 4, 0, (0, 0, 0), 1, 0, 0)
    for step in (5, 9):
        state = at(second, step=step, phase=1, phase_step=step - 4)
        assert find_start(phases, state) == state
    past_the_end = at(second, step=12, phase=1, phase_step=8)  # max_steps was lowered: all is done
    assert find_start(phases, past_the_end) == past_the_end


def test_a_state_without_phases_is_of_the_first(sets: tuple[Path, Path], tmp_path: Path) -> None:
    phases = opened(two_phases(sets, tmp_path))
    tree = at(phases[0].plan, step=3, phase=0, phase_step=3).to_tree()
    del tree["phase"], tree["phase_step"]
    tree["epoch_step"] = 1  # as another release wrote
    assert PlanState.from_tree(tree) == at(phases[0].plan, step=3, phase=0, phase_step=3)


def test_a_state_of_other_phases_is_refused(sets: tuple[Path, Path], tmp_path: Path) -> None:
    phases = opened(two_phases(sets, tmp_path))
    first, second = (each.plan for each in phases)
    with pytest.raises(PlanError, match=r"step 6 is of phase 2, counted from 0, but this run has 2 phase"):
        find_start(phases, at(first, step=6, phase=2, phase_step=1))
    with pytest.raises(PlanError, match=r"step 6 is 1 steps into phase 1, which began after step 5.*steps 5 to 9"):
        find_start(phases, at(second, step=6, phase=1, phase_step=1))
    with pytest.raises(PlanError, match=r"step 5 is 5 steps into phase 0.*takes the steps 1 to 4: restore the phases'"):
        find_start(phases, at(first, step=5, phase=0, phase_step=5))
    with pytest.raises(PlanError, match=r"step 5 belongs to plan"):
        find_start(phases, at(first, step=5, phase=1, phase_step=1))


def test_phases_that_have_not_begun_may_change(sets: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = two_phases(sets, run)
    write_config(config)
    (run / "checkpoints" / "step-00000004").mkdir(parents=True)
    later = two_phases(sets, run, phases=({"max_steps": 4}, {"data": "moved", "batch": {"pairs": 12, "lanes": 3}}))
    (line,) = check_output(later)
    assert line == "changed since this run began: phases.1.batch.pairs: 6 -> 12"
    begun = two_phases(sets, run, phases=({"max_steps": 4, "batch": {"pairs": 12}}, config.phases[1].model_dump()))
    with pytest.raises(ConfigError, match=r"other settings \(phases\.0\.batch\.pairs: None -> 12\)"):
        check_output(begun)
    (run / "checkpoints" / "step-00000005").mkdir()
    with pytest.raises(ConfigError, match=r"other settings \(phases\.1\.batch\.pairs: 6 -> 12\)"):
        check_output(later)


def test_a_finished_run_may_get_a_second_phase(sets: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_config(make_config(sets[0], run, max_steps=4))
    (run / "checkpoints" / "step-00000004").mkdir(parents=True)
    line, rate = check_output(two_phases(sets, run))
    assert "max_steps: 4 -> 9" in line
    assert "phases.1.batch.pairs: None -> 6" in line
    assert rate.startswith("max_steps 4 -> 9 stretches the schedule over other steps: ")


def test_the_model_card_tells_of_the_phases(sets: tuple[Path, Path], tmp_path: Path) -> None:
    facts: dict[str, Any] = {"data_card": "", "step": 9, "num_parameters": 1, "training": None, "evaluation": None}
    manifest = read_manifest(sets[1])
    card = render_model_card(two_phases(sets, tmp_path), manifest=manifest, phase=1, **facts)
    assert "This is the data set of phase 2 of 2 (see Training), to which the checkpoint belongs." in card
    assert "phases:\n- max_steps: 4\n- batch:\n    pairs: 6\n    lanes: 3\n" in card
    assert str(sets[1]) not in card
    assert "phases" not in render_model_card(make_config(sets[0], tmp_path), manifest=manifest, **facts)


# ---- --fresh


def test_fresh_refuses_an_output_that_holds_a_run(
    sets: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(sets[0], tmp_path / "run")
    saved = write_config(config)
    words = ["--config", str(saved), "--fresh"]
    assert main(words) == 2
    assert "already holds a run (no checkpoint yet), and --fresh begins a new one; give another output" in (
        capsys.readouterr().err
    )
    (tmp_path / "run" / "checkpoints" / "step-00000004").mkdir(parents=True)
    assert main(words) == 2
    assert "already holds a run (newest checkpoint: step 4)" in capsys.readouterr().err
    monkeypatch.setattr("trainer.run.train", lambda checked, **_: 0 if checked.config.output.endswith("new") else 1)
    assert main([*words, f"output={tmp_path / 'new'}"]) == 0
