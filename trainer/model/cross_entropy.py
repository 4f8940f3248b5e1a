"""Product with the vocabulary and cross-entropy in one step, a few rows at a time.

The logits of all masked positions (1.2 GB in fp32 for BERT-Large at 10,000 of them) never exist: each chunk's
softmax turns into its gradients at once. Cost: the weight's gradient is computed in forward, and scaled in backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NO_LABEL = -1
"""Label of a row that predicts nothing."""
CPU_CHUNK_BYTES = 4 * 2**20
"""Of fp32 logits: what a core's caches hold."""
GPU_CHUNK_BYTES = 256 * 2**20
"""Of fp32 logits: large enough for full matrix products."""


def linear_cross_entropy_sum(
    hidden: Tensor, weight: Tensor, bias: Tensor, *, labels: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted sum of cross-entropies of `hidden @ weight.T + bias`, weighted count of correct predictions, and the
    weighted cross-entropies themselves, [N].

    hidden [N, width], weight [V, width], bias [V], all of one float type; labels int64 [N] in 0..V-1 (or NO_LABEL,
    which counts nothing), weights float32 [N]. All float32, the second and third without gradient. Softmax and sums
    run in float32, the weight's gradient is summed over chunks in float32 (all in float64 for float64).
    """
    weights = weights * (labels != NO_LABEL)
    labels = labels.clamp(min=0)
    chunk_bytes = CPU_CHUNK_BYTES if hidden.is_cpu else GPU_CHUNK_BYTES
    rows = max(1, chunk_bytes // (4 * weight.shape[0]))
    result: tuple[Tensor, Tensor, Tensor] = _LinearCrossEntropySum.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, labels, weights, rows, torch.is_grad_enabled()
    )
    return result


class _LinearCrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        labels: Tensor,
        weights: Tensor,
        rows: int,
        with_gradients: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        loss_sum = torch.zeros((), dtype=wide, device=hidden.device)
        correct = torch.zeros((), dtype=torch.float32, device=hidden.device)
        losses = torch.empty(hidden.shape[0], dtype=wide, device=hidden.device)
        if with_gradients:
            hidden_gradient = torch.empty_like(hidden)
            weight_gradient = torch.zeros_like(weight, dtype=wide)
            bias_gradient = torch.zeros_like(bias, dtype=wide)
        for start in range(0, hidden.shape[0], rows):
            part = hidden[start : start + rows]
            part_labels = labels[start : start + rows, None]
            part_weights = weights[start : start + rows]
            logits = torch.addmm(bias, part, weight.t()).to(wide)
            label_logits = logits.gather(1, part_labels).squeeze(1)
            largest, predicted = logits.max(1)
            correct += ((predicted == part_labels.squeeze(1)) * part_weights).sum()
            exponentials = logits.sub_(largest[:, None]).exp_()
            denominator = exponentials.sum(1)
            part_losses = (denominator.log() + largest - label_logits) * part_weights
            losses[start : start + rows] = part_losses
            loss_sum += part_losses.sum()
            if not with_gradients:
                continue
            wide_weights = part_weights.to(wide)
            gradient = exponentials.mul_((wide_weights / denominator)[:, None])
            gradient.scatter_add_(1, part_labels, -wide_weights[:, None])
            bias_gradient += gradient.sum(0)
            gradient = gradient.to(hidden.dtype)
            hidden_gradient[start : start + rows] = gradient @ weight
            if wide == hidden.dtype:
                weight_gradient.addmm_(gradient.t(), part)
            else:
                weight_gradient += gradient.t() @ part
        if with_gradients:
            ctx.save_for_backward(hidden_gradient, weight_gradient, bias_gradient)
            ctx.dtypes = (hidden.dtype, weight.dtype, bias.dtype)
        ctx.mark_non_differentiable(correct, losses)
        return loss_sum, correct, losses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [(saved * gradient).to(dtype) for saved, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)]
        return (*scaled, None, None, None, None)
