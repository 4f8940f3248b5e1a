"""Attention on a GPU through the kernels of trainer.model.kernels, as operators that torch.compile keeps whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LEVELS = 2**32
MAX_LENGTH = 1024
"""Sequences up to this length were tried; flash attention is made for longer ones."""
HEAD_WIDTHS = (16, 32, 64, 128)
"""Powers of two that fit the tiles."""


def threshold_of(dropout: float) -> int:
    """Number of 2**32 draws that drop a weight."""
    return min(round(dropout * LEVELS), LEVELS - 1)


@torch.library.custom_op("cloze::short_attention", mutates_args=())
def short_attention(
    qkv: Tensor, offsets: Tensor, seed: Tensor, max_length: int, threshold: int
) -> tuple[Tensor, Tensor]:
    """See kernels.short_attention.forward."""
    from trainer.model.kernels import short_attention as kernels

    return kernels.forward(qkv.contiguous(), offsets, max_length=max_length, threshold=threshold, seed=seed)


@short_attention.register_fake
def _(qkv: Tensor, offsets: Tensor, seed: Tensor, max_length: int, threshold: int) -> tuple[Tensor, Tensor]:
    num_tokens, _, heads, width = qkv.shape
    return qkv.new_empty(num_tokens, heads, width), qkv.new_empty(heads, num_tokens, dtype=torch.float32)


@torch.library.custom_op("cloze::short_attention_backward", mutates_args=())
def short_attention_backward(
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    upstream: Tensor,
    offsets: Tensor,
    seed: Tensor,
    max_length: int,
    threshold: int,
) -> Tensor:
    """See kernels.short_attention.backward."""
    from trainer.model.kernels import short_attention as kernels

    return kernels.backward(
        qkv.contiguous(),
        out,
        lse,
        upstream.contiguous(),
        offsets,
        max_length=max_length,
        threshold=threshold,
        seed=seed,
    )


@short_attention_backward.register_fake
def _(
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    upstream: Tensor,
    offsets: Tensor,
    seed: Tensor,
    max_length: int,
    threshold: int,
) -> Tensor:
    return torch.empty_like(qkv, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, offsets, seed, ctx.max_length, ctx.threshold = inputs
    ctx.save_for_backward(qkv, *output, offsets, seed)


def _backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    qkv, out, lse, offsets, seed = ctx.saved_tensors
    gradient = short_attention_backward(qkv, out, lse, upstream, offsets, seed, ctx.max_length, ctx.threshold)
    return gradient, None, None, None, None


short_attention.register_autograd(_backward, setup_context=_setup_context)


def keep_mask(seed: int, *, head: int, tokens: Tensor, columns: Tensor, threshold: int) -> Tensor:
    """What the kernels keep, bool [tokens, columns]: `tokens` are places in the packed batch, int64 like `columns`."""

    def mix(x: Tensor) -> Tensor:
        x = ((x ^ (x >> 16)) * 0x7FEB352D) % LEVELS
        x = ((x ^ (x >> 15)) * 0x846CA68B) % LEVELS
        return x ^ (x >> 16)

    row = mix((mix((tokens + seed) % LEVELS) + (head * 0x9E3779B1) % LEVELS) % LEVELS) | 1
    column = mix((columns * 0x9E3779B1 + 12345) % LEVELS)
    return (row[:, None] * column[None, :]) % LEVELS >= threshold
