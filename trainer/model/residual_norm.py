"""Computes norm(residual + dropout(branch)), which ends each half (attention, feed-forward) of a post-LN layer.

On a GPU in bf16 or fp16, one kernel computes the forward pass and one kernel the backward pass
(kernels/residual_norm.py). Both are registered as operators, so torch.compile does not look inside them. Elsewhere
torch's own operations run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainer.model.dropout import Dropout
from trainer.model.layers import LAYER_NORM_EPSILON, Linear

MAX_WIDTH = 4096
"""Maximum width of a row. A wider row, and the sums over rows, would not fit into one program of the kernel."""


def is_fused(hidden: Tensor, *, last: Linear) -> bool:
    """Return whether ResidualNorm runs its GPU kernels on tensors like `hidden`.

    If so, the kernels also compute the gradient of the bias of `last`, the last layer of attention or feed-forward.
    """
    return _kernels_take(hidden) and last.parameters_persist


def _kernels_take(hidden: Tensor) -> bool:
    half = hidden.is_cuda and hidden.dtype in (torch.bfloat16, torch.float16)
    return half and hidden.shape[-1] <= MAX_WIDTH


class ResidualNorm(nn.LayerNorm):
    """LayerNorm of residual + dropout(branch). Its backward kernel adds the gradients of the result's two uses.

    The result has two uses: it is the input of the next branch, and the residual of the next ResidualNorm. Autograd
    would add the gradients of these two uses in a separate pass over memory. To avoid this pass, forward returns a
    second output, the gradient sink. It is a dummy tensor: one element, expanded to the result's shape. The next
    ResidualNorm sends its gradient of the residual to this sink. So the backward kernel of this norm gets both
    gradients and adds them itself. If the kernels do not run, the sink is the result itself.
    """

    def __init__(self, width: int, *, dropout: float) -> None:
        super().__init__(width, eps=LAYER_NORM_EPSILON)
        self.dropout = Dropout(dropout)

    def forward(  # type: ignore[override]
        self, branch: Tensor, residual: Tensor, gradient_sink: Tensor, *, seeds: Tensor, branch_bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return LayerNorm(residual + dropout(branch)), and the gradient sink of this result.

        A gradient sink is a second output that receives one of the two gradients of the result (see ResidualNorm). Both
        outputs are [T, width], like the first three arguments. The argument `gradient_sink` is the sink of `residual`.
        `seeds` is one row of the result of dropout.draw_seeds. If the GPU kernels run (is_fused), `branch_bias` is the
        bias that `branch` already includes, and the gradient of this bias is computed here. Otherwise `branch_bias` is
        None. Then `gradient_sink` is not used, and `residual` gets its gradient directly.
        """
        if branch_bias is None:
            hidden: Tensor = super().forward(residual + self.dropout(branch, seeds=seeds))
            return hidden, hidden
        dropout = self.dropout.probability if self.training else 0.0
        out, gradient_sink, _, _ = residual_norm(
            branch, residual.detach(), gradient_sink, self.weight, self.bias, branch_bias, seeds, dropout, self.eps
        )
        return out, gradient_sink


@torch.library.custom_op("cloze::residual_norm", mutates_args=())
def residual_norm(
    branch: Tensor,
    residual: Tensor,
    gradient_sink: Tensor,
    weight: Tensor,
    bias: Tensor,
    branch_bias: Tensor,
    seeds: Tensor,
    dropout: float,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute LayerNorm(residual + dropout(branch)), and what the backward pass needs.

    Returns (the result, the result's gradient sink, each row's mean, each row's inverse standard deviation). The model
    uses the result twice. A gradient sink is a dummy tensor that receives the gradient of one of these two uses (see
    ResidualNorm). The argument `gradient_sink` is the sink of `residual`.
    """
    from trainer.model.kernels import residual_norm as kernels

    out, mean, rstd = kernels.forward(
        branch.contiguous(), residual.contiguous(), weight, bias, seeds, dropout=dropout, epsilon=epsilon
    )
    return out, branch.new_empty(1).expand(branch.shape), mean, rstd


@residual_norm.register_fake
def _(branch: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    row = branch.new_empty(branch.shape[0], dtype=torch.float32)
    out = torch.empty_like(branch, memory_format=torch.contiguous_format)
    return out, branch.new_empty(1).expand(branch.shape), row, torch.empty_like(row)


@torch.library.custom_op("cloze::residual_norm_backward", mutates_args=())
def residual_norm_backward(
    branch: Tensor,
    residual: Tensor,
    weight: Tensor,
    seeds: Tensor,
    mean: Tensor,
    rstd: Tensor,
    upstream: Tensor,
    sink_gradient: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of branch, the gradient of residual, and the gradients of weight, bias and branch_bias.

    The last three gradients are the rows of one tensor [3, columns]. `mean` and `rstd` (inverse standard deviation) are
    what residual_norm returned. The model uses the result of residual_norm twice. `upstream` is the gradient from one
    use. `sink_gradient` is the gradient from the other use, which arrived through the gradient sink (see ResidualNorm).
    `sink_gradient` is None if only one use has a gradient.
    """
    from trainer.model.kernels import residual_norm as kernels

    return kernels.backward(
        branch.contiguous(), residual.contiguous(), weight, seeds, mean, rstd, upstream.contiguous(),
        torch.zeros_like(branch) if sink_gradient is None else sink_gradient.contiguous(), dropout=dropout,
    )  # fmt: skip


@residual_norm_backward.register_fake
def _(branch: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    first, second = (torch.empty_like(branch, memory_format=torch.contiguous_format) for _ in range(2))
    return first, second, branch.new_empty(3, branch.shape[-1])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    branch, residual, _, weight, _, _, seeds, ctx.dropout, _ = inputs
    ctx.save_for_backward(branch, residual, weight, seeds, *output[2:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, upstream: Tensor | None, sink_gradient: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if upstream is None:
        upstream, sink_gradient = sink_gradient, None
    if upstream is None:
        return (None,) * 9
    branch_gradient, residual_gradient, sums = residual_norm_backward(
        *ctx.saved_tensors, upstream, sink_gradient, ctx.dropout
    )
    return branch_gradient, None, residual_gradient, *sums.unbind(0), None, None, None


residual_norm.register_autograd(_backward, setup_context=_setup_context)
