"""Dropout whose mask is a hash of (row, column, seed), the same in eager and compiled code, on CPUs and GPUs.

The mask costs one 32-bit product per element. This product fuses with neighbouring operations and is computed again in
backward. F.dropout uses the generator Philox. On a GPU, Philox takes longer than all the memory traffic of dropout +
residual + LayerNorm. All seeds of a forward pass are drawn at once. So a mask depends only on the generator's state and
on the site (the place in the model that uses dropout).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SEED_WIDTH = 4
"""Number of int32 seeds per site (one use of dropout in the model). Four seeds take 16 bytes, the alignment that
kernels are compiled for."""


def draw_seeds(num_sites: int, *, device: torch.device) -> Tensor:
    """Draw random int32 seeds from torch's global generator of `device`.

    Returns the seeds as [num_sites, SEED_WIDTH], one row for each use of dropout in the model.
    """
    return torch.randint(-(2**31), 2**31, (num_sites, SEED_WIDTH), device=device, dtype=torch.int32)


def hash_dropout(x: Tensor, probability: float, *, seeds: Tensor) -> Tensor:
    """Return `x` (any shape and float type) after dropout. keep_hash computes the mask from the first two `seeds`."""
    rows = x.numel() // x.shape[-1]
    keep = keep_hash(rows, x.shape[-1], seeds=seeds, probability=probability).view(x.shape)
    return torch.where(keep, x * (1.0 / (1.0 - probability)), 0.0)


def keep_hash(rows: int, columns: int, *, seeds: Tensor, probability: float) -> Tensor:
    """Return a bool mask [rows, columns]. `probability` is the chance that an element is False (dropped).

    The random number of an element is the product of two hashes: its row's key, made odd, and its column's key. Row
    keys depend on the first of the int32 `seeds`, and column keys on the second.
    """
    row_keys = mix(torch.arange(rows, device=seeds.device, dtype=torch.int32) + seeds[0]) | 1
    column_keys = mix(torch.arange(columns, device=seeds.device, dtype=torch.int32) + seeds[1])
    return row_keys[:, None] * column_keys[None, :] >= round(probability * 2**32) - 2**31


def mix(x: Tensor) -> Tensor:
    """Return a hash of each int32 in `x`. The hash is a bijection, and each of its bits depends on all bits of the
    int32."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * wrap(0x846CA68B)
    return x ^ ((x >> 16) & 0xFFFF)


def wrap(number: int) -> int:
    """Return the int32 that has the same 32 low bits as `number`."""
    return (number + 2**31) % 2**32 - 2**31


class Dropout(nn.Module):
    """Zeroes each element with a given probability, and divides the other elements by 1 - probability.

    In evaluation it does nothing.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor, *, seeds: Tensor) -> Tensor:
        """Return `x` after dropout, in its shape and type.

        `seeds` is the row that draw_seeds returned for this use of dropout.
        """
        if not self.training or self.probability == 0.0:
            return x
        return hash_dropout(x, self.probability, seeds=seeds)
