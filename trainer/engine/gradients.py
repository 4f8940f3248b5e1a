"""Sums gradients over ranks under ZeRO 1 and 2, after backward and before the update, many parameters at a time.

DeepSpeed still partitions parameters, master weights and moments, and gathers the updated parameters. But DeepSpeed
would handle the gradient of each parameter alone, which costs a tenth of a BERT-Large step. Here one copy fills a
bucket, one reduce-scatter sums the bucket over all ranks, and one norm covers a partition. The layout is DeepSpeed's: a
group's parameters lie one after another in a flat buffer, cut into equal shares, one for each rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.engine.deepspeed_setup import LARGEST_BUCKET

_ROW = 4096
"""Number of elements in a row of `_sum_squares`."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Elements [start, stop) of a flattened parameter, and `place`, the part of a buffer to which their gradient is
    copied."""

    parameter: nn.Parameter
    start: int
    stop: int
    place: Tensor

    def gradient(self) -> Tensor | None:
        """Return the gradient of these elements, 1-D; None if the parameter has no gradient."""
        gradient = self.parameter.grad
        return None if gradient is None else gradient.reshape(-1)[self.start : self.stop]


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Gradient elements that are communicated together: the same range (stretch) of every rank's share."""

    buffer: Tensor
    """1-D tensor that holds this stretch of the first rank's share, then of the second's, and so on."""
    pieces: tuple[_Piece, ...]
    gaps: tuple[Tensor, ...]
    """Views of the buffer that no parameter fills, because the last share ends with padding."""
    start: int
    stop: int
    """The stretch is elements [start, stop) of a share."""

    def fill(self) -> None:
        """Copy the gradients into the buffer, with zeros in gaps and for parameters without a gradient."""
        found = [(piece.place, piece.gradient()) for piece in self.pieces]
        there = [(place, gradient) for place, gradient in found if gradient is not None]
        if there:
            torch._foreach_copy_([place for place, _ in there], [gradient for _, gradient in there])
        for gap in (*self.gaps, *(place for place, gradient in found if gradient is None)):
            gap.zero_()


class PartitionedGradients:
    """Holds this rank's share of the gradients, summed over all ranks and over the micro-batches of a step.

    `zero` is DeepSpeed's ZeRO-1 or ZeRO-2 optimizer; its hooks on gradients are removed. `micro_batches` is the maximum
    number of calls of `add` per step; if it is above 1, sums are in fp32. With `whole` (ZeRO-1) each rank first sums
    the whole gradients of its micro-batches, and ranks communicate once per step. Without `whole` (ZeRO-2) they
    communicate after each micro-batch. With `send_fp32` ranks send fp32, otherwise the type of the gradients.
    """

    def __init__(self, zero: Any, *, micro_batches: int, whole: bool, send_fp32: bool) -> None:
        for hook in zero._grad_acc_hooks:
            hook.remove()
        zero._grad_acc_hooks.clear()
        self._world_size = dist.get_world_size()
        self._first = True
        self._groups = [
            _Group(
                parameters,
                flat=flat,
                world_size=self._world_size,
                several=micro_batches > 1,
                sum_whole=whole,
                send_fp32=send_fp32,
            )
            for parameters, flat in zip(zero.bit16_groups, zero.bit16_groups_flat, strict=True)
        ]

    @property
    def partitions(self) -> list[Tensor]:
        """The gradient sums so far: for each parameter group of the optimizer a 1-D tensor with this rank's share."""
        return [group.partition for group in self._groups]

    @torch.no_grad()
    def add(self, *, last: bool) -> None:
        """Add the gradients of a backward pass to the sums, and free them. Collective.

        `last` marks the step's last backward pass.
        """
        for group in self._groups:
            group.add(first=self._first, last=last)
        self._first = False

    def norm(self) -> Tensor:
        """Return the Euclidean norm of the gradient sums of all ranks, a float64 scalar tensor on the device.
        Collective."""
        squares = torch.stack([_sum_squares(partition) for partition in self.partitions]).sum()
        dist.all_reduce(squares)
        return squares.sqrt()

    def clear(self) -> None:
        """End the step, so that the next `add` starts new sums."""
        self._first = True


class _Group:
    """Holds this rank's gradient sums for one parameter group.

    `flat` is DeepSpeed's buffer of the group's parameters, padded so that the ranks' shares of it are equal.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        flat: Tensor,
        world_size: int,
        several: bool,
        sum_whole: bool,
        send_fp32: bool,
    ) -> None:
        self._parameters = list(parameters)
        self._world_size = world_size
        self._share = flat.numel() // world_size
        sent = torch.float32 if send_fp32 and world_size > 1 else flat.dtype
        sums = torch.float32 if several else sent  # nothing is summed for a single micro-batch
        self.partition = torch.zeros(self._share, dtype=sums, device=flat.device)
        self._whole = None
        if sum_whole and several and world_size > 1:
            self._whole = torch.zeros(flat.numel(), dtype=torch.float32, device=flat.device)
        limit = max(1, LARGEST_BUCKET // world_size)
        stretches = list(_stretches(self._share, limit=limit))
        largest = world_size * max(stop - start for start, stop in stretches)
        self._buffer = torch.empty(largest, dtype=sent, device=flat.device)
        offsets = [0, *accumulate(parameter.numel() for parameter in self._parameters)]
        self._buckets = [
            self._cut(offsets, buffer=self._buffer[: world_size * (stop - start)], start=start, stop=stop)
            for start, stop in stretches
        ]
        self._direct = self._cut(offsets, buffer=self.partition, start=0, stop=self._share) if world_size == 1 else None

    def _cut(self, offsets: Sequence[int], *, buffer: Tensor, start: int, stop: int) -> _Bucket:
        pieces, gaps = [], []
        for share in range(self._world_size):
            first, last = share * self._share + start, share * self._share + stop
            place = buffer[share * (stop - start) : (share + 1) * (stop - start)]
            for parameter, (begin, end) in zip(self._parameters, pairwise(offsets), strict=True):
                low, high = max(begin, first), min(end, last)
                if low < high:
                    pieces.append(_Piece(parameter, low - begin, high - begin, place[low - first : high - first]))
            if last > offsets[-1]:
                gaps.append(place[max(offsets[-1], first) - first :])
        return _Bucket(buffer, tuple(pieces), tuple(gaps), start, stop)

    def add(self, *, first: bool, last: bool) -> None:
        if self._direct is not None and first:
            self._direct.fill()
        elif self._whole is None:
            for bucket in self._buckets:
                bucket.fill()
                self._collect(self._sum_of_all(bucket.buffer), bucket, first=first)
        else:
            self._add_to_whole(self._whole, first=first)
            if last:
                for bucket in self._buckets:
                    stretch = self._whole.view(self._world_size, -1)[:, bucket.start : bucket.stop]
                    self._collect(self._sum_of_all(stretch.reshape(-1)), bucket, first=True)
        for parameter in self._parameters:
            parameter.grad = None

    def _add_to_whole(self, whole: Tensor, *, first: bool) -> None:
        shares = whole.view(self._world_size, -1)
        for bucket in self._buckets:
            bucket.fill()
            filled = bucket.buffer.view(self._world_size, -1)
            into = shares[:, bucket.start : bucket.stop]
            _ = into.copy_(filled) if first else into.add_(filled)

    def _collect(self, mine: Tensor, bucket: _Bucket, *, first: bool) -> None:
        into = self.partition[bucket.start : bucket.stop]
        _ = into.copy_(mine) if first else into.add_(mine)

    def _sum_of_all(self, values: Tensor) -> Tensor:
        """Sum `values`, which hold one stretch for each rank, over all ranks. Return this rank's stretch of the sum."""
        if self._world_size == 1:
            return values
        if values.device.type == "cpu":  # gloo has no reduce-scatter
            dist.all_reduce(values)
            return values.view(self._world_size, -1)[dist.get_rank()]
        mine = torch.empty(values.numel() // self._world_size, dtype=values.dtype, device=values.device)
        dist.reduce_scatter_tensor(mine, values)
        return mine


def _sum_squares(values: Tensor) -> Tensor:
    """Return the sum of squares of `values` (1-D), a float64 scalar tensor.

    Squares are summed in fp32 inside rows of _ROW elements, and the rows' sums in float64. A long sum in fp32 alone
    would lose four digits on a CPU.
    """
    whole = values[: values.numel() // _ROW * _ROW].view(-1, _ROW)
    parts = [torch.linalg.vector_norm(part, dim=-1, dtype=torch.float32) for part in (whole, values[whole.numel() :])]
    return torch.cat([part.double().view(-1) for part in parts]).square().sum()


def _stretches(length: int, *, limit: int) -> Iterator[tuple[int, int]]:
    count = max(1, math.ceil(length / limit))
    cuts: Iterable[int] = (length * index // count for index in range(count + 1))
    yield from pairwise(cuts)
