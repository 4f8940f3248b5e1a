"""The optimizer that DeepSpeed wraps: AdamW with two kinds of parameter groups, with and without weight decay.

Invariant: the groups and their order depend on the model alone, so they are the same on every rank, and in every ZeRO
stage and run. We always use torch's fused AdamW. DeepSpeed's FusedAdam would have to be compiled on first use (52 s),
and torch's plain loop is slow (21 ms for BERT-tiny on a CPU core, fused 3 ms).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from trainer.config import OptimizerConfig

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names of Adam's moments: running means of the gradient and of its square, in fp32 and in the parameter's shape."""

ALIGNED = 8
"""Alignment of parameters in elements: 16 bytes in bf16 and fp16. Code compiled for aligned tensors relies on it."""


def parameter_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Return torch's parameter groups: dicts of "params" and "weight_decay".

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
    decayed, plain = [p for p in trainable if p.dim() > 1], [p for p in trainable if p.dim() <= 1]
    return [
        {"params": parameters, "weight_decay": decay}
        for whole, decay in ((decayed, weight_decay), (plain, 0.0))
        for parameters in _keep_aligned(whole)
    ]


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


def build_optimizer(model: nn.Module, *, config: OptimizerConfig) -> torch.optim.AdamW:
    """Return AdamW with decoupled weight decay (Loshchilov and Hutter 2019) for the groups from `parameter_groups`.

    The caller must set the optimizer's step count to the result of `count_updates`. This turns bias correction on or
    off. The learning rate is zero until `Engine.step` sets it. So if DeepSpeed takes a step with empty gradients while
    it initializes, this step changes no parameter.
    """
    return torch.optim.AdamW(
        parameter_groups(model, weight_decay=config.weight_decay),
        lr=0.0,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )
