"""Attention on a GPU: registers the kernels as operators, so that torch.compile does not look inside them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer.model.dropout import mix, wrap

LEVELS = 2**32
MAX_LENGTH = 512
"""Longest sequence for our kernel, and the longest that we measured. Longer sequences use flash attention."""
HEAD_WIDTHS = (32, 64, 128)
"""Widths of a head with which our kernel is tested. Heads of other widths use flash attention."""
FLASH_WIDTH, FLASH_MULTIPLE = 256, 8
"""The greatest width of a head that flash attention takes, and the number of which the width must be a multiple."""
GOLDEN, COLUMN_SALT = 0x9E3779B1, 12_345
"""Constants in the hashes that the kernels' dropout uses."""


def count_dropped_draws(dropout: float) -> int:
    """Return how many of the 2**32 possible random draws drop an attention weight.

    `dropout` is the probability that a weight is dropped.
    """
    return min(round(dropout * LEVELS), LEVELS - 1)


@torch.library.custom_op("cloze::short_attention", mutates_args=())
def short_attention(
    qkv: Tensor, offsets: Tensor, seed: Tensor, max_length: int, threshold: int
) -> tuple[Tensor, Tensor]:
    """Compute self-attention with dropout inside each sequence, by kernels.short_attention.forward.

    Returns the output [T, heads, d], and the log2 of softmax's denominators [heads, T]. `threshold` says how many of
    the 2**32 possible random draws drop a weight (see count_dropped_draws).
    """
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
    """Return the gradient of `qkv`, by kernels.short_attention.backward.

    `out` and `lse` are what short_attention returned, and `upstream` is the gradient of `out`.
    """
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
    """Return an int32 hash for each attention query. From these hashes, keep_products computes the dropout mask.

    `places` are the positions of the queries in the packed batch. The GPU kernels compute the same hashes.
    """
    return mix(mix(places + seed) + wrap(head * GOLDEN)) | 1


def attention_column_keys(columns: Tensor) -> Tensor:
    """Return an int32 hash for each attention key. From these hashes, keep_products computes the dropout mask.

    `columns` are the positions of the attention keys in their sequence. The GPU kernels compute the same hashes.
    """
    return mix(columns * wrap(GOLDEN) + COLUMN_SALT)


def keep_products(row_keys: Tensor, column_keys: Tensor, *, threshold: int) -> Tensor:
    """Return the dropout mask of attention weights, bool [..., rows, columns]. True means kept.

    A row is a query and a column is a key. `row_keys` [..., rows] are hashes from attention_row_keys, and `column_keys`
    [columns] are hashes from attention_column_keys. `threshold` says how many of the 2**32 possible random draws drop a
    weight (see count_dropped_draws). The GPU kernels compute the same mask.
    """
    draws = row_keys[..., :, None] * column_keys
    return draws + wrap(LEVELS // 2) >= threshold - LEVELS // 2  # unsigned, as the kernels compare
