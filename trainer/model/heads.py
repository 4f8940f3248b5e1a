"""Pooler and the two pretraining heads, which run only on [CLS] and on the masked positions.

Losses are sums of weighted fp32 cross-entropies: the loop divides by the global counts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import ModelConfig
from trainer.model.cross_entropy import NO_LABEL, linear_cross_entropy_sum
from trainer.model.layers import Linear, activation_function, layer_norm

PADDED_LOGIT = -30_000.0
"""Logit of the vocabulary's padding rows: its exp is zero beside any real logit, and it fits fp16."""


class Pooler(nn.Module):
    """tanh of a dense layer over [CLS]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = Linear(config.width, config.width)

    def forward(self, cls_hidden: Tensor) -> Tensor:
        """[P, width] -> [P, width]."""
        return torch.tanh(self.dense(cls_hidden))


class MaskedLanguageHead(nn.Module):
    """Dense, GELU, LayerNorm, then the product with the tied embedding plus a bias for each word.

    `tied_weight` is the embedding's Parameter itself, registered here under a second name: so this module's hooks
    gather it under ZeRO-3, its gradients add up, and named_parameters() lists it once, as embeddings.word.weight.
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
        """[M, width] -> logits [M, padded vocabulary]; with labels and weights, the result of linear_cross_entropy_sum.

        Padding rows of the vocabulary get PADDED_LOGIT, hence no probability and no gradient.
        """
        hidden = self.norm(self.activation(self.dense(hidden)))
        num_padding = self.tied_weight.shape[0] - self.bias.shape[0]
        bias = F.pad(self.bias, (0, num_padding), value=PADDED_LOGIT)
        if labels is None or weights is None:
            return F.linear(hidden, self.tied_weight, bias)
        return linear_cross_entropy_sum(hidden, self.tied_weight, bias, labels=labels, weights=weights)


class NextSentenceHead(nn.Module):
    """A dense layer with two classes: 0 = the second segment follows the first, 1 = it does not."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = Linear(config.width, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """[P, width] -> logits [P, 2]."""
        return self.dense(pooled)  # type: ignore[no-any-return]


def cross_entropy_sum(logits: Tensor, *, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted sum of the cross-entropies, and weighted count of rows whose largest logit is the label's.

    logits [N, C] of any float type, labels int64 [N] (NO_LABEL does not count), weights float32 [N]. Returns two
    float32 scalars, the second without gradient. Softmax and sum are in float32.
    """
    losses = F.cross_entropy(logits.float(), labels, reduction="none", ignore_index=NO_LABEL)
    correct = (logits.detach().argmax(-1) == labels) * weights
    return (losses * weights).sum(), correct.sum()
