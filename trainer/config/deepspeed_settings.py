"""The DeepSpeed settings that a run may set directly: those that change speed, memory or logs, but not the results.

Invariant: every other key is refused. DeepSpeed 0.19.8 silently drops unknown keys at its top level. Some known keys
change the gradients: gradient_allreduce_op=sum multiplies the gradients by the number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from pipeline.settings import Settings, nested_settings

_CHANGES_RESULTS = "changes what is computed; leave it out"
_PROFILE = "is not accepted; `python -m trainer.profiling` shows where a step's time goes"
_RACES = "has raced with compiled models (DeepSpeed#8061, #5545) and stays off; leave it out"
_NOT_SUPPORTED = "is not supported: this engine manages optimizer and checkpoints itself; leave it out"
_REFUSED = {
    "train_batch_size": "batch.*",
    "train_micro_batch_size_per_gpu": "batch.*",
    "gradient_accumulation_steps": "batch.lanes",
    "managed_gradient_accumulation": "batch.lanes",
    "gradient_clipping": "optimizer.clip_norm",
    "optimizer": "optimizer.*",
    "scheduler": "schedule.*",
    "zero_optimization.stage": "zero_stage",
    "bf16": "precision",
    "fp16": "precision",
    "torch_autocast": "precision",
    "communication_data_type": "communication_data_type",
    "compile": "compile",
    "checkpoint": "checkpoint.*",
    "steps_per_print": "logging.every_steps",
    "tensorboard": "logging.tracker",
    "wandb": "logging.tracker",
    "csv_monitor": "logging.tracker",
    "flops_profiler": _PROFILE,
    "comms_logger": _PROFILE,
    "gradient_allreduce_op": _CHANGES_RESULTS,
    "prescale_gradients": _CHANGES_RESULTS,
    "gradient_predivide_factor": _CHANGES_RESULTS,
    "data_types": _CHANGES_RESULTS,
    "zero_optimization.overlap_comm": _RACES,
    "zero_optimization.zero_quantized_weights": _CHANGES_RESULTS,
    "zero_optimization.zero_quantized_gradients": _CHANGES_RESULTS,
    "zero_optimization.zero_quantized_nontrainable_weights": _CHANGES_RESULTS,
    "zero_optimization.offload_optimizer": _NOT_SUPPORTED,
    "zero_optimization.offload_param": _NOT_SUPPORTED,
    "zero_optimization.cpu_offload": _NOT_SUPPORTED,
}
"""Maps a dotted key of DeepSpeed's config to the trainer's setting to use instead, or to the reason why the key is
refused."""


def _to_whole(value: Any) -> Any:
    """Return a float without a fraction as an int, and any other value unchanged.

    DeepSpeed's documentation writes whole numbers as floats, such as 5e8.
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value


Elements = Annotated[int, BeforeValidator(_to_whole), Field(ge=0)]
Bucket = Annotated[int, BeforeValidator(_to_whole), Field(ge=1)]


class ZeroSettings(Settings):
    """The settings of DeepSpeed's zero_optimization section.

    A setting that is null gets the value that the trainer derives, or DeepSpeed's default.
    """

    contiguous_gradients: bool | None = None
    """Copy gradients into one buffer as they are computed."""
    reduce_scatter: bool | None = None
    """Reduce-scatter gradients instead of all-reducing them."""
    reduce_bucket_size: Bucket | None = None
    """Number of gradient elements that are reduced together."""
    allgather_partitions: bool | None = None
    """Gather parameters by all-gather instead of broadcasts. For ZeRO 1 and 2."""
    allgather_bucket_size: Bucket | None = None
    """Number of parameter elements that are gathered together. For ZeRO 1 and 2."""
    use_multi_rank_bucket_allreduce: bool | None = None
    """All-reduce the buckets of several ranks together. For ZeRO 1 and 2."""
    stage3_prefetch_bucket_size: Elements | None = None
    """Number of parameter elements that are fetched ahead. For ZeRO 3."""
    stage3_param_persistence_threshold: Elements | None = None
    """Parameters with fewer elements stay whole on every rank. For ZeRO 3."""
    stage3_model_persistence_threshold: Elements | None = None
    """Maximum number of elements, over all parameters, that stay whole under stage3_param_persistence_threshold. For
    ZeRO 3."""
    stage3_max_live_parameters: Elements | None = None
    """Maximum elements of parameters that are gathered at one time. For ZeRO 3."""
    stage3_max_reuse_distance: Elements | None = None
    """A gathered parameter is kept if its next use is at most this many elements away. For ZeRO 3."""
    sub_group_size: Bucket | None = None
    """Number of parameter elements that are updated together. For ZeRO 3."""


class DeepSpeedSettings(Settings):
    """The DeepSpeed settings that a run may set directly. For a setting that is null, the trainer derives a value."""

    zero_optimization: ZeroSettings | None = None
    """Bucket sizes and thresholds of ZeRO."""
    wall_clock_breakdown: bool | None = None
    """Log the times of forward, backward and step to the workers' output."""
    memory_breakdown: bool | None = None
    """Log memory between forward, backward and step. Each report costs a garbage collection."""

    def given(self) -> dict[str, Any]:
        """Return the settings that are not null as a dictionary for DeepSpeed, without empty sections."""
        tree = self.model_dump(mode="json", exclude_none=True)
        return {key: value for key, value in tree.items() if value != {}}

    def has_reports(self) -> bool:
        """Whether DeepSpeed should log times or memory."""
        return bool(self.wall_clock_breakdown or self.memory_breakdown)


_PARTITIONED = ("allgather_partitions", "allgather_bucket_size", "use_multi_rank_bucket_allreduce")


def zero_stages_of(key: str) -> tuple[int, ...]:
    """Return the ZeRO stages in which `key`, a key of DeepSpeed's section zero_optimization, has an effect."""
    if key in _PARTITIONED:
        return (1, 2)
    return (3,) if key.startswith("stage3_") or key == "sub_group_size" else (1, 2, 3)


def refuse_raw_keys(raw: Mapping[str, Any]) -> None:
    """Raise ValueError if `raw`, a run's `deepspeed` section, has a key that may not be set there.

    Some keys are refused because the trainer's config has a field of its own for them, and others because no run may
    set them. The message says what to do.
    """
    sections = {name for name, field in DeepSpeedSettings.model_fields.items() if nested_settings(field.annotation)}
    for name in sections & raw.keys():
        if raw[name] is not None and not isinstance(raw[name], Mapping | Settings):
            raise ValueError(
                f"deepspeed.{name}={raw[name]!r}: must be a mapping of settings; give one, or leave it out"
            )
    for dotted in _leaves(raw):
        parts = dotted.split(".")
        for depth in range(1, len(parts) + 1):
            reason = _REFUSED.get(".".join(parts[:depth]))
            if reason in (_CHANGES_RESULTS, _NOT_SUPPORTED, _PROFILE, _RACES):
                raise ValueError(f"deepspeed.{dotted}: {reason}")
            if reason is not None:
                raise ValueError(f"deepspeed.{dotted}: has its own field in the trainer's config; set {reason} instead")


def drop_unknown_keys(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return `raw`, a saved `deepspeed` section, without the keys that are no longer accepted.

    An earlier version may have saved such keys.
    """

    def keep(tree: Mapping[str, Any], cls: type[Settings]) -> dict[str, Any]:
        kept = {}
        for name, field in cls.model_fields.items():
            inner = nested_settings(field.annotation)
            if name in tree:
                value = tree[name]
                kept[name] = keep(value, inner) if inner is not None and isinstance(value, Mapping) else value
        return kept

    return keep(raw, DeepSpeedSettings)


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"
