"""The processes that train one model together, each on its share of every batch.

Invariant: weights and moments are the same on all ranks, because all apply the same summed gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.distributed as dist

Item = TypeVar("Item")


class Ranks:
    """This process among `world_size`. With one process, nothing is sent and torch.distributed is not needed."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank, self.world_size = rank, world_size

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return this rank's part: every world_size-th item."""
        return items if self.world_size == 1 else items[self.rank :: self.world_size]

    def join(self, own: list[Item]) -> list[Item]:
        """Return the items of all ranks in the order that share divided, on every rank."""
        if self.world_size == 1:
            return own
        parts: list[list[Item]] = [[] for _ in range(self.world_size)]
        dist.all_gather_object(parts, own)
        return [parts[number % self.world_size][number // self.world_size] for number in range(sum(map(len, parts)))]

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Replace the gradient of every parameter by the sum over ranks. A missing gradient counts as zero."""
        if self.world_size == 1:
            return
        grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        parts = torch.split(flat, [grad.numel() for grad in grads])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def sum(self, values: Sequence[float], *, device: torch.device) -> list[float]:
        """Return each value summed over ranks."""
        if self.world_size == 1:
            return list(values)
        summed = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(summed)
        return [float(each) for each in summed.tolist()]
