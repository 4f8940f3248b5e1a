"""Refuses settings that cannot have an effect because of the other settings.

Invariant: no setting is accepted and then ignored. A setting with its default value is never refused, because
RUN/config.yaml holds every field and must load.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pipeline.settings import Settings
from pipeline.storage import is_url
from trainer.config.deepspeed_settings import ZeroSettings, zero_stages_of
from trainer.config.fields import TrainerFields
from trainer.config.optimization import ScheduleConfig


@dataclass(frozen=True, slots=True)
class IdleSetting:
    """A setting that has no effect, whatever its value, because of the other settings."""

    key: str
    """The dotted key, for example `schedule.final_factor` or `phases.1.evaluation.max_pairs`."""
    why: str
    remedy: str
    """What to change so that the setting has an effect."""


def refuse_idle_settings(config: TrainerFields, *, held_out: Sequence[int] | None = None) -> None:
    """Raise ValueError if settings were given that have no effect.

    The message gives the key, the value, the reason and the remedy for each of these settings.

    There are two checks. If `held_out` is None, find the settings that cannot have an effect with any data set.
    Otherwise `held_out` says how many held-out rows each phase's data set has. Then find only the settings of
    evaluation that have no effect because there are no held-out rows.
    """
    idle = find_idle_settings(config) if held_out is None else _find_idle_evaluation(config, held_out=held_out)
    faults = [
        f"{each.key}={_get(config, each.key)} has no effect: {each.why}; {each.remedy}, or leave {each.key} out"
        for each in idle
        if _is_given(config, each.key)
    ]
    if faults:
        raise ValueError("; ".join(faults))


def find_given_idle(config: TrainerFields) -> list[str]:
    """Return the dotted keys of settings that were given a value other than the default but have no effect."""
    return [each.key for each in find_idle_settings(config) if _is_given(config, each.key)]


def find_idle_settings(config: TrainerFields) -> list[IdleSetting]:
    """Return the settings that have no effect in this config, whether they were given or not."""
    return [
        *_find_in_places(config),
        *_find_in_model(config),
        *_find_in_guard(config),
        *_find_in_optimizer(config),
        *_find_in_schedule(config),
        *_find_in_checkpoint(config),
        *_find_in_deepspeed(config),
        *_find_in_batch(config),
        *_find_in_masking(config),
        *_find_in_evaluation(config),
        *_find_in_engine(config),
        *_find_overridden(config),
    ]


def _find_in_places(config: TrainerFields) -> Iterator[IdleSetting]:
    if not is_url(config.output):
        why = f"output={config.output} is on a disk, where the logs are kept"
        yield IdleSetting("working_folder", why, "set output to an s3:// or gs:// URL")
    if config.launcher == "processes":
        for key in ("cpus_per_worker", "start_timeout_s", "resize_interval_s", "ingest.object_store_mb"):
            yield IdleSetting(key, "it is for Ray, which launcher=processes does not start", "set launcher=ray")
        return
    if config.device == "cuda":
        yield IdleSetting("cpus_per_worker", "with device=cuda a worker asks for a GPU", "set device=cpu")
    if config.min_workers is None:
        why = "without min_workers a run neither shrinks nor grows"
        yield IdleSetting("resize_interval_s", why, "set min_workers")


def _find_in_model(config: TrainerFields) -> Iterator[IdleSetting]:
    model = config.model
    if model.initialize_from is None:
        for key in ("initialize_layers", "new_tokens"):
            why = "it is for the weights of another model"
            yield IdleSetting(f"model.{key}", why, "set model.initialize_from")
    if None not in (model.layers, model.heads, model.hidden_size):
        why = "model.layers, model.heads and model.hidden_size replace all of it"
        yield IdleSetting("model.size", why, "leave out one of them")


def _find_in_guard(config: TrainerFields) -> Iterator[IdleSetting]:
    guard, longest = config.guard, max(config.phase_steps)
    if guard.spike_factor is None:
        why = "without guard.spike_factor no step is a spike"
        yield IdleSetting("guard.spike_window", why, "set guard.spike_factor")
    elif guard.spike_window >= longest:
        yield IdleSetting(
            "guard.spike_factor",
            f"no step is a spike before guard.spike_window={guard.spike_window} losses of its phase are known, and "
            f"{'the run' if not config.phases else 'the longest phase'} has {longest} steps",
            "lower guard.spike_window",
        )
    if guard.max_rollbacks == 0:
        why = "with guard.max_rollbacks=0 the run never rolls back"
        yield IdleSetting("guard.skip_before", why, "raise guard.max_rollbacks")


def _find_in_optimizer(config: TrainerFields) -> Iterator[IdleSetting]:
    name = config.optimizer.name
    idle = {"sgd": ("beta2", "epsilon", "bias_correction", "momentum"), "radam": ("bias_correction", "momentum")}
    for key in idle.get(name, () if name == "muon" else ("momentum",)):
        remedy = "set optimizer.name=muon" if key == "momentum" else "set optimizer.name=adamw"
        yield IdleSetting(f"optimizer.{key}", f"optimizer.name={name} does not use it", remedy)


def _find_in_schedule(config: TrainerFields) -> Iterator[IdleSetting]:
    run, by_phase = config.schedule, config.schedule.span == "phase" and bool(config.phases)
    if run.span == "phase" and not config.phases:
        yield IdleSetting("schedule.span", "the run has no phases", "give phases")
    schedules = [phase.schedule_in(run) for phase in config.phases] if by_phase else [run]
    for key, users in _SCHEDULES_WITH.items():
        if not any(each.name in users for each in schedules) and not _all_override(config, f"schedule.{key}"):
            yield IdleSetting(f"schedule.{key}", _why_unused(schedules[0]), f"set schedule.name={users[0]}")
    for part in ("warmup", "decay"):
        steps, fraction = getattr(run, f"{part}_steps"), f"schedule.{part}_fraction"
        if config.max_hours is not None:
            why = f"max_hours={config.max_hours} makes schedules over time"
            yield IdleSetting(f"schedule.{part}_steps", why, f"set {fraction}")
        elif steps is not None and not _all_override(config, fraction):
            yield IdleSetting(fraction, f"schedule.{part}_steps={steps} replaces it", f"set schedule.{part}_steps=null")
    for index, (phase, schedule) in enumerate(zip(config.phases, schedules, strict=False) if by_phase else ()):
        place = f"phases.{index}.schedule"
        for key, users in _SCHEDULES_WITH.items():
            if schedule.name not in users:
                yield IdleSetting(f"{place}.{key}", _why_unused(schedule), f"set {place}.name={users[0]}")
        for part in ("warmup", "decay"):
            if (steps := getattr(phase.schedule, f"{part}_steps")) is not None:
                why = f"{place}.{part}_steps={steps} replaces it"
                yield IdleSetting(f"{place}.{part}_fraction", why, f"set {place}.{part}_steps=null")


def _why_unused(schedule: ScheduleConfig) -> str:
    return f"schedule.name={schedule.name} {'never falls' if schedule.name == 'constant' else 'does not use it'}"


_SCHEDULES_WITH = {
    "final_factor": ("linear", "polynomial", "cosine", "wsd"),
    "power": ("polynomial", "wsd"),
    "fall_from": ("linear", "polynomial", "cosine"),
    "decay_steps": ("wsd",),
    "decay_fraction": ("wsd",),
}
"""Maps a setting to the schedules that use it."""


def _find_in_checkpoint(config: TrainerFields) -> Iterator[IdleSetting]:
    every, steps = config.checkpoint.every_steps, config.max_steps
    if not any(_phases_with_evaluated_checkpoint(config)):
        yield IdleSetting(
            "checkpoint.keep_best",
            f"none of the checkpoints within max_steps={steps}, one every {every} steps, is evaluated",
            "make evaluation.every_steps a divisor of checkpoint.every_steps, which must be at most max_steps",
        )
    kept = config.checkpoint.keep_every_steps
    if kept is not None and kept <= steps < math.lcm(kept, every) and steps % kept:
        yield IdleSetting(
            "checkpoint.keep_every_steps",
            f"within max_steps={steps} no checkpoint, one every {every} steps, is at a multiple of it",
            "make it a multiple of checkpoint.every_steps",
        )


def _phases_with_evaluated_checkpoint(
    config: TrainerFields, *, held_out: Sequence[int] | None = None
) -> Iterator[bool]:
    """Yield one bool for each phase: whether at least one of its steps has both an evaluation and a checkpoint.

    Every phase ends with an evaluation. But the evaluation at the run's last step counts only if that step is a
    multiple of `evaluation.every_steps`. `held_out` says how many held-out rows each phase has (None: all phases have
    some). A phase without held-out rows has no evaluation.
    """
    every = config.checkpoint.every_steps
    intervals = [phase.evaluation.every_steps for phase in config.phases] or [None]
    last = 0
    for index, (own, end) in enumerate(zip(intervals, accumulate(config.phase_steps), strict=True)):
        first, last = last, end
        evaluated = config.evaluation.every_steps if own is None else own
        both = 0 if evaluated is None else math.lcm(evaluated, every)
        meets = bool(both and last // both > first // both) or (last < config.max_steps and last % every == 0)
        yield meets and (held_out is None or held_out[index] > 0)


def _find_in_deepspeed(config: TrainerFields) -> Iterator[IdleSetting]:
    for key in ZeroSettings.model_fields if config.deepspeed.zero_optimization is not None else ():
        stages = zero_stages_of(key)
        if config.zero_stage not in stages:
            why = f"it is for ZeRO {' and '.join(map(str, stages))}, and zero_stage={config.zero_stage}"
            yield IdleSetting(f"deepspeed.zero_optimization.{key}", why, f"set zero_stage={stages[0]}")


def _find_in_batch(config: TrainerFields) -> Iterator[IdleSetting]:
    batches = [phase.batch_in(config.batch) for phase in config.phases] or [config.batch]
    if all(batch.lanes is not None or batch.tokens_per_slot is not None for batch in batches):
        why = "it limits micro-batches that are derived, but batch.lanes or batch.tokens_per_slot is given"
        yield IdleSetting("batch.greatest_slot", why, "leave out batch.lanes and batch.tokens_per_slot")
    if config.batch.warmup_steps is None:
        why = "without batch.warmup_steps every step has a full batch"
        yield IdleSetting("batch.warmup_from", why, "set batch.warmup_steps")


def _find_in_masking(config: TrainerFields) -> Iterator[IdleSetting]:
    if config.model.is_causal:
        why = "model.objective=left_to_right masks nothing"
        yield IdleSetting("masking.source", why, "set model.objective=masked")
    for key in type(config.masking).model_fields if config.masking.source == "stored" else ():
        if key != "source":
            why = "masking.source=stored uses the masks of the data set"
            yield IdleSetting(f"masking.{key}", why, "set masking.source=drawn")


def _find_in_evaluation(config: TrainerFields) -> Iterator[IdleSetting]:
    # An interval longer than the run is allowed, because a config for many steps may be tried with few steps.
    for index, (phase, last) in enumerate(zip(config.phases, accumulate(config.phase_steps), strict=False)):
        own = phase.evaluation.every_steps
        if own is not None and own > last:
            why = f"steps are counted over the run, and the phase ends at step {last}"
            yield IdleSetting(f"phases.{index}.evaluation.every_steps", why, f"set it to at most {last}")


def _find_in_engine(config: TrainerFields) -> Iterator[IdleSetting]:
    if config.compile is False:
        yield IdleSetting("self_check", "it checks compiled models, and compile=False", "leave compile out")
    if config.compile is False:
        yield IdleSetting("cuda_graphs", "it records compiled models, and compile=False", "leave compile out")
    elif config.zero_stage not in (1, 2):
        why = f"it needs zero_stage=1 or 2, and zero_stage={config.zero_stage}"
        yield IdleSetting("cuda_graphs", why, "set zero_stage=1")
    elif config.device == "cpu":
        yield IdleSetting("cuda_graphs", "the run is on the CPU", "leave cuda_graphs out")
    if config.precision == "fp32":
        why = "precision=fp32 sends fp32 anyway"
        yield IdleSetting("communication_data_type", why, "set precision=bf16 or fp16")


_OVERRIDES = {
    "batch.lanes": ("batch.lanes",),
    "batch.tokens_per_slot": ("batch.tokens_per_slot",),
    "batch.exact_pairs": ("batch.exact_pairs",),
    "evaluation.every_steps": ("evaluation.every_steps",),
    "evaluation.max_pairs": ("evaluation.max_pairs",),
    "optimizer.learning_rate": ("learning_rate",),
    "schedule.name": ("schedule.name",),
    "schedule.final_factor": ("schedule.final_factor",),
    "schedule.power": ("schedule.power",),
    "schedule.fall_from": ("schedule.fall_from",),
    "schedule.decay_steps": ("schedule.decay_steps", "schedule.decay_fraction"),
    "schedule.decay_fraction": ("schedule.decay_steps", "schedule.decay_fraction"),
    "schedule.warmup_steps": ("schedule.warmup_steps", "schedule.warmup_fraction"),
    "schedule.warmup_fraction": ("schedule.warmup_steps", "schedule.warmup_fraction"),
}
"""Maps a setting of the run to the settings of a phase that replace it. If a phase gives any of them, the run's setting
has no effect in this phase."""


def _find_overridden(config: TrainerFields) -> Iterator[IdleSetting]:
    for key in _OVERRIDES:
        if _all_override(config, key):
            yield IdleSetting(key, "every phase has its own", "leave it out of a phase")


def _all_override(config: TrainerFields, key: str) -> bool:
    """Whether every phase gives a setting of its own that replaces the run's setting `key`."""
    return bool(config.phases) and all(
        any(_get(phase, own) is not None for own in _OVERRIDES[key]) for phase in config.phases
    )


def _find_idle_evaluation(config: TrainerFields, *, held_out: Sequence[int]) -> Iterator[IdleSetting]:
    remedy = "build the data set with validation_fraction above 0"
    for name in ("every_steps", "max_pairs"):
        heirs = [
            rows for phase, rows in zip(config.phases, held_out, strict=False) if _get(phase.evaluation, name) is None
        ]
        if not any(heirs if config.phases else held_out):
            yield IdleSetting(f"evaluation.{name}", "the data set holds no rows out", remedy)
        for index, phase in enumerate(config.phases):
            if held_out[index] == 0:
                why = f"data set {config.data if phase.data is None else phase.data} holds no rows out"
                yield IdleSetting(f"phases.{index}.evaluation.{name}", why, remedy)
    if not held_out[0]:
        yield IdleSetting("evaluation.at_start", "the first data set holds no rows out", remedy)
    if not any(_phases_with_evaluated_checkpoint(config, held_out=held_out)):
        yield IdleSetting("checkpoint.keep_best", "no checkpoint is evaluated on rows held out", remedy)


def _get(config: Settings, key: str) -> Any:
    node: Any = config
    for part in key.split("."):
        node = node[int(part)] if part.isdigit() else getattr(node, part)
    return node


def _is_given(config: TrainerFields, key: str) -> bool:
    """Whether the config gives the setting with the dotted key `key` a value other than the default."""
    parent, _, name = key.rpartition(".")
    section: Settings = _get(config, parent) if parent else config
    default = type(section).model_fields[name].get_default(call_default_factory=True)
    return name in section.model_fields_set and getattr(section, name) != default
