"""norm(residual + dropout(branch)), with one pass over memory for forward and one for backward.

Memory traffic decides the speed: forward reads two tensors and writes one; backward reads four and writes two. While
rows are on chip, backward also sums, in a fixed order, the gradients of weight, bias and branch_bias (the bias of the
linear layer that computed branch). The sum residual + dropout(branch) is not stored, so backward computes it again. The
dropout mask is the same as in dropout.keep_hash.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.model.kernels.hashing import mix

FORWARD_TILES = {"BLOCK_M": 2, "num_warps": 4}
BACKWARD_TILES = {"ROWS": 64, "STAGES": 3, "num_warps": 4}


@triton.jit
def _keys(seeds_ptr, rows, columns):
    """Return uint32 keys (hashes for dropout) for `rows` and for `columns`. `rows` may be the index of one row.

    An element's random number is the product of its row's key and its column's key, as int32. It decides whether
    dropout drops the element.
    """
    row_keys = mix(tl.cast(rows, tl.uint32) + tl.load(seeds_ptr).to(tl.uint32)) | 1
    return row_keys, mix(columns.to(tl.uint32) + tl.load(seeds_ptr + 1).to(tl.uint32))


@triton.jit
def norm_forward_kernel(
    branch_ptr, residual_ptr, weight_ptr, bias_ptr, seeds_ptr, out_ptr, mean_ptr, rstd_ptr,
    num_rows, num_columns, epsilon, inverse_keep, threshold,
    BLOCK_N: tl.constexpr, DROPOUT: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Write LayerNorm(residual + dropout(branch)) of BLOCK_M rows. Also write each row's mean and inverse standard
    deviation (fp32)."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    row_ok, column_ok = rows < num_rows, columns < num_columns
    inside = row_ok[:, None] & column_ok[None, :]
    places = rows[:, None].to(tl.int64) * num_columns + columns[None, :]
    x = tl.load(branch_ptr + places, mask=inside, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + places, mask=inside, other=0.0).to(tl.float32)
    if DROPOUT:
        row_keys, column_keys = _keys(seeds_ptr, rows, columns)
        draws = (row_keys[:, None] * column_keys[None, :]).to(tl.int32, bitcast=True)
        x = tl.where(draws >= threshold, x * inverse_keep, 0.0)
    x += residual
    mean = tl.sum(x, 1) / num_columns
    centred = tl.where(column_ok[None, :], x - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / num_columns + epsilon)
    weight = tl.load(weight_ptr + columns, mask=column_ok, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + columns, mask=column_ok, other=0.0).to(tl.float32)
    out = centred * rstd[:, None] * weight[None, :] + bias[None, :]
    tl.store(out_ptr + places, out.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(mean_ptr + rows, mean, mask=row_ok)
    tl.store(rstd_ptr + rows, rstd, mask=row_ok)


@triton.jit
def norm_backward_kernel(
    branch_ptr, residual_ptr, weight_ptr, seeds_ptr, mean_ptr, rstd_ptr, upstream_ptr, sink_gradient_ptr,
    branch_gradient_ptr, residual_gradient_ptr, sums_ptr,
    num_rows, num_columns, inverse_keep, threshold,
    BLOCK_N: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the gradients of branch and residual for ROWS rows, one row after another.

    Also write sums over these rows, in fp32. They are this program's part of the gradients of weight, bias and
    branch_bias. The parts of all programs form a tensor [programs, 3, columns].
    """
    columns = tl.arange(0, BLOCK_N)
    column_ok = columns < num_columns
    weight = tl.load(weight_ptr + columns, mask=column_ok, other=0.0).to(tl.float32)
    weight_sum = tl.zeros([BLOCK_N], tl.float32)
    bias_sum = tl.zeros([BLOCK_N], tl.float32)
    branch_sum = tl.zeros([BLOCK_N], tl.float32)
    first = tl.program_id(0) * ROWS
    if DROPOUT:
        seed = tl.load(seeds_ptr).to(tl.uint32)
        column_keys = mix(columns.to(tl.uint32) + tl.load(seeds_ptr + 1).to(tl.uint32))
    for row in tl.range(first, min(first + ROWS, num_rows), num_stages=STAGES):
        places = tl.cast(row, tl.int64) * num_columns + columns
        x = tl.load(branch_ptr + places, mask=column_ok, other=0.0).to(tl.float32)
        residual = tl.load(residual_ptr + places, mask=column_ok, other=0.0).to(tl.float32)
        upstream = tl.load(upstream_ptr + places, mask=column_ok, other=0.0).to(tl.float32)
        upstream += tl.load(sink_gradient_ptr + places, mask=column_ok, other=0.0).to(tl.float32)
        mean, rstd = tl.load(mean_ptr + row), tl.load(rstd_ptr + row)
        if DROPOUT:
            draws = (mix(tl.cast(row, tl.uint32) + seed) | 1) * column_keys
            kept = draws.to(tl.int32, bitcast=True) >= threshold
            x = tl.where(kept, x * inverse_keep, 0.0)
        normal = tl.where(column_ok, (x + residual - mean) * rstd, 0.0)
        scaled = upstream * weight
        along = tl.sum(scaled * normal, 0) / num_columns
        gradient = rstd * (scaled - tl.sum(scaled, 0) / num_columns - normal * along)
        tl.store(residual_gradient_ptr + places, gradient.to(residual_gradient_ptr.dtype.element_ty), mask=column_ok)
        if DROPOUT:
            gradient = tl.where(kept, gradient * inverse_keep, 0.0)
        tl.store(branch_gradient_ptr + places, gradient.to(branch_gradient_ptr.dtype.element_ty), mask=column_ok)
        weight_sum += upstream * normal
        bias_sum += upstream
        branch_sum += gradient
    spot = sums_ptr + tl.program_id(0).to(tl.int64) * 3 * num_columns + columns
    tl.store(spot, weight_sum, mask=column_ok)
    tl.store(spot + num_columns, bias_sum, mask=column_ok)
    tl.store(spot + 2 * num_columns, branch_sum, mask=column_ok)


def forward(
    branch: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor,
    seeds: Tensor,
    *,
    dropout: float,
    epsilon: float,
    tiles: dict[str, Any] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute LayerNorm(residual + dropout(branch)).

    Returns the LayerNorm's result in branch's shape, and each row's mean and inverse standard deviation, both fp32
    [rows]. branch and residual are [rows, columns], weight and bias [columns]. seeds are int32, of which the first two
    are used. All tensors are contiguous. `tiles` replaces the launch settings FORWARD_TILES.
    """
    tiles = tiles or FORWARD_TILES
    rows, columns = branch.shape
    out = torch.empty_like(branch)
    mean = torch.empty(rows, dtype=torch.float32, device=branch.device)
    rstd = torch.empty_like(mean)
    norm_forward_kernel[(triton.cdiv(rows, tiles["BLOCK_M"]),)](
        branch, residual, weight, bias, seeds, out, mean, rstd,
        rows, columns, epsilon, 1 / (1 - dropout), smallest_kept_draw(dropout),
        BLOCK_N=triton.next_power_of_2(columns), DROPOUT=dropout > 0, **tiles,
    )  # fmt: skip
    return out, mean, rstd


def backward(
    branch: Tensor,
    residual: Tensor,
    weight: Tensor,
    seeds: Tensor,
    mean: Tensor,
    rstd: Tensor,
    upstream: Tensor,
    sink_gradient: Tensor,
    *,
    dropout: float,
    tiles: dict[str, Any] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of branch, the gradient of residual, and the gradients of weight, bias and branch_bias.

    The last three gradients are the rows of one tensor [3, columns]. mean and rstd (inverse standard deviation) are
    what `forward` returned. The model uses the result of `forward` twice. `upstream` and `sink_gradient` are the
    result's gradients from these two uses, and the kernel adds them. All tensors are contiguous. `tiles` replaces the
    launch settings BACKWARD_TILES.
    """
    tiles = tiles or BACKWARD_TILES
    rows, columns = branch.shape
    branch_gradient, residual_gradient = torch.empty_like(branch), torch.empty_like(branch)
    programs = triton.cdiv(rows, tiles["ROWS"])
    sums = torch.empty(programs, 3, columns, dtype=torch.float32, device=branch.device)
    norm_backward_kernel[(programs,)](
        branch, residual, weight, seeds, mean, rstd, upstream, sink_gradient, branch_gradient, residual_gradient, sums,
        rows, columns, 1 / (1 - dropout), smallest_kept_draw(dropout),
        BLOCK_N=triton.next_power_of_2(columns), DROPOUT=dropout > 0, **tiles,
    )  # fmt: skip
    return branch_gradient, residual_gradient, sums.sum(0).to(branch.dtype)


def smallest_kept_draw(dropout: float) -> int:
    """Return the smallest int32 random number with which an element is kept, if `dropout` is the probability of
    dropping it."""
    return round(dropout * 2**32) - 2**31
