"""norm(residual + dropout(branch)), the end of every half of a post-LN layer.

On a GPU in bf16 or fp16 it is one kernel each way (kernels/residual_norm.py), which torch.compile keeps whole;
elsewhere it is made of torch's parts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainer.model.dropout import Dropout
from trainer.model.layers import LAYER_NORM_EPSILON, Linear

MAX_WIDTH = 4096
"""Widest row that a kernel's program holds with its sums."""


def is_fused(hidden: Tensor, *, last: Linear) -> bool:
    """Whether the kernels take rows of this kind, and with them the gradient of the bias of `last`, which made them."""
    return last.parameters_stay and _kernels_take(hidden)


class ResidualNorm(nn.LayerNorm):
    """LayerNorm of residual + dropout(branch), given out twice.

    Once for what comes next and once as its residual, so that the two gradients meet inside the kernel
    instead of in a pass over memory of their own.
    """

    def __init__(self, width: int, *, dropout: float) -> None:
        super().__init__(width, eps=LAYER_NORM_EPSILON)
        self.dropout = Dropout(dropout)

    def forward(  # type: ignore[override]
        self, branch: Tensor, residual: Tensor, *, branch_bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """[T, width] each -> the norm, twice.

        branch_bias: what `branch` was made with, where is_fused and the gradient is to be made here; otherwise None.
        """
        if branch_bias is None:
            hidden: Tensor = super().forward(residual + self.dropout(branch))
            return hidden, hidden
        dropout = self.dropout.probability if self.training else 0.0
        seeds = torch.randint(-(2**31), 2**31, (2,), device=branch.device, dtype=torch.int32)
        pair: tuple[Tensor, Tensor] = _ResidualNorm.apply(  # type: ignore[no-untyped-call]
            branch, residual, self.weight, self.bias, branch_bias, seeds, dropout, self.eps
        )
        return pair


def _kernels_take(hidden: Tensor) -> bool:
    return hidden.is_cuda and hidden.dtype in (torch.bfloat16, torch.float16) and hidden.shape[-1] <= MAX_WIDTH


class _ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        branch: Tensor,
        residual: Tensor,
        weight: Tensor,
        bias: Tensor,
        branch_bias: Tensor,
        seeds: Tensor,
        dropout: float,
        epsilon: float,
    ) -> tuple[Tensor, Tensor]:
        out, mean, rstd = norm_forward(branch, residual, weight, bias, seeds, dropout, epsilon)
        ctx.save_for_backward(branch, residual, weight, seeds, mean, rstd)
        ctx.dropout = dropout
        return out, out.view_as(out)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, beside: Tensor) -> tuple[Tensor | None, ...]:
        branch_gradient, residual_gradient, sums = norm_backward(*ctx.saved_tensors, upstream, beside, ctx.dropout)
        weight_gradient, bias_gradient, branch_bias_gradient = sums.unbind(0)
        return (
            branch_gradient, residual_gradient, weight_gradient, bias_gradient, branch_bias_gradient, None, None, None,
        )  # fmt: skip


@torch.library.custom_op("cloze::residual_norm", mutates_args=())
def norm_forward(
    branch: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, seeds: Tensor, dropout: float, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """See kernels.residual_norm.forward."""
    from trainer.model.kernels import residual_norm as kernels

    return kernels.forward(
        branch.contiguous(), residual.contiguous(), weight, bias, seeds, dropout=dropout, epsilon=epsilon
    )


@norm_forward.register_fake
def _(branch: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    row = branch.new_empty(branch.shape[0], dtype=torch.float32)
    return torch.empty_like(branch, memory_format=torch.contiguous_format), row, torch.empty_like(row)


@torch.library.custom_op("cloze::residual_norm_backward", mutates_args=())
def norm_backward(
    branch: Tensor,
    residual: Tensor,
    weight: Tensor,
    seeds: Tensor,
    mean: Tensor,
    rstd: Tensor,
    upstream: Tensor,
    beside: Tensor,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """See kernels.residual_norm.backward."""
    from trainer.model.kernels import residual_norm as kernels

    return kernels.backward(
        branch.contiguous(), residual.contiguous(), weight, seeds, mean, rstd,
        upstream.contiguous(), beside.contiguous(), dropout=dropout,
    )  # fmt: skip


@norm_backward.register_fake
def _(branch: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    first, second = (torch.empty_like(branch, memory_format=torch.contiguous_format) for _ in range(2))
    return first, second, branch.new_empty(3, branch.shape[-1])
