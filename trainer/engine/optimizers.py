"""The optimizer that DeepSpeed wraps, with its parameter groups: hidden matrices, other matrices, and vectors.

Invariant: the groups and their order depend on the model alone, so they are the same on every rank, and in every ZeRO
stage and run. AdamW is torch's fused one. DeepSpeed's FusedAdam would have to be compiled on first use (52 s), and
torch's plain loop is slow (21 ms for BERT-tiny on a CPU core, fused 3 ms). All others are in update_rules.py.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from trainer.config import OptimizerConfig
from trainer.engine.update_rules import RuleOptimizer

ALIGNED = 8
"""Alignment of parameters in elements: 16 bytes in bf16 and fp16. Code compiled for aligned tensors relies on it."""


RULES = {
    "adamw": ("adamw", "adamw", "adamw"),
    "lamb": ("lamb", "lamb", "adamw"),
    "radam": ("radam", "radam", "radam"),
    "sgd": ("sgd", "sgd", "sgd"),
    "muon": ("muon", "adamw", "adamw"),
}
"""Maps an optimizer's name to the update rules of hidden matrices, of other matrices, and of vectors.

LAMB leaves the size of a vector's update as it is, as google-research/albert (`exclude_from_layer_adaptation`) and
NVIDIA's FusedLAMB do. Muon is for hidden matrices only (Jordan et al. 2024): not for embeddings and output layers.
"""


def parameter_groups(model: nn.Module, *, weight_decay: float, name: str = "adamw") -> list[dict[str, Any]]:
    """Return torch's parameter groups: dicts of "params", "weight_decay" and "rule", for the optimizer `name`.

    Matrices get `weight_decay`, biases and LayerNorm weights get 0. google-research/bert (optimization.py) excludes
    "LayerNorm", "layer_norm" and "bias" from decay, and these are exactly the parameters with one dimension. Tied
    parameters are listed once.

    DeepSpeed stores a group's parameters one after another in a flat buffer and gives the model views of it. Every view
    must begin at a multiple of ALIGNED elements. So a parameter whose size is not a multiple of ALIGNED must come last
    in its group, and a group has at most one such parameter. Each further such parameter gets a group of its own.
    Raises ValueError if no parameter is trainable.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ValueError(f"{type(model).__name__} has no trainable parameter; set requires_grad on some")
    hidden, others, vectors = RULES[name]
    apart = hidden_matrices(model) if hidden != others else set()
    kinds = (
        ([p for p in trainable if id(p) in apart], weight_decay, hidden),
        ([p for p in trainable if p.dim() > 1 and id(p) not in apart], weight_decay, others),
        ([p for p in trainable if p.dim() <= 1], 0.0, vectors),
    )
    return [
        {"params": parameters, "weight_decay": decay, "rule": rule}
        for whole, decay, rule in kinds
        for parameters in _keep_aligned(whole)
    ]


def hidden_matrices(model: nn.Module) -> set[int]:
    """Return the ids of the weights of linear layers, except those of output layers (`is_output`)."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return {id(layer.weight) for layer in layers if not getattr(layer, "is_output", False)}


def count_matrices(model: nn.Module) -> dict[str, int]:
    """Return how many matrices stand one below the other in a weight, by the weight's name, where they are several.

    A layer says so by `num_matrices`: the weight of query, key and value has three.
    """
    counts = {f"{name}.weight": getattr(module, "num_matrices", 1) for name, module in model.named_modules()}
    return {name: count for name, count in counts.items() if count > 1}


def _keep_aligned(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    even = [parameter for parameter in parameters if parameter.numel() % ALIGNED == 0]
    odd = [[parameter] for parameter in parameters if parameter.numel() % ALIGNED != 0]
    first = even + (odd.pop(0) if odd else [])
    return [group for group in (first, *odd) if group]


def count_updates(steps_taken: int, *, config: OptimizerConfig) -> float:
    """Return the step count to give to Adam: `steps_taken`, or infinity if config.bias_correction is off.

    Adam's bias correction divides by 1 - beta ** count. With an infinite count this divisor is exactly 1, so nothing is
    corrected, as in google-research/bert (optimization.py). The count stays infinite when an update adds 1.
    """
    return float(steps_taken) if config.bias_correction else math.inf


def build_optimizer(model: nn.Module, *, config: OptimizerConfig) -> torch.optim.AdamW | RuleOptimizer:
    """Return the optimizer `config.name` for the groups from `parameter_groups`. All decay weights as AdamW does,
    decoupled from the gradient (Loshchilov and Hutter 2019).

    The caller must set the optimizer's step count to the result of `count_updates`. This turns bias correction on or
    off. The learning rate is zero until `Engine.step` sets it. So if DeepSpeed takes a step with empty gradients while
    it initializes, this step changes no parameter.
    """
    groups = parameter_groups(model, weight_decay=config.weight_decay, name=config.name)
    if config.name != "adamw":
        own = {"betas": (config.beta1, config.beta2), "eps": config.epsilon, "momentum": config.momentum}
        return RuleOptimizer({**group, **own} for group in groups)
    return torch.optim.AdamW(
        groups,
        lr=0.0,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )
