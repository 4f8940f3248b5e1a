"""The stack of transformer layers, post-LN (as published) or pre-LN (as megatron-bert)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.config import ModelConfig
from trainer.model.attention import SelfAttention, SequenceLayout
from trainer.model.dropout import Dropout
from trainer.model.gelu_gpu import linear_gelu
from trainer.model.layers import Linear, activation_function, layer_norm

FEED_FORWARD_FACTOR = 4


class ActivatedLinear(Linear):
    """A linear layer and GELU after it: one module, so that ZeRO-3 has its parameters at hand."""

    def __init__(self, width_in: int, width_out: int, *, activation: str) -> None:
        super().__init__(width_in, width_out)
        self.tanh = activation == "gelu_tanh"
        self.activation = activation_function(activation)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, width_in] -> [T, width_out]."""
        if hidden.is_cuda and hidden.dtype in (torch.bfloat16, torch.float16):
            return linear_gelu(hidden, self.weight, self.bias, tanh=self.tanh)
        return self.activation(super().forward(hidden))


class FeedForward(nn.Module):
    """width -> 4 width -> width with GELU between, without dropout and residual around it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = ActivatedLinear(config.width, FEED_FORWARD_FACTOR * config.width, activation=config.activation)
        self.down = Linear(FEED_FORWARD_FACTOR * config.width, config.width)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, width] -> [T, width]."""
        return self.down(self.up(hidden))  # type: ignore[no-any-return]


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
