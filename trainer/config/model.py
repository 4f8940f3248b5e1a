"""The settings `model.*`, and the number formats (precisions) in which the model can compute."""

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
"""Maps a published model size to (layers, attention heads, width). The feed-forward layer is four times as wide."""


class ModelConfig(Settings):
    """The settings of the BERT encoder."""

    size: ModelSize = "base"
    """Layers/heads/width: tiny 2/2/128, mini 4/4/256, small 4/8/512, medium 8/8/512, base 12/12/768, large 24/16/1024.
    With initialize_from, the model there gives the defaults of size, max_positions, activation and norm."""
    max_positions: Annotated[int, Field(ge=8, lt=2**16)] = 512
    """Number of learned positions: the longest input that the model accepts, in tokens."""
    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    """Exact GELU, or its tanh approximation."""
    norm: Literal["post", "pre"] = "post"
    """post: LayerNorm after each sublayer, as in the BERT paper. pre: before each sublayer."""
    dropout: Probability = 0.1
    """Dropout probability after embeddings and sublayers."""
    attention_dropout: Probability = 0.1
    """Dropout probability on attention weights."""
    output_bias: Literal["zeros", "unigram"] = "zeros"
    """Initial bias of the masked-LM head: zeros (as in BERT), or the logarithm of each token's share of the training
    tokens, which saves the hundreds of steps that learning word frequencies takes."""
    initial_weights: Literal["published", "scaled"] = "published"
    """published: every matrix starts with standard deviation 0.02. scaled: embeddings with 0.05, other matrices with
    0.06, and the masked-LM head as the identity. scaled is for short runs of small models with norm=pre: a tiny model
    that starts from 0.02 needs millions of tokens before it uses a word's neighbours."""
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
        """The number of encoder layers."""
        return MODEL_SHAPES[self.size][0]

    @property
    def num_heads(self) -> int:
        """The number of attention heads."""
        return MODEL_SHAPES[self.size][1]

    @property
    def width(self) -> int:
        """The hidden size."""
        return MODEL_SHAPES[self.size][2]
