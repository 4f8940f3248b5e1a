"""Dropout whose mask is cheap on a CPU: four 16-bit draws from each 64-bit number of torch's global generator.

F.dropout draws one number an element there, 14 ns; this takes 2.7 ns, and an encoder layer has millions of
them. The probability is rounded to a multiple of 1/65,536 and the scale follows it, so the mean is kept.
On a GPU, inside torch.compile, the mask is a hash of (row, column, seed): one 32-bit product an element, which fuses
with what stands around it, and which backward computes again. Philox, F.dropout's generator, costs more there than all
the memory traffic of dropout + residual + LayerNorm. Elsewhere it is F.dropout.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 65_536


def round_probability(probability: float) -> float:
    """The nearest probability that keep_mask can draw."""
    return round(probability * _LEVELS) / _LEVELS


def keep_mask(shape: tuple[int, ...], *, probability: float) -> Tensor:
    """Bool CPU tensor of `shape`, each element false with round_probability(probability), independently."""
    count = math.prod(shape)
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    draws = words.view(torch.int16)[:count].view(shape)
    return draws >= round(probability * _LEVELS) - _LEVELS // 2


def hash_dropout(x: Tensor, probability: float) -> Tensor:
    """Dropout by keep_hash, with a seed from torch's global generator of x's device. Any shape and float type, kept."""
    rows = x.numel() // x.shape[-1]
    seeds = torch.randint(-(2**31), 2**31, (2,), device=x.device, dtype=torch.int32)
    keep = keep_hash(rows, x.shape[-1], seeds=seeds, probability=probability).view(x.shape)
    return torch.where(keep, x * (1.0 / (1.0 - probability)), 0.0)


def keep_hash(rows: int, columns: int, *, seeds: Tensor, probability: float) -> Tensor:
    """Bool [rows, columns], false with `probability`: product of an odd key of the row and a key of the column.

    seeds: int32 [2], one for the rows and one for the columns.
    """
    row_keys = mix(torch.arange(rows, device=seeds.device, dtype=torch.int32) + seeds[0]) | 1
    column_keys = mix(torch.arange(columns, device=seeds.device, dtype=torch.int32) + seeds[1])
    return row_keys[:, None] * column_keys[None, :] >= round(probability * 2**32) - 2**31


def mix(x: Tensor) -> Tensor:
    """A bijection of int32 in which every bit depends on all others; products wrap."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * wrap(0x846CA68B)
    return x ^ ((x >> 16) & 0xFFFF)


def wrap(number: int) -> int:
    """The int32 with the same 32 low bits."""
    return (number + 2**31) % 2**32 - 2**31


class _CpuDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        keep = keep_mask(tuple(x.shape), probability=probability)
        ctx.save_for_backward(keep)
        ctx.scale = 1.0 / (1.0 - round_probability(probability))
        return keep.to(x.dtype).mul_(x).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return keep.to(gradient.dtype).mul_(gradient).mul_(ctx.scale), None


class Dropout(nn.Module):
    """Zero each element with `probability` in training and scale the rest by its inverse; identity in evaluation."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Any shape and float type, kept."""
        if not self.training or self.probability == 0.0:
            return x
        if x.is_cpu and not torch.compiler.is_compiling():
            return _CpuDropout.apply(x, self.probability)  # type: ignore[no-any-return, no-untyped-call]
        if x.is_cuda and torch.compiler.is_compiling():
            return hash_dropout(x, self.probability)
        return F.dropout(x, self.probability)
