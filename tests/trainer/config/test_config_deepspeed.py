"""Raw DeepSpeed settings: each that is taken is one of DeepSpeed's, of its type, and leaves the curve as it is."""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any, get_args

import numpy as np
import pytest

from pipeline.settings import ConfigError, load_settings
from toy_training import make_config, make_engine, train
from trainer.config.deepspeed_settings import _REFUSED, DeepSpeedSettings, ZeroSettings, zero_stages_of
from trainer.config.schema import TrainerConfig
from worker_group import WorkerGroup

TRAINER = ["output=out", "data=set", "max_steps=1000", "batch.pairs=8", "zero_stage=3"]
ZERO_KEYS = sorted(ZeroSettings.model_fields)


def load(raw: str) -> TrainerConfig:
    return load_settings(TrainerConfig, overrides=[*TRAINER, f"deepspeed={raw}"])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("{wall_clock_breakdwn: true}", r"unknown key 'deepspeed\.wall_clock_breakdwn' .*did you mean 'wall_clock_br"),
        ("{zero_optimisation: {overlap_comm: true}}", r"unknown key 'deepspeed\.zero_optimisation' .*did you mean 'z"),
        (
            "{zero_optimization: {reduce_scater: true}}",
            r"'deepspeed\.zero_optimization\.reduce_scater' .*'reduce_scatter'",
        ),
        ("{zero_optimization: {overlap_comm: true}}", r"overlap_comm: has raced with compiled models .*; leave it out"),
        ("{xyz: 1}", r"unknown key 'deepspeed\.xyz' \(value 1\); known: zero_optimization, wall_clock_breakdown"),
        ("{gradient_allreduce_op: sum}", r"deepspeed\.gradient_allreduce_op: changes what is computed; leave it out"),
        ("{prescale_gradients: true}", r"deepspeed\.prescale_gradients: changes what is computed"),
        ("{data_types: {grad_accum_dtype: bf16}}", r"deepspeed\.data_types\.grad_accum_dtype: changes what is"),
        ("{communication_data_type: fp32}", r"has its own field .*; set communication_data_type"),
        ("{optimizer: {type: Lamb}}", r"deepspeed\.optimizer\.type: has its own field .*set optimizer\.\*"),
        ("{bf16: {check_grad_overflow: true}}", r"deepspeed\.bf16\.check_grad_overflow: .*set precision"),
        ("{wandb: {enabled: true}}", r"deepspeed\.wandb\.enabled: .*set logging\.tracker"),
        ("{steps_per_print: 5}", r"deepspeed\.steps_per_print: .*set logging\.every_steps"),
        ("{flops_profiler: {enabled: true}}", r"deepspeed\.flops_profiler\.enabled: .*python -m trainer\.profiling"),
        ("{zero_optimization: {offload_optimizer: {device: cpu}}}", r"offload_optimizer\.device: is not supported"),
        ("{zero_optimization: {zero_quantized_gradients: true}}", r"zero_quantized_gradients: changes what is"),
        (
            "{zero_optimization: {reduce_scatter: 1}}",
            r"deepspeed\.zero_optimization\.reduce_scatter=1: .*valid boolean",
        ),
        ("{zero_optimization: {reduce_bucket_size: 5.5}}", r"reduce_bucket_size=5\.5: .*valid integer"),
        ("{zero_optimization: {reduce_bucket_size: 0}}", r"reduce_bucket_size=0: .*greater than or equal to 1"),
        ("{zero_optimization: true}", r"deepspeed\.zero_optimization=True: must be a mapping of settings"),
    ],
)
def test_what_is_not_taken_is_refused(raw: str, message: str) -> None:
    """DeepSpeed itself drops unknown keys at its top level without a word."""
    with pytest.raises(ConfigError, match=message):
        load(raw)


def test_numbers_as_deepspeed_writes_them() -> None:
    config = load("{zero_optimization: {reduce_bucket_size: 5e8}}")
    assert config.deepspeed.given() == {"zero_optimization": {"reduce_bucket_size": 500_000_000}}
    for nothing in ("{}", "{zero_optimization: {}}", "{zero_optimization: {reduce_scatter: null}}"):
        assert load(nothing).deepspeed.given() == {}


def plain_type(annotation: Any) -> Any:
    """The type inside Optional and Annotated."""
    for inner in get_args(annotation):
        if inner is not NoneType:
            return plain_type(inner)
    return annotation


@pytest.mark.parametrize("key", ZERO_KEYS)
def test_deepspeed_knows_each_key_and_its_type(key: str) -> None:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    fields = {field.alias or name: field for name, field in DeepSpeedZeroConfig.model_fields.items()}
    assert plain_type(fields[key].annotation) is plain_type(ZeroSettings.model_fields[key].annotation)
    value = True if plain_type(fields[key].annotation) is bool else 7
    DeepSpeedZeroConfig(stage=zero_stages_of(key)[0], **{key: value})
    assert f"zero_optimization.{key}" not in _REFUSED


def test_deepspeed_reads_each_key_of_the_top_level() -> None:
    from deepspeed.runtime.config import DeepSpeedConfig

    flags = sorted(DeepSpeedSettings.model_fields.keys() - {"zero_optimization"})
    assert flags == ["memory_breakdown", "wall_clock_breakdown"]
    for value in (False, True):
        read = DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **dict.fromkeys(flags, value)})
        assert [getattr(read, flag) for flag in flags] == [value] * len(flags)


VALUES = {
    "contiguous_gradients": False,
    "reduce_scatter": False,
    "allgather_partitions": False,
    "use_multi_rank_bucket_allreduce": False,
}
"""Other than what is derived or DeepSpeed's default; of the rest: 500 elements, less than a matrix of the model."""


def curve_of(rank: int, stage: int, zero: dict[str, Any]) -> list[tuple[float, float]]:
    config = make_config(zero_stage=stage, deepspeed={"zero_optimization": zero} if zero else {})
    engine = make_engine(config)
    curve = train(engine, config, first=1, last=4)
    engine.close()
    return curve


@pytest.mark.parametrize(("stage", "key"), [(stage, key) for key in ZERO_KEYS for stage in zero_stages_of(key)])
def test_no_key_changes_the_curve(worker_group: Callable[[int], WorkerGroup], stage: int, key: str) -> None:
    group = worker_group(2)
    found = group.run(curve_of, stage, {key: VALUES.get(key, 500)})[0]
    np.testing.assert_allclose(found, group.run(curve_of, stage, {})[0], rtol=1e-5)
