"""Settings of the model (`model.*`) and the precisions that it can compute in."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from pipeline.settings import Settings
from trainer.config.number_types import Probability

Precision: TypeAlias = Literal["fp32", "bf16", "fp16"]
ModelSize: TypeAlias = Literal["tiny", "mini", "small", "medium", "base", "large"]

MODEL_SHAPES: dict[ModelSize, tuple[int, int, int]] = {
    "tiny": (2, 2, 128),
    "mini": (4, 4, 256),
    "small": (4, 8, 512),
    "medium": (8, 8, 512),
    "base": (12, 12, 768),
    "large": (24, 16, 1024),
}
"""Layers, attention heads and width of each published size; the feed-forward layer is four times as wide."""


class ModelConfig(Settings):
    """The encoder."""

    size: ModelSize = "base"
    """Layers/heads/width: tiny 2/2/128, mini 4/4/256, small 4/8/512, medium 8/8/512, base 12/12/768,
    large 24/16/1024. With initialize_from, the folder's is the default; also of max_positions, activation and norm."""
    max_positions: Annotated[int, Field(ge=8, lt=2**16)] = 512
    """Learned positions: the longest input that the model accepts."""
    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    """Exact GELU, or its tanh approximation."""
    norm: Literal["post", "pre"] = "post"
    """LayerNorm after each sublayer (as published) or before."""
    dropout: Probability = 0.1
    """Dropout after embeddings and sublayers."""
    attention_dropout: Probability = 0.1
    """Dropout on attention probabilities."""
    output_bias: Literal["zeros", "unigram"] = "zeros"
    """Initial bias of the masked-LM head: zeros (as published), or the logarithm of each token's share of the training
    tokens, which saves the hundreds of steps that learning word frequencies takes."""
    initial_weights: Literal["published", "scaled"] = "published"
    """published: every matrix with standard deviation 0.02. scaled: embeddings 0.05, other matrices 0.06, and the
    masked-LM head starts as the identity. For short runs of small models with norm=pre: a tiny model that starts from
    0.02 needs millions of tokens before it uses a word's neighbours."""
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
