"""The optimizer that DeepSpeed wraps: AdamW with two kinds of groups, decayed matrices and everything else.

Invariant: the groups depend on the model alone, so that every rank, stage and run has the same order. Always torch's
fused AdamW: DeepSpeed's FusedAdam is compiled on first use (52 s), and for BERT-tiny on a CPU core the fused kernel
takes 3 ms, the plain loop 21 ms.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from trainer.config import OptimizerConfig

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's state: running means of the gradient and of its square, fp32, shaped as the parameter."""

ALIGNED = 8
"""Elements (16 bytes in bf16 and fp16): an alignment that compiled code relies on once it has seen it."""


def parameter_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Return matrices with `weight_decay` and biases and LayerNorm without, in the fewest groups that stay aligned.

    google-research/bert (optimization.py) does not decay "LayerNorm", "layer_norm" and "bias": exactly the parameters
    with one dimension. Tied parameters are listed once. DeepSpeed stores a group's parameters one after another in a
    flat buffer and gives the model views of it: a parameter of odd size comes last in its group, so that every view
    begins at a multiple of ALIGNED elements. Raises ValueError if no parameter is trainable.
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
    """Return Adam's step count after `steps_taken` updates: infinite without bias correction.

    1 - beta ** inf is exactly 1, so dividing by it corrects nothing (as in google-research/bert, optimization.py). The
    count stays infinite when an update adds 1.
    """
    return float(steps_taken) if config.bias_correction else math.inf


def build_optimizer(model: nn.Module, *, config: OptimizerConfig) -> torch.optim.AdamW:
    """Build AdamW with decoupled weight decay (Loshchilov and Hutter 2019) over `parameter_groups`.

    Its step count, set from `count_updates`, decides whether it corrects the moments' bias. Its rate is zero until
    `Engine.step` sets it: DeepSpeed may take a step with empty gradients while it initializes, which then changes no
    parameter.
    """
    return torch.optim.AdamW(
        parameter_groups(model, weight_decay=config.weight_decay),
        lr=0.0,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )
