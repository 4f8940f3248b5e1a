"""Computes the cross-entropy of rows of logits, and writes its gradient over the logits, with one pass over memory.

One program takes one row. It reads the row twice, the second time from the cache. A row of 30,522 logits in bf16 takes
61 kB, so the rows of all programs that run at once easily fit the L2 cache of an H100.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILES = {"BLOCK": 2048, "num_warps": 8}
"""The fastest tile sizes tried on an H200 with 5,300 rows of 30,528: 0.35 ms with the gradient, 0.22 ms without."""


@triton.jit
def cross_entropy_kernel(
    logits_ptr, bias_ptr, labels_ptr, weights_ptr, losses_ptr, correct_ptr, num_columns, gradient_scale,
    BLOCK: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """Write a row's weighted loss. Write the row's weight to `correct_ptr` if the label is the argmax, otherwise 0.

    Among equal logits the first is the argmax. If GRADIENT, the gradient times `gradient_scale` replaces the logits.
    """
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels_ptr + row)
    weight = tl.load(weights_ptr + row)
    row_ptr = logits_ptr + row * num_columns
    wanted = tl.load(row_ptr + label).to(tl.float32) + tl.load(bias_ptr + label).to(tl.float32)
    largest = wanted
    total = 0.0
    beaten = 0
    for start in range(0, num_columns, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < num_columns
        logits = tl.load(row_ptr + columns, mask=inside, other=0.0).to(tl.float32)
        logits += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
        logits = tl.where(inside, logits, -float("inf"))
        new_largest = tl.maximum(largest, tl.max(logits, 0))
        total = total * tl.exp(largest - new_largest) + tl.sum(tl.exp(logits - new_largest), 0)
        largest = new_largest
        before = (logits > wanted) | ((logits == wanted) & (columns < label))
        beaten += tl.sum(before.to(tl.int32), 0)
    tl.store(losses_ptr + row, (tl.log(total) + largest - wanted) * weight)
    tl.store(correct_ptr + row, tl.where(beaten == 0, weight, 0.0))
    if GRADIENT:
        scale = weight * gradient_scale
        share = scale / total
        for start in range(0, num_columns, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            inside = columns < num_columns
            logits = tl.load(row_ptr + columns, mask=inside, other=0.0).to(tl.float32)
            logits += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
            gradient = tl.exp(logits - largest) * share - tl.where(columns == label, scale, 0.0)
            tl.store(row_ptr + columns, gradient.to(logits_ptr.dtype.element_ty), mask=inside)


def forward_and_gradient(
    logits: Tensor,
    bias: Tensor,
    labels: Tensor,
    weights: Tensor,
    *,
    losses: Tensor,
    correct: Tensor,
    gradient_scale: float | None,
    tiles: dict[str, Any] | None = None,
) -> None:
    """Write each row's weighted loss into `losses`. Write the row's weight into `correct` if the prediction is right,
    else 0.

    bias [V] is added to logits [N, V] in fp32. labels are int64 [N] in 0..V-1; weights, losses and correct are fp32
    [N]; all tensors are contiguous. The gradient of the sum of losses, times `gradient_scale`, replaces the logits. If
    `gradient_scale` is None, the logits do not change. `tiles` replaces the launch settings TILES.
    """
    num_rows, num_columns = logits.shape
    scale = 1.0 if gradient_scale is None else gradient_scale
    assert all(tensor.is_contiguous() for tensor in (logits, bias, labels, weights, losses, correct))
    assert losses.dtype == correct.dtype == weights.dtype == torch.float32
    if num_rows:
        cross_entropy_kernel[(num_rows,)](
            logits, bias, labels, weights, losses, correct, num_columns, scale,
            GRADIENT=gradient_scale is not None, **(tiles or TILES),
        )  # fmt: skip
