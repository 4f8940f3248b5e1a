"""The settings of a run: their fields, the checks that compare them, and the reading of saved configs."""

from trainer.config.batch import BatchConfig, MaskingConfig
from trainer.config.effects import find_idle_settings, refuse_idle_settings
from trainer.config.model import (
    FEED_FORWARD_FACTOR,
    MODEL_SHAPES,
    SHAPE_SETTINGS,
    ModelConfig,
    ModelShape,
    Objective,
    Precision,
    check_heads,
    shape_settings,
)
from trainer.config.optimization import GuardConfig, OptimizerConfig, ScheduleConfig
from trainer.config.outputs import CheckpointConfig, EvaluationConfig, LoggingConfig
from trainer.config.phases import PhaseConfig
from trainer.config.saved import CONFIG_NAME, drop_idle_settings, read_run_config, validate_saved
from trainer.config.schema import TrainerConfig
