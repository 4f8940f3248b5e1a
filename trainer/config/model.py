"""The settings `model.*`, and the number formats (precisions) in which the model can compute."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import Field, model_validator

from pipeline.settings import Settings
from trainer.config.number_types import Probability

Precision: TypeAlias = Literal["fp32", "bf16", "fp16"]
ModelSize: TypeAlias = Literal["tiny", "mini", "small", "medium", "base", "large"]
Objective: TypeAlias = Literal["masked_next_sentence", "masked", "left_to_right"]

MODEL_SHAPES: dict[ModelSize, tuple[int, int, int]] = {
    "tiny": (2, 2, 128),
    "mini": (4, 4, 256),
    "small": (4, 8, 512),
    "medium": (8, 8, 512),
    "base": (12, 12, 768),
    "large": (24, 16, 1024),
}
"""Maps a published model size to (layers, attention heads, width). The feed-forward layer is four times as wide."""
FEED_FORWARD_FACTOR = 4


SHAPE_SETTINGS = ("layers", "heads", "hidden_size", "feed_forward_size")
"""The settings that replace a number of `size`, in the order of ModelShape."""


class ModelShape(NamedTuple):
    """The numbers that give the encoder's weight matrices their shapes."""

    layers: int
    heads: int
    width: int
    feed_forward: int


class ModelConfig(Settings):
    """The settings of the BERT encoder."""

    size: ModelSize = "base"
    """Layers/heads/width: tiny 2/2/128, mini 4/4/256, small 4/8/512, medium 8/8/512, base 12/12/768, large 24/16/1024.
    With initialize_from, the model there gives the defaults of size, layers, heads, hidden_size, feed_forward_size,
    max_positions, activation, norm and objective."""
    layers: Annotated[int, Field(ge=1, lt=2**10)] | None = None
    """Number of layers. Null: as in `size`."""
    heads: Annotated[int, Field(ge=1, lt=2**10)] | None = None
    """Number of attention heads, a divisor of the width. Null: as in `size`."""
    hidden_size: Annotated[int, Field(ge=1, lt=2**16)] | None = None
    """Width of the hidden states. Null: as in `size`."""
    feed_forward_size: Annotated[int, Field(ge=1, lt=2**18)] | None = None
    """Width between the two linear layers of feed-forward. Null: four times the width of the hidden states."""
    max_positions: Annotated[int, Field(ge=8, lt=2**16)] = 512
    """Number of learned positions: the longest input that the model accepts, in tokens."""
    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    """Exact GELU, or its tanh approximation."""
    norm: Literal["post", "pre"] = "post"
    """post: LayerNorm after each sublayer, as in the BERT paper. pre: before each sublayer."""
    objective: Objective = "masked_next_sentence"
    """What the model learns to predict. masked_next_sentence: masked tokens, and whether the second segment follows the
    first, as in the BERT paper. masked: the same rows without the next-sentence loss. left_to_right: each token from
    those before it, with causal attention (GPT-1's objective) and without masks."""
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
    """Start from an exported model or a transformers BERT folder instead of random weights. A head that its class lacks
    (BertForMaskedLM, BertModel) starts from random weights."""
    initialize_layers: Literal["all", "every_other"] | tuple[Annotated[int, Field(ge=0, lt=2**10)], ...] = "all"
    """Layers of the model in initialize_from to take. every_other: the layers 0, 2, 4 and so on, which gives half the
    layers. A list names them from 0, in the order in which they are stacked here."""
    new_tokens: Literal["refuse", "pieces", "drawn"] = "refuse"
    """What to do if the data set's vocabulary is not that of the model in initialize_from. refuse: stop. Otherwise the
    rows of the word table are found by the texts of tokens. A token that the model does not have starts from the mean
    of the rows of its pieces (pieces; drawn if the model's tokens cannot spell it), or at random (drawn)."""

    @model_validator(mode="after")
    def _check_shape(self) -> ModelConfig:
        if self.initialize_from is None:  # otherwise the folder's model may still give the other numbers
            check_heads(self.shape)
        return self

    @model_validator(mode="after")
    def _check_start(self) -> ModelConfig:
        if self.output_bias == "unigram" and self.initialize_from is not None:
            raise ValueError("model.output_bias=unigram would be overwritten by model.initialize_from; set one of them")
        if self.initial_weights == "scaled" and self.initialize_from is not None:
            raise ValueError(
                "model.initial_weights=scaled would be overwritten by model.initialize_from; set one of them"
            )
        return self

    @model_validator(mode="after")
    def _check_layers(self) -> ModelConfig:
        if self.initialize_layers == ():
            raise ValueError("model.initialize_layers=[] takes no layer; list at least one, or leave it out")
        return self

    @property
    def shape(self) -> ModelShape:
        """Layers, heads and widths: those of `size`, unless a setting replaces them."""
        layers, heads, width = MODEL_SHAPES[self.size]
        width = self.hidden_size or width
        inner = self.feed_forward_size or FEED_FORWARD_FACTOR * width
        return ModelShape(self.layers or layers, self.heads or heads, width, inner)

    @property
    def num_layers(self) -> int:
        """The number of encoder layers."""
        return self.shape.layers

    @property
    def num_heads(self) -> int:
        """The number of attention heads."""
        return self.shape.heads

    @property
    def width(self) -> int:
        """The hidden size."""
        return self.shape.width

    @property
    def feed_forward_width(self) -> int:
        """The width between the two linear layers of feed-forward."""
        return self.shape.feed_forward

    @property
    def head_width(self) -> int:
        """The width of an attention head."""
        return self.width // self.num_heads

    @property
    def is_causal(self) -> bool:
        """Whether a token attends only to itself and to tokens before it."""
        return self.objective == "left_to_right"

    @property
    def title(self) -> str:
        """The model in words, such as `BERT base` or `BERT of 6 layers, 12 heads, width 768`."""
        return f"BERT {self.name}" if find_size(self.shape) else f"BERT of {self.name}"

    @property
    def name(self) -> str:
        """The published size of this shape, such as `base`, or the shape in words."""
        size = find_size(self.shape)
        if size is not None:
            return size
        layers, heads, width, inner = self.shape
        return f"{layers} layers, {heads} heads, width {width}" + (
            "" if inner == FEED_FORWARD_FACTOR * width else f", feed-forward {inner}"
        )


def find_size(shape: ModelShape) -> ModelSize | None:
    """Return the published size that has this shape, or None if there is none."""
    known = (size for size, of_size in MODEL_SHAPES.items() if of_size == shape[:3])
    return next(known, None) if shape.feed_forward == FEED_FORWARD_FACTOR * shape.width else None


def shape_settings(shape: ModelShape) -> dict[str, Any]:
    """Return the values of the settings size, layers, heads, hidden_size and feed_forward_size that give this shape."""
    size = find_size(shape)
    stated = shape if size is None else (None,) * len(shape)
    return {"size": size or "base", **dict(zip(SHAPE_SETTINGS, stated, strict=True))}


def check_heads(shape: ModelShape) -> None:
    """Raise ValueError if the heads do not divide the width."""
    if shape.width % shape.heads:
        near = sorted(
            (heads for heads in range(1, shape.width + 1) if shape.width % heads == 0),
            key=lambda heads: abs(heads - shape.heads),
        )[:2]
        raise ValueError(
            f"model.heads={shape.heads} does not divide model.hidden_size={shape.width}; set model.heads="
            f"{' or '.join(map(str, sorted(near)))}, or model.hidden_size to a multiple of {shape.heads}"
        )
