"""The hidden states of all layers, and vectors made of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipeline.settings import ConfigError
from trainer.features.config import LayersConfig
from trainer.model import Batch, BertForPretraining


def hidden_states(model: BertForPretraining, batch: Batch) -> list[Tensor]:
    """Return the output of the embeddings and of every layer, [T, width] each.

    They are transformers' `hidden_states`: of a pre-LN model, the last one has passed the final LayerNorm.
    """
    found: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Any) -> None:
        found.append(output[0] if isinstance(output, tuple) else output)

    modules = [model.embeddings, *model.encoder.layers]
    hooks = [module.register_forward_hook(keep) for module in modules]
    try:
        last = model.encode(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return [*found[:-1], last]


def combine(states: list[Tensor], *, config: LayersConfig) -> Tensor:
    """Return one vector a token: [T, width], or [T, layers x width]. ConfigError if the model lacks a layer."""
    count = len(states)
    for number in config.numbers:
        if not -count <= number < count:
            raise ConfigError(f"layers.numbers has {number}, the model has layers 0 to {count - 1}; give one of them")
    chosen = [states[number] for number in config.numbers]
    if config.combine == "concatenate":
        return torch.cat(chosen, dim=-1)
    weights = config.weights or (1.0,) * len(chosen)
    return torch.stack([weight * state for weight, state in zip(weights, chosen, strict=True)]).sum(0)


def pool(vectors: Tensor, *, batch: Batch, how: str) -> Tensor:
    """Return one vector a row, [rows, width], from [T, width]: that of [CLS], or the mean over the row's tokens."""
    if how == "cls":
        return vectors.index_select(0, batch.cls_positions)
    lengths = batch.offsets.diff().long()
    row = torch.repeat_interleave(torch.arange(len(lengths), device=vectors.device), lengths)
    sums = vectors.new_zeros(len(lengths), vectors.shape[-1]).index_add_(0, row, vectors)
    return sums / lengths[:, None]
