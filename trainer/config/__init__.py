"""The settings of a run, which of them have an effect together, and the config that a run has saved."""

from trainer.config.effects import find_idle_settings, refuse_idle_settings
from trainer.config.saved import CONFIG_NAME, drop_idle_settings, read_run_config, validate_saved
from trainer.config.schema import PhaseConfig, TrainerConfig
from trainer.config.sections import (
    MODEL_SHAPES,
    BatchConfig,
    CheckpointConfig,
    EvaluationConfig,
    GuardConfig,
    ModelConfig,
    OptimizerConfig,
    Precision,
    ScheduleConfig,
)

__all__ = [
    "CONFIG_NAME",
    "MODEL_SHAPES",
    "BatchConfig",
    "CheckpointConfig",
    "EvaluationConfig",
    "GuardConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PhaseConfig",
    "Precision",
    "ScheduleConfig",
    "TrainerConfig",
    "drop_idle_settings",
    "find_idle_settings",
    "read_run_config",
    "refuse_idle_settings",
    "validate_saved",
]
