"""The sections of the trainer's config: what each setting means, checked where it is declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from pipeline.settings import Settings

Precision: TypeAlias = Literal["fp32", "bf16", "fp16"]
ModelSize: TypeAlias = Literal["tiny", "mini", "small", "medium", "base", "large"]

Positive = Annotated[int, Field(ge=1, lt=2**31)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
PositiveFloat = Annotated[float, Field(gt=0.0)]

MODEL_SHAPES: dict[ModelSize, tuple[int, int, int]] = {
    "tiny": (2, 2, 128),
    "mini": (4, 4, 256),
    "small": (4, 8, 512),
    "medium": (8, 8, 512),
    "base": (12, 12, 768),
    "large": (24, 16, 1024),
}
"""Layers, attention heads, width of each published size; the feed-forward layer is four times as wide."""


class ModelConfig(Settings):
    """The encoder."""

    size: ModelSize = "base"
    """Layers/heads/width: tiny 2/2/128, mini 4/4/256, small 4/8/512, medium 8/8/512, base 12/12/768,
    large 24/16/1024. Left out beside initialize_from: as in that folder; max_positions, activation and norm too."""
    max_positions: Annotated[int, Field(ge=8, lt=2**16)] = 512
    """Learned positions; longer input is refused."""
    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    """GELU exact, or its tanh approximation."""
    norm: Literal["post", "pre"] = "post"
    """LayerNorm after each sublayer (as published) or before."""
    dropout: Probability = 0.1
    """Dropout after embeddings and sublayers."""
    attention_dropout: Probability = 0.1
    """Dropout on attention probabilities."""
    output_bias: Literal["zeros", "unigram"] = "zeros"
    """Start of the masked-LM head's bias: zeros (as published), or the logarithm of each token's share of the training
    tokens, so that the first hundreds of steps need not learn word frequencies."""
    initial_weights: Literal["published", "scaled"] = "published"
    """published: every matrix with deviation 0.02. scaled: embeddings 0.05, other matrices 0.06, and the
    masked-LM head passes the encoder's output on unchanged. For short runs of small models with norm=pre: from 0.02 a
    tiny model spends millions of tokens before it looks at a word's neighbours."""
    initialize_from: str | None = None
    """Start from an exported model or a transformers BERT folder instead of random weights."""

    @model_validator(mode="after")
    def _check_start(self) -> ModelConfig:
        if self.output_bias == "unigram" and self.initialize_from is not None:
            raise ValueError("model.output_bias=unigram would be overwritten by model.initialize_from; set one of them")
        if self.initial_weights == "scaled" and self.initialize_from is not None:
            raise ValueError(
                "model.initial_weights=scaled would be overwritten by model.initialize_from; set one of them"
            )
        return self

    @property
    def num_layers(self) -> int:
        """Encoder layers."""
        return MODEL_SHAPES[self.size][0]

    @property
    def num_heads(self) -> int:
        """Attention heads."""
        return MODEL_SHAPES[self.size][1]

    @property
    def width(self) -> int:
        """Hidden size."""
        return MODEL_SHAPES[self.size][2]


class BatchConfig(Settings):
    """The global batch of one step: one slot of every lane (docs/DESIGN.md)."""

    pairs: Positive | None = None
    """Sentence pairs (rows of the data set) of an optimizer step, over all workers: the batch size of papers. On
    average, or exactly with `exact_pairs`; at most those of the data set. Give this or tokens."""
    tokens: Positive | None = None
    """Tokens of an optimizer step, over all workers, on average: a batch of pairs x mean length of a row. Give this or
    pairs."""
    lanes: Positive | None = None
    """Streams that the rows are dealt into for the whole run. A step takes a micro-batch of each, and a worker has its
    share of them, so this is also the largest number of workers, and no worker changes the batch. Null: derived."""
    tokens_per_slot: Positive | None = None
    """Most tokens of a micro-batch. Null: derived, as few as keep the batch's pace."""
    greatest_slot: Positive | None = None
    """Most tokens of a micro-batch if neither lanes nor tokens_per_slot is given. Null: what the run's smallest GPU
    holds by the estimate of trainer/engine/memory.py, at most 32,768; settled when the run begins and kept."""
    exact_pairs: bool = False
    """Every step holds exactly `pairs` pairs, at a cost in fill."""

    @model_validator(mode="after")
    def _check_unit(self) -> BatchConfig:
        if (self.pairs is None) == (self.tokens is None):
            raise ValueError("give exactly one of batch.pairs and batch.tokens")
        if self.exact_pairs and self.pairs is None:
            raise ValueError("batch.exact_pairs needs batch.pairs")
        return self


class OptimizerConfig(Settings):
    """AdamW; biases and LayerNorm are not decayed."""

    name: Literal["adamw"] = "adamw"
    """Update rule."""
    learning_rate: PositiveFloat = 1e-4
    """Peak learning rate."""
    beta1: Probability = 0.9
    """Decay of the first moment."""
    beta2: Probability = 0.999
    """Decay of the second moment."""
    epsilon: PositiveFloat = 1e-6
    """Added to the root of the second moment."""
    bias_correction: bool = True
    """Divide the moments by 1 - beta^step, as Adam's paper does. false: as in google-research/bert, whose first updates
    are therefore larger (3.2 times at the defaults)."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    """Decoupled weight decay."""
    clip_norm: Annotated[float, Field(ge=0.0)] = 1.0
    """Greatest global gradient norm; 0 for none."""


class ScheduleConfig(Settings):
    """Learning rate as a function of the step."""

    name: Literal["linear", "constant"] = "linear"
    """linear: warm-up, then down towards final_factor. constant: warm-up, then flat."""
    warmup_steps: Count | None = None
    """Steps of linear warm-up; null: warmup_fraction of max_steps."""
    warmup_fraction: Probability = 0.01
    """Used where warmup_steps is null."""
    final_factor: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Learning rate that a step after max_steps would have, as a share of the peak: the last step still learns."""
    span: Literal["run", "phase"] = "run"
    """run: one schedule over all phases. phase: each phase warms up and falls over its own steps."""


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


class GuardConfig(Settings):
    """What happens where training leaves the finite numbers. Such a step is never applied."""

    max_bad_steps: Positive = 3
    """Bad steps in a row after which the run goes back to the last checkpoint from before them."""
    max_rollbacks: Count = 1
    """Times that a run goes back; then it stops."""
    skip_before: Count = 100
    """Steps before the first bad one whose data are passed over with those of the bad ones after going back."""
    spike_factor: Annotated[float, Field(gt=1.0)] | None = None
    """A step is bad too, but applied, where its loss exceeds so many times the median of those before; null: no."""
    spike_window: Positive = 100
    """Losses that the median is of; in the first steps of a phase, before there are as many, no step is a spike."""


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


class IngestConfig(Settings):
    """Reading of the data."""

    read_ahead_blocks: Positive = 4
    """Row groups decoded ahead of their use, a worker."""
    object_store_mb: Positive = 256
    """Ray object store that a worker's read-ahead may fill, MB."""
    verify: Literal["footers", "full"] = "footers"
    """At start: sizes and footer hashes, or the sha256 of every shard. Page checksums are always verified."""
    skip_corrupt: bool = False
    """Pass over training row groups that cannot be read, with a warning, and count their rows, instead of stopping."""
