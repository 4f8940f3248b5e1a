"""One training engine over DeepSpeed: step, optimizer, schedules, state by slices, memory, and its self-check."""

from trainer.engine.engine import Engine, LossScale
from trainer.engine.host_copy import HostCopy
from trainer.engine.memory import (
    MICRO_BATCH_STEP,
    Card,
    count_parameters,
    judge_memory,
    largest_micro_batch,
    may_use_gpus,
    name_remedies,
    with_greatest_slot,
)
from trainer.engine.optimizers import MOMENTS, count_updates
from trainer.engine.schedules import learning_rate
from trainer.engine.self_check import check_compiled_model
from trainer.engine.zero_state import LocalSlice

__all__ = [
    "MICRO_BATCH_STEP",
    "MOMENTS",
    "Card",
    "Engine",
    "HostCopy",
    "LocalSlice",
    "LossScale",
    "check_compiled_model",
    "count_parameters",
    "count_updates",
    "judge_memory",
    "largest_micro_batch",
    "learning_rate",
    "may_use_gpus",
    "name_remedies",
    "with_greatest_slot",
]
