"""Attention on a GPU by trainer.model.kernels, as operators that torch.compile does not break up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer.model.dropout import mix, wrap

LEVELS = 2**32
MAX_LENGTH = 512
"""Longest sequence for the kernel (the longest measured); longer ones use flash attention."""
HEAD_WIDTHS = (32, 64, 128)
"""Head widths that are tested."""
GOLDEN, COLUMN_SALT = 0x9E3779B1, 12_345
"""Constants in the kernels' keys."""


def threshold_of(dropout: float) -> int:
    """Number of the 2**32 possible draws that drop a weight."""
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
def _(qkv: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(qkv, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, offsets, seed, ctx.max_length, ctx.threshold = inputs
    ctx.save_for_backward(qkv, *output, offsets, seed)


def _backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    qkv, out, lse, offsets, seed = ctx.saved_tensors
    gradient = short_attention_backward(qkv, out, lse, upstream, offsets, seed, ctx.max_length, ctx.threshold)
    return gradient, None, None, None, None


short_attention.register_autograd(_backward, setup_context=_setup_context)


def attention_row_keys(places: Tensor, *, head: int, seed: Tensor | int) -> Tensor:
    """The kernels' keys of tokens at `places` of the packed batch: int32, same shape."""
    return mix(mix(places + seed) + wrap(head * GOLDEN)) | 1


def attention_column_keys(columns: Tensor) -> Tensor:
    """The kernels' keys of places in a sequence: int32, same shape."""
    return mix(columns * wrap(GOLDEN) + COLUMN_SALT)


def keep_products(row_keys: Tensor, column_keys: Tensor, *, threshold: int) -> Tensor:
    """The kernels' dropout mask: int32 keys [..., rows] and [columns] -> bool [..., rows, columns], True: kept."""
    draws = row_keys[..., :, None] * column_keys
    return draws + wrap(LEVELS // 2) >= threshold - LEVELS // 2  # unsigned, as the kernels compare
