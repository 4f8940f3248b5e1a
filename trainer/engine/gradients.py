"""Sums gradients over ranks under ZeRO 1 and 2, after backward and before the update, many parameters at a time.

DeepSpeed still partitions parameters, master weights and moments, and gathers the updated parameters. But DeepSpeed
would handle gradients one parameter at a time, which costs a tenth of a BERT-Large step. Here one copy fills a bucket
with the gradients of many parameters, and one reduce-scatter sums the bucket over all ranks. The layout is DeepSpeed's:
a group's parameters lie one after another in a flat buffer, divided into equal partitions, one for each rank.
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
"""Number of elements in a row of `sum_squares`."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Elements [start, stop) of the flattened `parameter`. Their gradient is copied to `target`, a part of the buffer
    in which many gradients are sent together."""

    parameter: nn.Parameter
    start: int
    stop: int
    target: Tensor

    def gradient(self) -> Tensor | None:
        """Return the gradient of elements [start, stop) of the parameter, 1-D, or None if the parameter has no
        gradient."""
        gradient = self.parameter.grad
        return None if gradient is None else gradient.reshape(-1)[self.start : self.stop]


@dataclass(frozen=True, slots=True)
class _Bucket:
    """The gradients that one communication call sums over the ranks.

    Each rank has a partition (an equal share) of a parameter group. A bucket holds the same range of every partition.
    """

    buffer: Tensor
    """1-D tensor that holds one range of the first rank's partition, then the same range of the second's, and so on."""
    pieces: tuple[_Piece, ...]
    gaps: tuple[Tensor, ...]
    """Views of the buffer that no parameter fills, because the last partition ends with padding."""
    start: int
    stop: int
    """The range in `buffer` is elements [start, stop) of each partition."""

    def fill(self) -> None:
        """Copy the gradients into the buffer. Where a parameter has no gradient, and in gaps (padding), write zeros."""
        pairs = [(piece.target, piece.gradient()) for piece in self.pieces]
        given = [(target, gradient) for target, gradient in pairs if gradient is not None]
        if given:
            torch._foreach_copy_([target for target, _ in given], [gradient for _, gradient in given])
        for gap in (*self.gaps, *(target for target, gradient in pairs if gradient is None)):
            gap.zero_()


class PartitionedGradients:
    """Holds this rank's partition (equal share) of the gradients, summed over all ranks and the micro-batches of a
    step.

    `zero` is DeepSpeed's ZeRO-1 or ZeRO-2 optimizer; its hooks on gradients are removed. `micro_batches` is the maximum
    number of calls of `add` per step; if it is above 1, sums are in fp32. With `sum_before_sending` (ZeRO-1) each rank
    first sums the whole gradients of its micro-batches, and ranks communicate once per step. Without it (ZeRO-2) they
    communicate after each micro-batch. With `send_fp32` ranks send gradients in fp32, otherwise in the model's
    precision. Sums over several micro-batches are always sent in fp32.
    """

    def __init__(self, zero: Any, *, micro_batches: int, sum_before_sending: bool, send_fp32: bool) -> None:
        for hook in zero._grad_acc_hooks:
            hook.remove()
        zero._grad_acc_hooks.clear()
        self._world_size = dist.get_world_size()
        self._is_first = True
        self._groups = [
            _Group(
                parameters,
                flat=flat,
                world_size=self._world_size,
                micro_batches=micro_batches,
                sum_before_sending=sum_before_sending,
                send_fp32=send_fp32,
            )
            for parameters, flat in zip(zero.bit16_groups, zero.bit16_groups_flat, strict=True)
        ]

    @property
    def partitions(self) -> list[Tensor]:
        """The gradient sums so far, one 1-D tensor for each parameter group of the optimizer: this rank's partition
        (equal share) of the group."""
        return [group.partition for group in self._groups]

    @torch.no_grad()
    def add(self, *, last: bool) -> None:
        """Add the parameters' gradients from a backward pass to the sums, and free the gradients. Collective.

        `last` marks the step's last backward pass.
        """
        for group in self._groups:
            group.add(first=self._is_first, last=last)
        self._is_first = False

    def norm(self) -> Tensor:
        """Return the Euclidean norm of the whole gradient, over all parameters and ranks. Collective.

        The norm is a float64 scalar tensor on the device.
        """
        squares = torch.stack([sum_squares(partition) for partition in self.partitions]).sum()
        dist.all_reduce(squares)
        return squares.sqrt()

    def clear(self) -> None:
        """End the step, so that the next `add` starts new sums."""
        self._is_first = True


class _Group:
    """Holds this rank's gradient sums for one parameter group.

    `flat` is DeepSpeed's buffer of the group's parameters. It is padded so that every rank's partition of it is equally
    long.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        flat: Tensor,
        world_size: int,
        micro_batches: int,
        sum_before_sending: bool,
        send_fp32: bool,
    ) -> None:
        self._parameters = list(parameters)
        self._world_size = world_size
        self._partition_size = flat.numel() // world_size
        send_dtype = torch.float32 if send_fp32 and world_size > 1 else flat.dtype
        sum_dtype = torch.float32 if micro_batches > 1 else send_dtype  # a single micro-batch is not summed
        self.partition = torch.zeros(self._partition_size, dtype=sum_dtype, device=flat.device)
        self._whole_sums = None
        if sum_before_sending and micro_batches > 1 and world_size > 1:
            self._whole_sums = torch.zeros(flat.numel(), dtype=torch.float32, device=flat.device)
        limit = max(1, LARGEST_BUCKET // world_size)
        ranges = list(_divide(self._partition_size, limit=limit))
        largest = world_size * max(stop - start for start, stop in ranges)
        self._buffer = torch.empty(largest, dtype=send_dtype, device=flat.device)
        offsets = [0, *accumulate(parameter.numel() for parameter in self._parameters)]
        self._buckets = [
            self._make_bucket(offsets, buffer=self._buffer[: world_size * (stop - start)], start=start, stop=stop)
            for start, stop in ranges
        ]
        self._single_rank_bucket = None
        if world_size == 1:  # filled directly, nothing is sent
            self._single_rank_bucket = self._make_bucket(
                offsets, buffer=self.partition, start=0, stop=self._partition_size
            )

    def _make_bucket(self, offsets: Sequence[int], *, buffer: Tensor, start: int, stop: int) -> _Bucket:
        pieces, gaps = [], []
        for rank in range(self._world_size):
            first, last = rank * self._partition_size + start, rank * self._partition_size + stop
            target = buffer[rank * (stop - start) : (rank + 1) * (stop - start)]
            for parameter, (begin, end) in zip(self._parameters, pairwise(offsets), strict=True):
                low, high = max(begin, first), min(end, last)
                if low < high:
                    pieces.append(_Piece(parameter, low - begin, high - begin, target[low - first : high - first]))
            if last > offsets[-1]:
                gaps.append(target[max(offsets[-1], first) - first :])
        return _Bucket(buffer, tuple(pieces), tuple(gaps), start, stop)

    def add(self, *, first: bool, last: bool) -> None:
        if self._single_rank_bucket is not None and first:
            self._single_rank_bucket.fill()
        elif self._whole_sums is None:
            for bucket in self._buckets:
                bucket.fill()
                self._add_to_partition(self._sum_over_ranks(bucket.buffer), bucket, first=first)
        else:
            self._add_to_whole_sums(self._whole_sums, first=first)
            if last:
                for bucket in self._buckets:
                    values = self._whole_sums.view(self._world_size, -1)[:, bucket.start : bucket.stop]
                    self._add_to_partition(self._sum_over_ranks(values.reshape(-1)), bucket, first=True)
        for parameter in self._parameters:
            parameter.grad = None

    def _add_to_whole_sums(self, sums: Tensor, *, first: bool) -> None:
        partitions = sums.view(self._world_size, -1)
        for bucket in self._buckets:
            bucket.fill()
            filled = bucket.buffer.view(self._world_size, -1)
            into = partitions[:, bucket.start : bucket.stop]
            _ = into.copy_(filled) if first else into.add_(filled)

    def _add_to_partition(self, values: Tensor, bucket: _Bucket, *, first: bool) -> None:
        into = self.partition[bucket.start : bucket.stop]
        _ = into.copy_(values) if first else into.add_(values)

    def _sum_over_ranks(self, values: Tensor) -> Tensor:
        """Sum `values` over all ranks, and return the part of the sum that belongs to this rank.

        `values` is 1-D and has one equal part for each rank, in the order of ranks.
        """
        if self._world_size == 1:
            return values
        if values.device.type == "cpu":  # gloo has no reduce-scatter
            dist.all_reduce(values)
            return values.view(self._world_size, -1)[dist.get_rank()]
        own = torch.empty(values.numel() // self._world_size, dtype=values.dtype, device=values.device)
        dist.reduce_scatter_tensor(own, values)
        return own


def sum_squares(values: Tensor) -> Tensor:
    """Return the sum of squares of `values` (1-D), a float64 scalar tensor.

    The squares of each _ROW elements are summed in fp32, and these sums are then added in float64. On a CPU, a long sum
    would lose four digits if it used fp32 throughout.
    """
    whole = values[: values.numel() // _ROW * _ROW].view(-1, _ROW)
    parts = [torch.linalg.vector_norm(part, dim=-1, dtype=torch.float32) for part in (whole, values[whole.numel() :])]
    return torch.cat([part.double().view(-1) for part in parts]).square().sum()


def _divide(length: int, *, limit: int) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) of consecutive ranges of nearly equal size, at most `limit`, that cover `length` elements."""
    count = max(1, math.ceil(length / limit))
    cuts: Iterable[int] = (length * index // count for index in range(count + 1))
    yield from pairwise(cuts)
