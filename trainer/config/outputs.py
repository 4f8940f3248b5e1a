"""The settings of what a run writes: `checkpoint.*`, `evaluation.*`, `logging.*`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from pipeline.settings import Settings
from trainer.config.number_types import Count, Positive, PositiveFloat


class CheckpointConfig(Settings):
    """The settings for when checkpoints are written and which ones are kept."""

    every_steps: Positive = 1000
    """Steps between checkpoints. One more is written at the end of the run, and on SIGTERM or SIGINT."""
    keep_last: Positive = 3
    """Number of newest checkpoints to keep."""
    keep_every_steps: Positive | None = None
    """Never remove checkpoints whose step is a multiple of this number."""
    keep_best: Count = 0
    """In each phase, keep this many checkpoints with the lowest held-out loss. Only steps that are evaluated count:
    multiples of evaluation.every_steps, the step at a tenth of the run, and the ends of phases. Losses of different
    phases, data sets or numbers of pairs are ranked separately."""


class EvaluationConfig(Settings):
    """The settings of held-out evaluation."""

    every_steps: Positive | None = None
    """Steps between evaluations. Null: none in between. The end of each phase is always evaluated, and so is the step
    at a tenth of the run, if the run has 100 steps or more."""
    max_pairs: Positive | None = 4096
    """Maximum number of held-out pairs to evaluate: the first ones in a fixed order. Null: all."""
    at_start: bool = False
    """Evaluate before the first step too, to measure the initial weights (model.initialize_from, resume_from)."""


class LoggingConfig(Settings):
    """The settings of progress lines and metrics."""

    every_steps: Positive = 10
    """Steps between progress lines; metrics.jsonl records every step."""
    tracker: Literal["tensorboard", "wandb", "mlflow", "none"] = "tensorboard"
    """Tracker that gets the metrics besides RUN's own files. tensorboard: in RUN/tensorboard. wandb: offline in
    RUN/wandb unless WANDB_MODE is set. mlflow: in RUN/mlflow unless MLFLOW_TRACKING_URI is set."""
    peak_tflops: PositiveFloat | None = None
    """Dense bf16 peak of one GPU in 10^12 operations per second. The metric mfu (utilization) is a share of this peak.
    Null: looked up by device name."""
    row_ids: bool = False
    """Write the rows of every step to RUN/rows-RANK.jsonl: step, phase, the epoch in which the step begins, and [epoch,
    shard, row group, row] of each pair. A step at the end of an epoch has pairs of two epochs."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_second_name(cls, tree: Any) -> Any:
        if isinstance(tree, Mapping) and "tensorboard" in tree:
            raise ValueError("logging.tensorboard was removed; set logging.tracker=tensorboard or none")
        return tree
