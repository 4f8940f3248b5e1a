"""Computes logits and their cross-entropy together, for a chunk of rows at a time.

The gradients of a chunk replace its logits in place. So the logits of all masked positions never exist at once (they
would take 1.2 GB in fp32 for BERT-Large with 10,000 positions). Cost: gradients are computed in forward and scaled in
backward. The computation is an operator with a registered gradient, so torch.compile does not look inside it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

_Results: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]

NO_LABEL = -1
"""Label of a row that does not count."""
CPU_CHUNK_BYTES = 4 * 2**20
"""Bytes of fp32 logits in a chunk on a CPU. A chunk of this size fits a core's caches."""
GPU_CHUNK_BYTES = 512 * 2**20
"""Bytes of logits in a chunk on a GPU. The chunk is large, because large matrix products are faster. For BERT-Large
with 32,768 tokens one chunk holds all rows."""
FP16_GRADIENT_SCALE = 1024.0
"""Factor on fp16 gradients. Without it most of them would be too small: the smallest normal fp16 number is twice the
probability of one word in 30,000."""


def linear_cross_entropy_sum(
    hidden: Tensor, weight: Tensor, bias: Tensor, *, labels: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (weighted sum of cross-entropies, weighted count of correct predictions, each row's weighted loss [N]).

    The logits are `hidden @ weight.T + bias`. hidden [N, width], weight [V, width] and bias [V] have one float type.
    labels are int64 [N] in 0..V-1, or NO_LABEL for rows that do not count; weights are float32 [N]. Only the first
    result has a gradient. Softmax, sums and results are in float32, and the gradient of `weight` is also summed in
    float32. If the inputs are float64, losses and their sum are in float64.
    """
    weights = weights * (labels != NO_LABEL)
    loss_sum, correct, losses, *_ = linear_cross_entropy(
        hidden, weight, bias, labels.clamp(min=0), weights, torch.is_grad_enabled()
    )
    return loss_sum, correct.detach(), losses.detach()


@torch.library.custom_op("cloze::linear_cross_entropy", mutates_args=())
def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, weights: Tensor, with_gradients: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the cross-entropy of the logits `hidden @ weight.T + bias` and its gradients, a chunk of rows at a time.

    Returns (weighted sum of losses, weighted count of correct predictions, each row's weighted loss, and the gradients
    of hidden, weight and bias). The gradients are those of the sum of losses, multiplied by FP16_GRADIENT_SCALE if
    `hidden` is fp16. The gradients of weight and bias are fp32. If `with_gradients` is false, all three gradients are
    empty. Labels must be in 0..V-1.
    """
    if hidden.is_cuda and hidden.dtype != torch.float64:
        return _on_gpu(hidden, weight, bias, labels, weights, with_gradients)
    return _on_cpu(hidden, weight, bias, labels, weights, with_gradients)


@linear_cross_entropy.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, weights: Tensor, with_gradients: bool) -> _Results:
    return _empty_results(hidden, weight, bias, with_gradients)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[3:])
    ctx.dtypes = [tensor.dtype for tensor in inputs[:3]]
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, upstream: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if upstream is None:
        return (None,) * 6
    factor = upstream / _gradient_scale(ctx.dtypes[0])
    scaled = [(saved * factor).to(dtype) for saved, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)]
    return *scaled, None, None, None


linear_cross_entropy.register_autograd(_backward, setup_context=_setup_context)


def _gradient_scale(dtype: torch.dtype) -> float:
    return FP16_GRADIENT_SCALE if dtype == torch.float16 else 1.0


def _empty_results(hidden: Tensor, weight: Tensor, bias: Tensor, with_gradients: bool) -> _Results:
    wide = torch.promote_types(hidden.dtype, torch.float32)
    losses = torch.empty(hidden.shape[0], dtype=wide, device=hidden.device)
    shapes = [tensor.shape if with_gradients else (0,) for tensor in (hidden, weight, bias)]
    return (
        losses.new_empty(()),
        torch.empty((), dtype=torch.float32, device=hidden.device),
        losses,
        hidden.new_empty(shapes[0]),
        losses.new_empty(shapes[1]),
        losses.new_empty(shapes[2]),
    )


def _on_gpu(
    hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, weights: Tensor, with_gradients: bool
) -> _Results:
    from trainer.model.kernels import cross_entropy as kernels

    _, _, losses, hidden_gradient, weight_gradient, bias_gradient = _empty_results(hidden, weight, bias, with_gradients)
    correct = torch.empty_like(weights)
    if hidden.shape[0] == 0:
        weight_gradient.zero_()
        bias_gradient.zero_()
    rows = max(1, GPU_CHUNK_BYTES // (hidden.element_size() * weight.shape[0]))
    for start in range(0, hidden.shape[0], rows):
        chunk = slice(start, start + rows)
        logits = hidden[chunk] @ weight.t()
        kernels.forward_and_gradient(
            logits, bias, labels[chunk], weights[chunk], losses=losses[chunk], correct=correct[chunk],
            gradient_scale=_gradient_scale(hidden.dtype) if with_gradients else None,
        )  # fmt: skip
        if with_gradients:
            torch.mm(logits, weight, out=hidden_gradient[chunk])
            _add_product(weight_gradient, logits.t(), hidden[chunk], first=start == 0)
            column_sums = logits.sum(0, dtype=torch.float32)
            _ = bias_gradient.copy_(column_sums) if start == 0 else bias_gradient.add_(column_sums)
    return losses.sum(), correct.sum(), losses, hidden_gradient, weight_gradient, bias_gradient


def _add_product(into: Tensor, left: Tensor, right: Tensor, *, first: bool) -> None:
    """Add left @ right to `into` (fp32), or overwrite `into` if `first`. Sums are in fp32, whatever type the factors
    have."""
    if left.dtype == into.dtype:
        torch.addmm(into, left, right, beta=0.0 if first else 1.0, out=into)
    elif first:
        torch.mm(left, right, out_dtype=into.dtype, out=into)
    else:
        into.add_(torch.mm(left, right, out_dtype=into.dtype))


def _on_cpu(
    hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, weights: Tensor, with_gradients: bool
) -> _Results:
    loss_sum, correct, losses, hidden_gradient, weight_gradient, bias_gradient = _empty_results(
        hidden, weight, bias, with_gradients
    )
    for total in (loss_sum, correct, weight_gradient, bias_gradient):
        total.zero_()
    wide, gradient_scale = losses.dtype, _gradient_scale(hidden.dtype)
    rows = max(1, CPU_CHUNK_BYTES // (4 * weight.shape[0]))
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
        wide_weights = part_weights.to(wide) * gradient_scale
        gradient = exponentials.mul_((wide_weights / denominator)[:, None])
        gradient.scatter_add_(1, part_labels, -wide_weights[:, None])
        bias_gradient += gradient.sum(0)
        gradient = gradient.to(hidden.dtype)
        hidden_gradient[start : start + rows] = gradient @ weight
        if wide == hidden.dtype:
            weight_gradient.addmm_(gradient.t(), part)
        else:
            weight_gradient += gradient.t() @ part
    return loss_sum, correct, losses, hidden_gradient, weight_gradient, bias_gradient
