"""The stack of transformer layers, post-LN (as published) or pre-LN (as megatron-bert)."""

from __future__ import annotations

from torch import Tensor, nn

from trainer.config import ModelConfig
from trainer.model.attention import SelfAttention, SequenceLayout
from trainer.model.dropout import Dropout
from trainer.model.layers import Linear, activation_function, layer_norm

FEED_FORWARD_FACTOR = 4


class FeedForward(nn.Module):
    """width -> 4 width -> width with GELU between, without dropout and residual around it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = Linear(config.width, FEED_FORWARD_FACTOR * config.width)
        self.down = Linear(FEED_FORWARD_FACTOR * config.width, config.width)
        self.activation = activation_function(config.activation)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, width] -> [T, width]."""
        return self.down(self.activation(self.up(hidden)))  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each with dropout, residual and LayerNorm.

    post: x = norm(x + dropout(f(x))); pre: x = x + dropout(f(norm(x))).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.attention = SelfAttention(config)
        self.attention_norm = layer_norm(config.width)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = layer_norm(config.width)
        self.dropout = Dropout(config.dropout)

    def forward(self, hidden: Tensor, *, layout: SequenceLayout) -> Tensor:
        """[T, width] -> [T, width]."""
        if self.pre_norm:
            hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden), layout=layout))
            return hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))  # type: ignore[no-any-return]
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, layout=layout)))
        return self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """All layers; pre-LN ends with a LayerNorm of its own."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))
        self.norm = layer_norm(config.width) if config.norm == "pre" else None

    def forward(self, hidden: Tensor, *, layout: SequenceLayout) -> Tensor:
        """[T, width] -> [T, width]."""
        for layer in self.layers:
            hidden = layer(hidden, layout=layout)
        return hidden if self.norm is None else self.norm(hidden)
