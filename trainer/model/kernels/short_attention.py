"""Self-attention with dropout over packed sequences of at most a few hundred tokens: forward and backward.

One program takes a tile of queries (or of keys) in one head of one sequence and walks over the keys (or queries), with
online softmax as in FlashAttention 2 (Dao 2023). Backward has no helper kernels: one pass computes dQ and the row sums
of dO * O, and a second pass computes dK and dV. So there are no atomic additions, and the result is deterministic. The
dropout mask is a function of (seed, head, token, column). Each element of the mask takes one 32-bit product of a row
key and a column key. Backward computes the mask again. Scores are in units of log2, so that exp2 needs no extra
product.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.model.kernels.hashing import mix

LOG2_E = math.log2(math.e)
FORWARD_TILES = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
BACKWARD_Q_TILES = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 3}
BACKWARD_KV_TILES = {"BLOCK_M": 32, "BLOCK_N": 128, "num_warps": 4, "num_stages": 3}
"""The fastest tile sizes tried on an H100 with heads of width 64."""


@triton.jit
def _row_key(seed, head, tokens):
    return mix(mix(tokens.to(tl.uint32) + seed) + head.to(tl.uint32) * 0x9E3779B1) | 1


@triton.jit
def _column_key(columns):
    return mix(columns.to(tl.uint32) * 0x9E3779B1 + 12345)


@triton.jit
def attention_forward_kernel(
    qkv_ptr, out_ptr, lse_ptr, offsets_ptr, seed_ptr, scale, inverse_keep, threshold, num_tokens,
    WIDTH: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Write out [T, heads, D] and lse [heads, T], the log2 of softmax's denominator, for one tile (BLOCK_M queries)."""
    tile, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(offsets_ptr + sequence)
    length = tl.load(offsets_ptr + sequence + 1) - start
    if tile * BLOCK_M >= length:
        return
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    row_ok = rows < length
    base = qkv_ptr + start.to(tl.int64) * (3 * WIDTH) + head * D
    q = tl.load(base + rows[:, None] * (3 * WIDTH) + d[None, :], mask=row_ok[:, None], other=0.0)
    largest = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, D], tl.float32)
    if DROPOUT:
        row_key = _row_key(tl.load(seed_ptr).to(tl.uint32), head, start + rows)[:, None]
    for n in range(0, length, BLOCK_N):
        columns = n + tl.arange(0, BLOCK_N)
        column_ok = columns < length
        k = tl.load(base + WIDTH + columns[None, :] * (3 * WIDTH) + d[:, None], mask=column_ok[None, :], other=0.0)
        v = tl.load(base + 2 * WIDTH + columns[:, None] * (3 * WIDTH) + d[None, :], mask=column_ok[:, None], other=0.0)
        scores = tl.where(column_ok[None, :], tl.dot(q, k) * scale, -1e30)
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - new_largest[:, None])
        shrink = tl.exp2(largest - new_largest)
        total = total * shrink + tl.sum(weights, 1)
        if DROPOUT:
            weights = tl.where(row_key * _column_key(columns)[None, :] >= threshold, weights, 0.0)
        out = out * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        largest = new_largest
    out = out * (inverse_keep / total)[:, None]
    spot = out_ptr + (start + rows)[:, None].to(tl.int64) * WIDTH + head * D + d[None, :]
    tl.store(spot, out.to(out_ptr.dtype.element_ty), mask=row_ok[:, None])
    tl.store(lse_ptr + head * num_tokens + start + rows, largest + tl.log2(total), mask=row_ok)


@triton.jit
def attention_backward_q_kernel(
    qkv_ptr, out_ptr, upstream_ptr, lse_ptr, delta_ptr, gradient_ptr, offsets_ptr, seed_ptr,
    scale, final_scale, keep, threshold, num_tokens,
    WIDTH: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Write dQ, the gradient of the queries, and delta = keep * rowsum(dO * O), for one tile of queries.

    `keep` is the probability of keeping a weight. attention_backward_kv_kernel reads delta.
    """
    tile, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(offsets_ptr + sequence)
    length = tl.load(offsets_ptr + sequence + 1) - start
    if tile * BLOCK_M >= length:
        return
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    row_ok = rows < length
    base = qkv_ptr + start.to(tl.int64) * (3 * WIDTH) + head * D
    out_spot = (start + rows)[:, None].to(tl.int64) * WIDTH + head * D + d[None, :]
    q = tl.load(base + rows[:, None] * (3 * WIDTH) + d[None, :], mask=row_ok[:, None], other=0.0)
    out = tl.load(out_ptr + out_spot, mask=row_ok[:, None], other=0.0)
    upstream = tl.load(upstream_ptr + out_spot, mask=row_ok[:, None], other=0.0)
    lse = tl.load(lse_ptr + head * num_tokens + start + rows, mask=row_ok, other=1e30)
    delta = tl.sum(out.to(tl.float32) * upstream.to(tl.float32), 1) * keep
    tl.store(delta_ptr + head * num_tokens + start + rows, delta, mask=row_ok)
    gradient = tl.zeros([BLOCK_M, D], tl.float32)
    if DROPOUT:
        row_key = _row_key(tl.load(seed_ptr).to(tl.uint32), head, start + rows)[:, None]
    for n in range(0, length, BLOCK_N):
        columns = n + tl.arange(0, BLOCK_N)
        column_ok = columns < length
        spot = base + columns[:, None] * (3 * WIDTH) + d[None, :]
        k = tl.load(spot + WIDTH, mask=column_ok[:, None], other=0.0)
        v = tl.load(spot + 2 * WIDTH, mask=column_ok[:, None], other=0.0)
        weights = tl.exp2(tl.dot(q, tl.trans(k)) * scale - lse[:, None])
        down = tl.dot(upstream, tl.trans(v))
        if DROPOUT:
            down = tl.where(row_key * _column_key(columns)[None, :] >= threshold, down, 0.0)
        down = tl.where(column_ok[None, :], weights * (down - delta[:, None]), 0.0)
        gradient += tl.dot(down.to(k.dtype), k)
    spot = gradient_ptr + (start + rows)[:, None].to(tl.int64) * (3 * WIDTH) + head * D + d[None, :]
    tl.store(spot, (gradient * final_scale).to(gradient_ptr.dtype.element_ty), mask=row_ok[:, None])


@triton.jit
def attention_backward_kv_kernel(
    qkv_ptr, upstream_ptr, lse_ptr, delta_ptr, gradient_ptr, offsets_ptr, seed_ptr,
    scale, final_scale, inverse_keep, threshold, num_tokens,
    WIDTH: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Write dK and dV, the gradients of keys and values, for one tile (BLOCK_N keys).

    Queries past the sequence's end get an lse (log2 of softmax's denominator) of 1e30, so their weights are 0.
    """
    tile, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(offsets_ptr + sequence)
    length = tl.load(offsets_ptr + sequence + 1) - start
    if tile * BLOCK_N >= length:
        return
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, D)
    column_ok = columns < length
    base = qkv_ptr + start.to(tl.int64) * (3 * WIDTH) + head * D
    out_base = upstream_ptr + start.to(tl.int64) * WIDTH + head * D
    spot = base + columns[:, None] * (3 * WIDTH) + d[None, :]
    k = tl.load(spot + WIDTH, mask=column_ok[:, None], other=0.0)
    v = tl.load(spot + 2 * WIDTH, mask=column_ok[:, None], other=0.0)
    dk = tl.zeros([BLOCK_N, D], tl.float32)
    dv = tl.zeros([BLOCK_N, D], tl.float32)
    if DROPOUT:
        seed = tl.load(seed_ptr).to(tl.uint32)
        column_key = _column_key(columns)[:, None]
    for m in range(0, length, BLOCK_M):
        rows = m + tl.arange(0, BLOCK_M)
        row_ok = rows < length
        q = tl.load(base + rows[:, None] * (3 * WIDTH) + d[None, :], mask=row_ok[:, None], other=0.0)
        upstream = tl.load(out_base + rows[:, None] * WIDTH + d[None, :], mask=row_ok[:, None], other=0.0)
        lse = tl.load(lse_ptr + head * num_tokens + start + rows, mask=row_ok, other=1e30)
        delta = tl.load(delta_ptr + head * num_tokens + start + rows, mask=row_ok, other=0.0)
        weights = tl.exp2(tl.dot(k, tl.trans(q)) * scale - lse[None, :])  # [keys, queries]
        down = tl.dot(v, tl.trans(upstream))
        if DROPOUT:
            kept = _row_key(seed, head, start + rows)[None, :] * column_key >= threshold
            dv += tl.dot(tl.where(kept, weights, 0.0).to(upstream.dtype), upstream)
            down = tl.where(kept, down, 0.0)
        else:
            dv += tl.dot(weights.to(upstream.dtype), upstream)
        dk += tl.dot((weights * (down - delta[None, :])).to(q.dtype), q)
    spot = gradient_ptr + (start + columns)[:, None].to(tl.int64) * (3 * WIDTH) + head * D + d[None, :]
    tl.store(spot + WIDTH, (dk * final_scale).to(gradient_ptr.dtype.element_ty), mask=column_ok[:, None])
    tl.store(spot + 2 * WIDTH, (dv * inverse_keep).to(gradient_ptr.dtype.element_ty), mask=column_ok[:, None])


def forward(
    qkv: Tensor, offsets: Tensor, *, max_length: int, threshold: int, seed: Tensor, tiles: dict[str, Any] | None = None
) -> tuple[Tensor, Tensor]:
    """Compute self-attention with dropout inside each sequence.

    Returns the output [T, heads, D], and lse [heads, T], the log2 of softmax's denominator for each query.
    qkv is [T, 3, heads, D] and contiguous. offsets are int32 [S + 1]. seed is int32, and its first element is used. A
    weight is dropped with probability threshold / 2**32. `tiles` replaces the launch settings FORWARD_TILES.
    """
    num_tokens, _, heads, width = qkv.shape
    tiles = tiles or FORWARD_TILES
    out = torch.empty(num_tokens, heads, width, dtype=qkv.dtype, device=qkv.device)
    lse = torch.empty(heads, num_tokens, dtype=torch.float32, device=qkv.device)
    grid = (triton.cdiv(max_length, tiles["BLOCK_M"]), heads, offsets.numel() - 1)
    attention_forward_kernel[grid](
        qkv, out, lse, offsets, seed, LOG2_E / math.sqrt(width), 1 / (1 - threshold / 2**32), threshold, num_tokens,
        WIDTH=heads * width, D=width, DROPOUT=threshold > 0, **tiles,
    )  # fmt: skip
    return out, lse


def backward(
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    upstream: Tensor,
    offsets: Tensor,
    *,
    max_length: int,
    threshold: int,
    seed: Tensor,
    tiles: tuple[dict[str, Any], dict[str, Any]] | None = None,
) -> Tensor:
    """Return the gradient of qkv, in its shape. All tensors are contiguous.

    out and lse are what `forward` returned, and upstream is the gradient of out. `tiles` replaces the
    launch settings (BACKWARD_Q_TILES, BACKWARD_KV_TILES). The other arguments are those of `forward`.
    """
    num_tokens, _, heads, width = qkv.shape
    tiles_q, tiles_kv = tiles or (BACKWARD_Q_TILES, BACKWARD_KV_TILES)
    gradient, delta = torch.empty_like(qkv), torch.empty_like(lse)
    keep = 1 - threshold / 2**32
    scale = 1 / math.sqrt(width)
    constants = {"WIDTH": heads * width, "D": width, "DROPOUT": threshold > 0}
    grid = (triton.cdiv(max_length, tiles_q["BLOCK_M"]), heads, offsets.numel() - 1)
    attention_backward_q_kernel[grid](
        qkv, out, upstream, lse, delta, gradient, offsets, seed, scale * LOG2_E, scale / keep, keep, threshold,
        num_tokens, **constants, **tiles_q,
    )  # fmt: skip
    grid = (triton.cdiv(max_length, tiles_kv["BLOCK_N"]), heads, offsets.numel() - 1)
    attention_backward_kv_kernel[grid](
        qkv, upstream, lse, delta, gradient, offsets, seed, scale * LOG2_E, scale / keep, 1 / keep, threshold,
        num_tokens, **constants, **tiles_kv,
    )  # fmt: skip
    return gradient
