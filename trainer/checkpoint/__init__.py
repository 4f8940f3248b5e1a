"""Writes and loads a run's checkpoints, for any number of ranks and any ZeRO stage.

Invariant: a checkpoint is complete or absent.
"""

from trainer.checkpoint.format import (
    CHECKPOINTS_FOLDER,
    MANIFEST,
    STATE,
    CheckpointError,
    Checkpoints,
    CheckpointState,
    checkpoints_folder,
    find_checkpoints,
    is_checkpoint,
    read_state,
    step_of,
    verify,
)
from trainer.checkpoint.load import find_together, newest_verified, read_weights, restore, resume, verify_together
from trainer.checkpoint.retention import rank_evaluations
from trainer.checkpoint.writer import CheckpointWriter
