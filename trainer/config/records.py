"""What a run leaves: `checkpoint.*`, `evaluation.*`, `logging.*`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from pipeline.settings import Settings
from trainer.config.number_types import Count, Positive, PositiveFloat


class CheckpointConfig(Settings):
    """When checkpoints are written and which are kept."""

    every_steps: Positive = 1000
    """Steps between checkpoints; one is also written at the end and on SIGTERM or SIGINT."""
    keep_last: Positive = 3
    """Newest checkpoints that stay."""
    keep_every_steps: Positive | None = None
    """Checkpoints at multiples of this step stay for ever."""
    keep_best: Count = 0
    """Checkpoints with the least held-out loss that stay, of each phase, among those after whose step the run is
    evaluated: multiples of evaluation.every_steps, a tenth of the run, and the ends of phases. Losses of another phase,
    data set, or number of pairs are not compared: each has its own."""


class EvaluationConfig(Settings):
    """Held-out evaluation."""

    every_steps: Positive | None = None
    """Steps between evaluations; null: only at the end."""
    max_pairs: Positive | None = 4096
    """Held-out pairs evaluated, the first of a fixed order; null: all."""
    at_start: bool = False
    """Evaluate also before the first step: what given weights (model.initialize_from, resume_from) can do already."""


class LoggingConfig(Settings):
    """What is shown and kept."""

    every_steps: Positive = 10
    """Steps between progress lines; metrics.jsonl has every step."""
    tracker: Literal["tensorboard", "wandb", "mlflow", "none"] = "tensorboard"
    """Where the run is followed beside its own files. tensorboard: in RUN/tensorboard. wandb: offline in RUN/wandb
    unless WANDB_MODE says otherwise. mlflow: in RUN/mlflow unless MLFLOW_TRACKING_URI says otherwise."""
    peak_tflops: PositiveFloat | None = None
    """Dense bf16 peak of a GPU, 10^12 operations a second, for the share in the metrics; null: by the device's name."""
    row_ids: bool = False
    """Write the rows of every step to RUN/rows-RANK.jsonl: step, phase, the epoch in which the step begins, and [epoch,
    shard, row group, row] of each pair; a step at the end of an epoch holds pairs of two."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_second_name(cls, tree: Any) -> Any:
        if isinstance(tree, Mapping) and "tensorboard" in tree:
            raise ValueError("logging.tensorboard is gone: set logging.tracker=tensorboard or none")
        return tree
