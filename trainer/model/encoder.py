"""The stack of transformer layers, post-LN (like published BERT) or pre-LN (like megatron-bert)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.config import ModelConfig
from trainer.model.attention import SelfAttention, SequenceLayout
from trainer.model.dropout import SEED_WIDTH, Dropout
from trainer.model.gelu_gpu import linear_gelu
from trainer.model.layers import Linear, activation_function, layer_norm
from trainer.model.residual_norm import ResidualNorm, is_fused

SITES_A_LAYER = 3
"""Number of uses of dropout in a layer: on attention weights, after attention and after feed-forward."""


class ActivatedLinear(Linear):
    """A linear layer followed by GELU. On a GPU in bf16 or fp16, GELU is a kernel of our own.

    The GELU kernel needs the bias of the linear layer. Under ZeRO-3 a bias exists only while its module runs, so the
    linear layer and GELU are one module.
    """

    def __init__(self, width_in: int, width_out: int, *, activation: str) -> None:
        super().__init__(width_in, width_out)
        self.tanh = activation == "gelu_tanh"
        self.activation = activation_function(activation)

    def forward(self, hidden: Tensor) -> Tensor:  # type: ignore[override]
        """Return GELU of the linear layer's output, [T, width_out], for `hidden` [T, width_in]."""
        if hidden.is_cuda and hidden.dtype in (torch.bfloat16, torch.float16):
            return linear_gelu(hidden, self.weight, self.bias, tanh=self.tanh)
        return self.activation(super().forward(hidden))


class FeedForward(nn.Module):
    """Two linear layers, width -> feed-forward width -> width, with GELU between them. It applies neither dropout nor
    the residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = ActivatedLinear(config.width, config.feed_forward_width, activation=config.activation)
        self.down = Linear(config.feed_forward_width, config.width)

    def forward(self, hidden: Tensor, *, with_bias_gradient: bool = True) -> Tensor:
        """Return the output of the second linear layer, [T, width], for `hidden` [T, width].

        If `with_bias_gradient` is false, another module computes the gradient of the second layer's bias.
        """
        return self.down(self.up(hidden), with_bias_gradient=with_bias_gradient)  # type: ignore[no-any-return]


class PostNormLayer(nn.Module):
    """A layer of attention and then feed-forward, where each computes x = norm(x + dropout(f(x)))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = ResidualNorm(config.width, dropout=config.dropout)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = ResidualNorm(config.width, dropout=config.dropout)

    def forward(
        self, hidden: Tensor, gradient_sink: Tensor, *, layout: SequenceLayout, seeds: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the layer's output [T, width] and the output's gradient sink.

        A gradient sink is a second output that receives one of the two gradients of the first output (see
        ResidualNorm). `hidden` is the layer's input, and the argument `gradient_sink` is the sink of this input.
        `seeds` [SITES_A_LAYER, SEED_WIDTH] are random seeds for dropout.
        """
        last = self.attention.output
        fused = is_fused(hidden, last=last)
        branch = self.attention(hidden, layout=layout, seeds=seeds[0], with_bias_gradient=not fused)
        hidden, gradient_sink = self.attention_norm(
            branch, hidden, gradient_sink, seeds=seeds[1], branch_bias=last.bias if fused else None
        )
        last = self.feed_forward.down
        fused = is_fused(hidden, last=last)
        branch = self.feed_forward(hidden, with_bias_gradient=not fused)
        return self.feed_forward_norm(  # type: ignore[no-any-return]
            branch, hidden, gradient_sink, seeds=seeds[2], branch_bias=last.bias if fused else None
        )


class PreNormLayer(nn.Module):
    """A layer of attention and then feed-forward, where each computes x = x + dropout(f(norm(x)))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = layer_norm(config.width)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = layer_norm(config.width)
        self.dropout = Dropout(config.dropout)

    def forward(self, hidden: Tensor, *, layout: SequenceLayout, seeds: Tensor) -> Tensor:
        """Return the layer's output [T, width] for the layer's input `hidden` [T, width].

        `seeds` [SITES_A_LAYER, SEED_WIDTH] are random seeds for dropout.
        """
        branch = self.attention(self.attention_norm(hidden), layout=layout, seeds=seeds[0])
        hidden = hidden + self.dropout(branch, seeds=seeds[1])
        return hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)), seeds=seeds[2])  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """All layers of a model. On request it stores only their inputs in training, and computes them again in backward.

    This is known as activation checkpointing. It costs a third more computation, and gives the same bits: dropout
    depends on the seeds alone, or on torch's generators, whose state is set back.
    """

    recompute = False
    """Whether backward computes the layers again. `recompute` of the run's settings; set it before training."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def run_layer(self, layer: nn.Module, *hidden: Tensor, layout: SequenceLayout, seeds: Tensor) -> Any:
        """Return the output of `layer` for the tensors `hidden` and its `seeds`."""

        def compute(*hidden: Tensor) -> Any:
            return layer(*hidden, layout=layout, seeds=seeds)

        if not (self.recompute and torch.is_grad_enabled()):
            return compute(*hidden)
        return checkpoint(compute, *hidden, use_reentrant=False)


class PostNormEncoder(Encoder):
    """All layers of a post-LN model."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(PostNormLayer(config) for _ in range(config.num_layers))

    def forward(self, hidden: Tensor, *, layout: SequenceLayout, seeds: Tensor) -> Tensor:
        """Return the output of the last layer, [T, width], for the embeddings `hidden` [T, width].

        `seeds` [SITES_A_LAYER x layers, SEED_WIDTH] are random seeds for dropout.
        """
        gradient_sink = hidden
        for layer, own in zip(self.layers, seeds.view(-1, SITES_A_LAYER, SEED_WIDTH).unbind(0), strict=True):
            hidden, gradient_sink = self.run_layer(layer, hidden, gradient_sink, layout=layout, seeds=own)
        return hidden


class PreNormEncoder(Encoder):
    """All layers of a pre-LN model, and the LayerNorm after the last layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(PreNormLayer(config) for _ in range(config.num_layers))
        self.norm = layer_norm(config.width)

    def forward(self, hidden: Tensor, *, layout: SequenceLayout, seeds: Tensor) -> Tensor:
        """Return the output of the final LayerNorm, [T, width], for the embeddings `hidden` [T, width].

        `seeds` [SITES_A_LAYER x layers, SEED_WIDTH] are random seeds for dropout.
        """
        for layer, own in zip(self.layers, seeds.view(-1, SITES_A_LAYER, SEED_WIDTH).unbind(0), strict=True):
            hidden = self.run_layer(layer, hidden, layout=layout, seeds=own)
        return self.norm(hidden)  # type: ignore[no-any-return]
