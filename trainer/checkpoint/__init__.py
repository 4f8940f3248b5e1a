"""Checkpoints of a run: written by all ranks, whole or absent, loaded into any world size and ZeRO stage."""

from trainer.checkpoint.format import (
    STATE,
    CheckpointError,
    CheckpointState,
    is_checkpoint,
    list_checkpoints,
    read_state,
    step_of,
    verify,
)
from trainer.checkpoint.load import newest_verified, read_weights, restore, resume, verify_together
from trainer.checkpoint.retention import rank_evaluations
from trainer.checkpoint.writer import CheckpointWriter

__all__ = [
    "STATE",
    "CheckpointError",
    "CheckpointState",
    "CheckpointWriter",
    "is_checkpoint",
    "list_checkpoints",
    "newest_verified",
    "rank_evaluations",
    "read_state",
    "read_weights",
    "restore",
    "resume",
    "step_of",
    "verify",
    "verify_together",
]
