"""The training engine over DeepSpeed, with its optimizer, schedules, memory estimate and check of compiled models."""

from trainer.engine.engine import Engine, LossScale
from trainer.engine.host_copy import HostCopy
from trainer.engine.memory import (
    MICRO_BATCH_STEP,
    Card,
    count_moments,
    count_parameters,
    judge_heads,
    judge_memory,
    largest_micro_batch,
    may_use_gpus,
    name_remedies,
    resolve_recompute,
    with_largest_micro_batch,
)
from trainer.engine.optimizers import count_updates
from trainer.engine.schedules import corners, learning_rate
from trainer.engine.self_check import check_compiled_model
from trainer.engine.update_rules import MOMENTS
from trainer.engine.zero_state import LocalSlice
