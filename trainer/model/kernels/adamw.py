"""AdamW over one flat partition (a rank's share of the weights) in one pass: clipping, moments, decay, fp32 weights and
their bf16 or fp16 copy.

torch's fused AdamW needs fp32 gradients and does not make the copy. Converting the gradients and copying the weights
separately would add half as much memory traffic again for BERT-Large. The host computes the bias corrections, because
it knows the step.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

TILES = {"BLOCK": 2048, "num_warps": 8}


@triton.jit
def adamw_kernel(
    weight_ptr, exp_avg_ptr, exp_avg_sq_ptr, gradient_ptr, model_weight_ptr, divisor_ptr, skip_ptr,
    rate, inverse_root, shrink, beta1, beta2, epsilon, numel, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take one AdamW step (see `update`) for one block of elements. Write nothing if *skip_ptr is not zero."""
    if tl.load(skip_ptr) == 0.0:
        places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = places < numel
        gradient = tl.load(gradient_ptr + places, mask=inside, other=0.0).to(tl.float32) / tl.load(divisor_ptr)
        exp_avg = tl.load(exp_avg_ptr + places, mask=inside, other=0.0)
        exp_avg_sq = tl.load(exp_avg_sq_ptr + places, mask=inside, other=0.0)
        weight = tl.load(weight_ptr + places, mask=inside, other=0.0)
        exp_avg += (1.0 - beta1) * (gradient - exp_avg)
        exp_avg_sq += (1.0 - beta2) * (gradient * gradient - exp_avg_sq)
        weight = weight * shrink - rate * exp_avg / (tl.sqrt(exp_avg_sq) * inverse_root + epsilon)
        tl.store(exp_avg_ptr + places, exp_avg, mask=inside)
        tl.store(exp_avg_sq_ptr + places, exp_avg_sq, mask=inside)
        tl.store(weight_ptr + places, weight, mask=inside)
        tl.store(model_weight_ptr + places, weight.to(model_weight_ptr.dtype.element_ty), mask=inside)


def update(
    weight: Tensor,
    *,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    gradient: Tensor,
    model_weights: Tensor,
    divisor: Tensor,
    skip: Tensor,
    step: float,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """Take one step of AdamW (Loshchilov and Hutter 2019) in place. `step` is the step's number, from 1.

    `weight` and the moments `exp_avg` and `exp_avg_sq` are fp32. `gradient` has any float type and is divided by
    `divisor`. `model_weights` gets a copy of the new weights, rounded to the type of `model_weights`. These five
    tensors are 1-D, contiguous and of one size. `divisor` and `skip` are fp32 scalars on the device; if `skip` is not
    zero, nothing changes. If `step` is infinite, the bias corrections are 1.
    """
    beta1, beta2 = betas
    adamw_kernel[(triton.cdiv(weight.numel(), TILES["BLOCK"]),)](
        weight, exp_avg, exp_avg_sq, gradient, model_weights, divisor, skip,
        learning_rate / (1.0 - beta1**step), 1.0 / math.sqrt(1.0 - beta2**step), 1.0 - learning_rate * weight_decay,
        beta1, beta2, epsilon, weight.numel(), **TILES,
    )  # fmt: skip
