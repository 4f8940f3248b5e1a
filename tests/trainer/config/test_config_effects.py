"""A setting that was given and cannot have an effect is refused: key, value, why and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.settings import ConfigError, dump_yaml, load_settings, to_tree
from small_runs import check_output, make_config
from synthetic import write_data_set
from trainer.config.saved import read_run_config, validate_saved
from trainer.config.schema import TrainerConfig
from trainer.launch.preflight import check
from trainer.launch.run_directory import write_config

TRAINER = ["output=out", "data=set", "max_steps=1000", "batch.pairs=8"]


def load(*overrides: str) -> TrainerConfig:
    return load_settings(TrainerConfig, overrides=[*TRAINER, *overrides])


IDLE = [
    (["optimizer.momentum=0.9"], r"optimizer\.momentum=0\.9 .*optimizer\.name=adamw .*; set optimizer\.name=muon"),
    (["optimizer={name: sgd, beta2: 0.9}"], r"optimizer\.beta2=0\.9 .*=sgd does not use it; set .*=adamw, or leave"),
    (["optimizer={name: sgd, epsilon: 1e-3}"], r"optimizer\.epsilon=0\.001 .*=sgd does not use it"),
    (["optimizer={name: radam, bias_correction: false}"], r"optimizer\.bias_correction=False .*=radam does not"),
    (["guard.spike_window=7"], r"guard\.spike_window=7 has no effect: without .*; set guard\.spike_factor"),
    (
        ["guard={spike_factor: 2, spike_window: 1000}"],
        r"guard\.spike_factor=2\.0 .*guard\.spike_window=1000 .*the run has 1000 steps; lower guard\.spike_window",
    ),
    (
        ["guard.spike_factor=2", "phases=[{max_steps: 50}, {max_steps: 50}, {}]", "max_steps=190"],
        r"guard\.spike_factor=2\.0 .*the longest phase has 90 steps",
    ),
    (
        ["guard={max_rollbacks: 0, skip_before: 5}"],
        r"guard\.skip_before=5 .*guard\.max_rollbacks=0 the run never rolls back; raise guard\.max_rollbacks",
    ),
    (
        ["schedule={name: constant, final_factor: 0.1}"],
        r"schedule\.final_factor=0\.1 .*schedule\.name=constant never falls; set schedule\.name=linear, or leave",
    ),
    (
        ["schedule={warmup_steps: 5, warmup_fraction: 0.5}"],
        r"schedule\.warmup_fraction=0\.5 .*schedule\.warmup_steps=5 replaces it; set schedule\.warmup_steps=null",
    ),
    (["schedule.span=phase"], r"schedule\.span=phase .*the run has no phases; give phases"),
    (
        ["schedule.span=phase", "phases=[{max_steps: 10}, {schedule: {name: constant, final_factor: 0.5}}]"],
        r"phases\.1\.schedule\.final_factor=0\.5 .*never falls",
    ),
    (["schedule={name: noam, fall_from: start}"], r"schedule\.fall_from=start .*set schedule\.name=linear, or leave"),
    (
        ["schedule.span=phase", "phases=[{max_steps: 10}, {schedule: {name: constant, fall_from: start}}]"],
        r"phases\.1\.schedule\.fall_from=start .*never falls",
    ),
    (
        ["schedule={span: phase, final_factor: 0.5, name: constant}", "phases=[{max_steps: 10}, {}]"],
        r"^defaults: schedule\.final_factor=0\.5",
    ),
    (
        ["schedule.span=phase", "phases=[{max_steps: 10}, {schedule: {warmup_steps: 1, warmup_fraction: 0.5}}]"],
        r"phases\.1\.schedule\.warmup_fraction=0\.5 .*phases\.1\.schedule\.warmup_steps=1 replaces it",
    ),
    (
        ["checkpoint={keep_best: 2, every_steps: 300}", "evaluation.every_steps=400"],
        r"checkpoint\.keep_best=2 .*: none of .* within max_steps=1000, one every 300 steps, is evaluated; make",
    ),
    (["checkpoint={keep_best: 2, every_steps: 2000}", "evaluation.every_steps=100"], r"checkpoint\.keep_best=2"),
    (
        ["checkpoint={keep_best: 1, every_steps: 100}", "phases=[{max_steps: 50}, {evaluation: {every_steps: 999}}]"],
        r"checkpoint\.keep_best=1 .*none of the checkpoints .*is evaluated",
    ),
    (
        ["checkpoint={keep_every_steps: 700, every_steps: 300}"],
        r"checkpoint\.keep_every_steps=700 .*make it a multiple of checkpoint\.every_steps",
    ),
    (["working_folder=here"], r"working_folder=here .*output=out is on a disk"),
    (["launcher=processes", "cpus_per_worker=2"], r"cpus_per_worker=2\.0 .*it is for Ray, .*set launcher=ray"),
    (["launcher=processes", "start_timeout_s=9"], r"start_timeout_s=9 .*it is for Ray"),
    (["launcher=processes", "resize_interval_s=9"], r"resize_interval_s=9 .*it is for Ray"),
    (["launcher=processes", "ingest.object_store_mb=9"], r"ingest\.object_store_mb=9 .*it is for Ray"),
    (["device=cuda", "cpus_per_worker=2"], r"cpus_per_worker=2\.0 .*device=cuda"),
    (["resize_interval_s=9"], r"resize_interval_s=9 .*; set min_workers"),
    (
        ["zero_stage=2", "deepspeed={zero_optimization: {stage3_max_live_parameters: 5}}"],
        r"deepspeed\.zero_optimization\.stage3_max_live_parameters=5 .*for ZeRO 3, and zero_stage=2; set zero_stage=3",
    ),
    (
        ["zero_stage=3", "deepspeed={zero_optimization: {allgather_bucket_size: 5}}"],
        r"allgather_bucket_size=5 .*for ZeRO 1 and 2, and zero_stage=3; set zero_stage=1",
    ),
    (
        ["zero_stage=0", "precision=fp32", "deepspeed={zero_optimization: {reduce_scatter: false}}"],
        r"reduce_scatter=False .*for ZeRO 1 and 2 and 3, and zero_stage=0",
    ),
    (["batch.lanes=2", "batch.greatest_slot=512"], r"batch\.greatest_slot=512 .*derived.*; leave out batch\.lanes and"),
    (["batch.tokens_per_slot=64", "batch.greatest_slot=512"], r"batch\.greatest_slot=512 has no effect"),
    (
        ["batch.greatest_slot=512", "phases=[{max_steps: 9, batch: {lanes: 2}}, {batch: {tokens_per_slot: 64}}]"],
        r"batch\.greatest_slot=512 has no effect",
    ),
    (
        ["phases=[{max_steps: 50, evaluation: {every_steps: 51}}, {}]"],
        r"phases\.0\.evaluation\.every_steps=51 .*the phase ends at step 50",
    ),
    (
        ["evaluation.max_pairs=7", "phases=[{max_steps: 9, evaluation: {max_pairs: 5}}, {evaluation: {max_pairs: 6}}]"],
        r"evaluation\.max_pairs=7 has no effect: every phase has its own; leave it out of a phase, or leave",
    ),
    (
        [
            "optimizer.learning_rate=5e-3",
            "schedule.span=phase",
            "phases=[{max_steps: 9, learning_rate: 1e-3}, {learning_rate: 1e-4}]",
        ],
        r"optimizer\.learning_rate=0\.005 has no effect: every phase has its own",
    ),
    (
        [
            "schedule={span: phase, warmup_fraction: 0.5}",
            "phases=[{max_steps: 9, schedule: {warmup_steps: 1}}, {schedule: {warmup_fraction: 0.2}}]",
        ],
        r"schedule\.warmup_fraction=0\.5 has no effect: every phase has its own",
    ),
    (
        ["batch.lanes=2", "phases=[{max_steps: 9, batch: {lanes: 4}}, {batch: {lanes: 8}}]"],
        r"batch\.lanes=2 has no effect: every phase has its own",
    ),
    (["cuda_graphs=true", "compile=false"], r"cuda_graphs=True has no effect: .*compile=False; leave compile out"),
    (["cuda_graphs=true", "zero_stage=3"], r"cuda_graphs=True has no effect: it needs zero_stage=1 or 2"),
    (["cuda_graphs=true", "zero_stage=0", "precision=fp32"], r"cuda_graphs=True has .*zero_stage=0; set zero_stage=1"),
    (["cuda_graphs=true", "device=cpu"], r"cuda_graphs=True has no effect: the run is on the CPU; leave cuda_graphs"),
    (["self_check=false", "compile=false"], r"self_check=False has no effect: .*compile=False; leave compile out"),
    (
        ["communication_data_type=fp32", "precision=fp32"],
        r"communication_data_type=fp32 has no effect: precision=fp32 sends fp32 anyway",
    ),
]


@pytest.mark.parametrize(("overrides", "message"), IDLE)
def test_what_cannot_have_an_effect_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(*overrides)


def test_all_of_them_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"guard\.spike_window=7 has no .*; schedule\.span=phase has no effect"):
        load("schedule.span=phase", "guard.spike_window=7")


@pytest.mark.parametrize(
    "overrides",
    [
        ["guard={spike_factor: 2, spike_window: 999}"],
        [
            "schedule={name: constant, span: phase, final_factor: 0.5}",
            "phases=[{max_steps: 9}, {schedule: {name: linear}}]",
        ],
        [
            "schedule.span=phase",
            "phases=[{max_steps: 9}, {schedule: {warmup_fraction: 0.5}}]",
            "schedule.warmup_steps=3",
        ],
        ["checkpoint={keep_best: 1, every_steps: 250}", "evaluation.every_steps=500"],
        ["checkpoint={keep_best: 1, every_steps: 50}", "phases=[{max_steps: 500}, {}]"],  # the phase's end is evaluated
        ["checkpoint={keep_best: 1, every_steps: 9}", "phases=[{max_steps: 5}, {evaluation: {every_steps: 90}}]"],
        ["checkpoint={keep_every_steps: 600, every_steps: 300}"],
        ["checkpoint.keep_every_steps=5000"],  # nothing is due in a run as short
        ["output=s3://bucket/run", "working_folder=here"],
        ["min_workers=1", "workers=2", "batch.lanes=4", "resize_interval_s=9"],
        ["zero_stage=3", "deepspeed={zero_optimization: {stage3_max_live_parameters: 5}}"],
        ["batch.greatest_slot=512"],
        ["batch.greatest_slot=512", "phases=[{max_steps: 9, batch: {lanes: 2}}, {}]"],
        ["evaluation.every_steps=1000"],
        ["evaluation.every_steps=1001"],
        ["evaluation.max_pairs=7", "phases=[{max_steps: 9, evaluation: {max_pairs: 5}}, {}]"],
        ["self_check=false"],
        ["cuda_graphs=true", "zero_stage=2"],
        ["communication_data_type=fp32"],
    ],
)
def test_what_has_one_is_not(overrides: list[str]) -> None:
    load(*overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["launcher=processes"],
        ["schedule={name: constant, warmup_steps: 3}"],
        ["guard.max_rollbacks=0"],
        ["phases=[{max_steps: 9}, {}]", "zero_stage=3", "device=cuda"],
    ],
)
def test_a_default_is_no_promise(tmp_path: Path, overrides: list[str]) -> None:
    """A config with every field, as a run saves it, is one that a user may give."""
    file = tmp_path / "config.yaml"
    config = load(*overrides)
    file.write_text(dump_yaml(config))
    assert load_settings(TrainerConfig, file=file) == config


def save_as_before(run: Path, config: TrainerConfig, **sections: Any) -> None:
    """RUN/config.yaml of a version that refused nothing."""
    write_config(config)
    tree = to_tree(config)
    for name, changes in sections.items():
        tree[name] = {**tree[name], **changes}
    (run / "config.yaml").write_text(yaml.safe_dump(tree))


def test_runs_of_earlier_versions_go_on(tmp_path: Path) -> None:
    """What is refused now stands in their config.yaml: it loads, and does not differ from the command without it."""
    config = make_config(tmp_path, tmp_path / "run", schedule={"name": "constant", "warmup_steps": 3})
    raw = {
        "gradient_allreduce_op": "sum",
        "zero_optimisation": {"overlap_comm": True},
        "zero_optimization": {"oc": True},
    }
    save_as_before(tmp_path / "run", config, schedule={"final_factor": 0.5, "warmup_fraction": 0.25}, deepspeed=raw)
    saved = read_run_config(tmp_path / "run")
    assert saved is not None
    assert (saved.schedule.final_factor, saved.deepspeed.given()) == (0.5, {})
    assert check_output(config) == []
    falling = make_config(
        tmp_path, tmp_path / "run", schedule={"name": "linear", "final_factor": 0.1, "warmup_steps": 3}
    )
    with pytest.raises(ConfigError, match=r"schedule\.final_factor: 0\.5 -> 0\.1"):
        check_output(falling)


def test_a_checkpoint_holds_what_the_workers_settled(tmp_path: Path) -> None:
    """device=auto became cuda, where cpus_per_worker has no effect: the checkpoint must load all the same."""
    settled = load("cpus_per_worker=2").model_copy(update={"device": "cuda"})
    assert validate_saved(to_tree(settled), origin="state.json") == settled


# ---- what the data set tells


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One that holds rows out, and one that does not."""
    root = tmp_path_factory.mktemp("sets")
    write_data_set(root / "some", rows=10, max_seq_length=32, vocabulary_size=256)
    write_data_set(root / "none", rows=10, max_seq_length=32, vocabulary_size=256, validation_shards=0)
    return root / "some", root / "none"


BOTH = {"checkpoint": {"every_steps": 1, "keep_best": 1}, "evaluation": {"every_steps": 1}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluation": {"max_pairs": 16}}, r"evaluation\.max_pairs=16 has no effect: the data set holds no rows out"),
        ({"evaluation": {"max_pairs": None}}, r"evaluation\.max_pairs=None has no effect"),
        ({"evaluation": {"every_steps": 2}}, r"evaluation\.every_steps=2 has no effect"),
        (BOTH, r"evaluation\.every_steps=1 .*checkpoint\.keep_best=1 has no effect: no checkpoint is evaluated on"),
    ],
)
def test_evaluation_without_rows_held_out_is_refused(
    sets: tuple[Path, Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check(make_config(sets[1], tmp_path / "run", **changes))
    check(make_config(sets[0], tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


def test_evaluation_is_looked_at_phase_by_phase(sets: tuple[Path, Path], tmp_path: Path) -> None:
    some, none = map(str, sets)

    def check_phases(*phases: dict[str, Any], **changes: Any) -> None:
        check(make_config(sets[0], tmp_path / "run", **{"phases": phases, "evaluation": {}, **changes}))

    first, second = {"data": none, "max_steps": 3}, {"data": some}
    check_phases(first, second, **BOTH)  # the second phase inherits them
    with pytest.raises(ValueError, match=r"^phases\.0\.evaluation\.max_pairs=5 .*data set .*none holds no rows out"):
        check_phases({**first, "evaluation": {"max_pairs": 5}}, second)
    with pytest.raises(ValueError, match=r"^evaluation\.max_pairs=7 has no effect"):
        check_phases(first, {**second, "evaluation": {"max_pairs": 5}}, evaluation={"max_pairs": 7})
    # Step 8 has both, but lies in the phase without such rows; step 5 ends a phase without a checkpoint.
    keep = {"checkpoint": {"every_steps": 4, "keep_best": 1}, "evaluation": {"every_steps": 8}}
    with pytest.raises(ValueError, match=r"checkpoint\.keep_best=1 has no effect"):
        check_phases({**second, "max_steps": 5}, {"data": none}, **keep)
