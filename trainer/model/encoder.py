"""The stack of transformer layers, post-LN (as published) or pre-LN (as megatron-bert)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.config import ModelConfig
from trainer.model.attention import SelfAttention, SequenceLayout
from trainer.model.dropout import Dropout
from trainer.model.gelu_gpu import linear_gelu
from trainer.model.layers import Linear, activation_function, layer_norm
from trainer.model.residual_norm import ResidualNorm, is_fused

FEED_FORWARD_FACTOR = 4


class ActivatedLinear(Linear):
    """A linear layer and GELU after it: one module, so that ZeRO-3 has its parameters at hand."""

    def __init__(self, width_in: int, width_out: int, *, activation: str) -> None:
        super().__init__(width_in, width_out)
        self.tanh = activation == "gelu_tanh"
        self.activation = activation_function(activation)

    def forward(self, hidden: Tensor) -> Tensor:  # type: ignore[override]
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

    def forward(self, hidden: Tensor, *, bias_gradient: bool = True) -> Tensor:
        """[T, width] -> [T, width]. bias_gradient: of the last bias, see layers.Linear."""
        return self.down(self.up(hidden), bias_gradient=bias_gradient)  # type: ignore[no-any-return]


class PostNormLayer(nn.Module):
    """Attention and feed-forward, each x = norm(x + dropout(f(x)))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = ResidualNorm(config.width, dropout=config.dropout)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = ResidualNorm(config.width, dropout=config.dropout)

    def forward(self, hidden: Tensor, residual: Tensor, *, layout: SequenceLayout) -> tuple[Tensor, Tensor]:
        """Both [T, width] and equal -> the same; see ResidualNorm for why there are two."""
        last = self.attention.output
        fused = is_fused(hidden, last=last)
        branch = self.attention(hidden, layout=layout, bias_gradient=not fused)
        hidden, residual = self.attention_norm(branch, residual, branch_bias=last.bias if fused else None)
        last = self.feed_forward.down
        fused = is_fused(hidden, last=last)
        branch = self.feed_forward(hidden, bias_gradient=not fused)
        return self.feed_forward_norm(branch, residual, branch_bias=last.bias if fused else None)  # type: ignore[no-any-return]


class PreNormLayer(nn.Module):
    """Attention and feed-forward, each x = x + dropout(f(norm(x)))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = layer_norm(config.width)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = layer_norm(config.width)
        self.dropout = Dropout(config.dropout)

    def forward(self, hidden: Tensor, *, layout: SequenceLayout) -> Tensor:
        """[T, width] -> [T, width]."""
        hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden), layout=layout))
        return hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))  # type: ignore[no-any-return]


class PostNormEncoder(nn.Module):
    """All layers of a post-LN model."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(PostNormLayer(config) for _ in range(config.num_layers))

    def forward(self, hidden: Tensor, *, layout: SequenceLayout) -> Tensor:
        """[T, width] -> [T, width]."""
        residual = hidden
        for layer in self.layers:
            hidden, residual = layer(hidden, residual, layout=layout)
        return hidden


class PreNormEncoder(nn.Module):
    """All layers of a pre-LN model, and the LayerNorm after them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(PreNormLayer(config) for _ in range(config.num_layers))
        self.norm = layer_norm(config.width)

    def forward(self, hidden: Tensor, *, layout: SequenceLayout) -> Tensor:
        """[T, width] -> [T, width]."""
        for layer in self.layers:
            hidden = layer(hidden, layout=layout)
        return self.norm(hidden)  # type: ignore[no-any-return]
