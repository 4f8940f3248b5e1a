"""The pooler and the next-sentence head, which run only on [CLS], and the masked-LM head, which runs only on masked
positions.

Losses are sums of weighted fp32 cross-entropies. The training loop divides them by counts over all ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import ModelConfig
from trainer.model.cross_entropy import NO_LABEL, linear_cross_entropy_sum
from trainer.model.layers import Linear, activation_function, layer_norm

PADDED_LOGIT = -30_000.0
"""Logit of the padding rows of the word table. Beside any real logit its softmax is zero, and fp16 can hold it."""


class Pooler(nn.Module):
    """A dense layer with tanh over the hidden state of [CLS]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = Linear(config.width, config.width)

    def forward(self, cls_hidden: Tensor) -> Tensor:
        """Return a pooled vector for each pair, [P, width]. `cls_hidden` [P, width] are the hidden states of [CLS]."""
        return torch.tanh(self.dense(cls_hidden))


class MaskedLanguageHead(nn.Module):
    """A dense layer, GELU, LayerNorm, then the product with the tied embedding, plus a bias for each word.

    `tied_weight` is the Parameter of the word embedding itself, registered here under a second name. This has three
    effects. Under ZeRO-3 the hooks of this module gather the parameter. The gradients of its two uses add up. And
    named_parameters() lists it once, as embeddings.word.weight.
    """

    def __init__(self, config: ModelConfig, *, embedding: nn.Embedding, vocabulary_size: int) -> None:
        super().__init__()
        self.dense = Linear(config.width, config.width)
        self.activation = activation_function(config.activation)
        self.norm = layer_norm(config.width)
        self.tied_weight = embedding.weight
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))

    def forward(
        self, hidden: Tensor, *, labels: Tensor | None = None, weights: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Return logits [M, rows of the word table] for the hidden states of masked positions, `hidden` [M, width].

        If labels and weights are given, return the result of linear_cross_entropy_sum instead: loss sum, number of
        correct predictions, and losses [M]. The extra rows that round up the word table get the logit PADDED_LOGIT,
        so they get neither probability nor gradient.
        """
        hidden = self.norm(self.activation(self.dense(hidden)))
        num_padding = self.tied_weight.shape[0] - self.bias.shape[0]
        bias = F.pad(self.bias, (0, num_padding), value=PADDED_LOGIT)
        if labels is None or weights is None:
            return F.linear(hidden, self.tied_weight, bias)
        return linear_cross_entropy_sum(hidden, self.tied_weight, bias, labels=labels, weights=weights)


class NextSentenceHead(nn.Module):
    """A dense layer with two classes: 0 if the second segment follows the first, 1 if it does not."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = Linear(config.width, 2)
        self.dense.is_output = True

    def forward(self, pooled: Tensor) -> Tensor:
        """Return logits [P, 2] for the output of the pooler, `pooled` [P, width]."""
        return self.dense(pooled)  # type: ignore[no-any-return]


def cross_entropy_sum(logits: Tensor, *, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return (weighted sum of cross-entropies, weighted count of rows whose largest logit is the label's).

    logits [N, C] have any float type; labels are int64 [N], or NO_LABEL for rows that do not count; weights are float32
    [N]. Both results are float32 scalars, the second without gradient. Softmax and sum are in float32.
    """
    losses = F.cross_entropy(logits.float(), labels, reduction="none", ignore_index=NO_LABEL)
    correct = (logits.detach().argmax(-1) == labels) * weights
    return (losses * weights).sum(), correct.sum()
