"""Update rules besides torch's fused AdamW: LAMB, RAdam, SGD, and Muon with AdamW for what is not a hidden matrix.

LAMB and Muon need whole matrices: LAMB their norms, Muon the matrices themselves. Under ZeRO 1 to 3 a rank has only
parts of them. LAMB sums squares over the ranks: two numbers for each matrix. Muon fills matrices with the parts of all
ranks, LARGEST_BUCKET elements at a time, and each rank orthogonalizes its share of them. Moments stay partitioned.
DeepSpeed's Muon (0.19.8) works inside DeepSpeed's gradient hooks, which gradients.py replaces, and torch.optim.Muon
knows no partitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.engine.deepspeed_setup import LARGEST_BUCKET
from trainer.engine.gradients import sum_squares

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the iteration that orthogonalizes (Jordan et al. 2024)."""
NEWTON_SCHULZ_STEPS = 5
ADAM_LIKE_RMS = 0.2
"""Root mean square of an update of Muon, which suits AdamW's learning rates (Liu et al. 2025, section 2.2)."""
_LEAST_RECTIFIED = 5.0
"""RAdam divides by the second moment if its variance has more than this many degrees of freedom, as in the authors'
code and in torch.optim.RAdam (4 in the paper)."""


@dataclass(frozen=True, slots=True)
class MatrixPart:
    """Elements [start, start + length) of a flattened matrix. They lie at `offset` of a tensor that is updated."""

    matrix: int
    """Index of the matrix in Layout.shapes."""
    start: int
    offset: int
    length: int


@dataclass(slots=True)
class Layout:
    """Says which matrices a tensor that is updated belongs to, and which parts of them this rank has.

    Every rank has the same list of matrices.
    """

    shapes: list[tuple[int, int]] = field(default_factory=list)
    """Shapes of the matrices."""
    parts: list[MatrixPart] = field(default_factory=list)

    def add(self, shape: Sequence[int], *, matrices: int, start: int, offset: int, length: int) -> None:
        """Add a parameter of the shape `shape`, which has `matrices` matrices one below the other.

        This rank has its elements [start, start + length), which lie at `offset`.
        """
        rows, columns = shape[0] // matrices, math.prod(shape[1:])
        for index in range(matrices):
            first = index * rows * columns
            low, high = max(start, first), min(start + length, first + rows * columns)
            if low < high:
                self.parts.append(MatrixPart(len(self.shapes), low - first, offset + low - start, high - low))
            self.shapes.append((rows, columns))


class RuleOptimizer(torch.optim.Optimizer):
    """Updates each parameter group by the rule that its entry "rule" names.

    `lr` is the learning rate of a group and `update` the number of the update for bias correction (inf: none). Updates
    nothing before `bind`, so that steps which DeepSpeed takes while it initializes change nothing.
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0, "update": math.inf})
        self._layouts: Mapping[Tensor, Layout] | None = None
        self._partitioned = False

    def bind(self, layouts: Mapping[Tensor, Layout], *, partitioned: bool) -> None:
        """Set where matrices lie in the tensors to update. `partitioned`: each rank has only parts of them."""
        self._layouts, self._partitioned = layouts, partitioned

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all tensors that have a gradient. Collective if they are partitioned. `closure` is not used."""
        if self._layouts is None:
            return
        for group in self.param_groups:
            for base in group["params"]:
                if base.grad is not None:
                    self._update(base, group=group, layout=self._layouts[base])

    def _update(self, base: Tensor, *, group: Mapping[str, Any], layout: Layout) -> None:
        weights, rule = base.data.view(-1), group["rule"]
        moments = {name: self.state[base][name].view(-1) for name in MOMENTS_OF[rule]}
        update = _DIRECTIONS[rule](base.grad.to(base.dtype).reshape(-1), group=group, **moments)  # type: ignore[union-attr]
        if rule == "muon":
            self._orthogonalize(update, layout=layout)
        if group["weight_decay"]:
            update.add_(weights, alpha=group["weight_decay"])
        if rule == "lamb":
            self._trust(update, weights=weights, layout=layout)
        weights.add_(update, alpha=-group["lr"])

    def _trust(self, update: Tensor, *, weights: Tensor, layout: Layout) -> None:
        """Multiply each matrix of `update` by norm of its weights / norm of its update, or by 1 if one norm is 0."""
        squares = torch.zeros(2, len(layout.shapes), dtype=torch.float64, device=update.device)
        for part in layout.parts:
            for row, values in enumerate((weights, update)):
                squares[row, part.matrix] += sum_squares(values[part.offset : part.offset + part.length])
        if self._partitioned:
            dist.all_reduce(squares)
        of_weights, of_updates = squares.sqrt()
        ratios = torch.where((of_weights > 0) & (of_updates > 0), of_weights / of_updates, 1.0).to(update.dtype)
        for part in layout.parts:
            update[part.offset : part.offset + part.length] *= ratios[part.matrix]

    def _orthogonalize(self, update: Tensor, *, layout: Layout) -> None:
        """Replace each matrix of `update` by its nearest orthogonal matrix, scaled to AdamW's size of updates."""
        rank, world_size = (dist.get_rank(), dist.get_world_size()) if self._partitioned else (0, 1)
        for chosen in _chunks(layout.shapes):
            places = {matrix: place for place, matrix in enumerate(chosen)}
            rows, columns = layout.shapes[chosen[0]]
            whole = update.new_zeros(len(chosen), rows, columns)
            parts = [part for part in layout.parts if part.matrix in places]
            views = [whole[places[part.matrix]].view(-1)[part.start : part.start + part.length] for part in parts]
            own = [update[part.offset : part.offset + part.length] for part in parts]
            for view, values in zip(views, own, strict=True):
                view.copy_(values)
            if self._partitioned:
                dist.all_reduce(whole)
            made = orthogonalize(whole[rank::world_size])
            whole.zero_()
            whole[rank::world_size] = made * (ADAM_LIKE_RMS * math.sqrt(max(rows, columns)))
            if self._partitioned:
                dist.all_reduce(whole)
            for view, values in zip(views, own, strict=True):
                values.copy_(view)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return the orthogonal matrix nearest to each of `matrices`, [n, rows, columns], with singular values of 0.7 to
    1.2 instead of 1: Newton-Schulz of Jordan et al. 2024, in bf16 on a GPU."""
    x: Tensor = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.float().norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7).to(x.dtype)
    a, b, c = NEWTON_SCHULZ
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrices.dtype)


def _chunks(shapes: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield lists of indices of matrices of one shape, of at most LARGEST_BUCKET elements together."""
    for shape in dict.fromkeys(shapes):
        same = [index for index, other in enumerate(shapes) if other == shape]
        count = max(1, LARGEST_BUCKET // math.prod(shape))
        for first in range(0, len(same), count):
            yield same[first : first + count]


def _sgd(gradient: Tensor, *, group: Mapping[str, Any], exp_avg: Tensor) -> Tensor:
    """Heavy-ball momentum as in torch.optim.SGD: a sum of gradients, not a mean."""
    return exp_avg.mul_(group["betas"][0]).add_(gradient).clone()


def _muon(gradient: Tensor, *, group: Mapping[str, Any], exp_avg: Tensor) -> Tensor:
    """Nesterov's momentum over a running mean."""
    return gradient.lerp(exp_avg.lerp_(gradient, 1.0 - group["momentum"]), group["momentum"])


def _adam(gradient: Tensor, *, group: Mapping[str, Any], exp_avg: Tensor, exp_avg_sq: Tensor) -> Tensor:
    beta1, beta2, count = _numbers_of(group)
    _add_to_moments(gradient, group=group, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
    root = (exp_avg_sq / (1.0 - math.pow(beta2, count))).sqrt_().add_(group["eps"])
    return (exp_avg / (1.0 - math.pow(beta1, count))).div_(root)


def _radam(gradient: Tensor, *, group: Mapping[str, Any], exp_avg: Tensor, exp_avg_sq: Tensor) -> Tensor:
    """Adam whose step is rectified for the variance of the second moment (Liu et al. 2020, algorithm 2)."""
    beta1, beta2, count = _numbers_of(group)
    _add_to_moments(gradient, group=group, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
    mean, correction = exp_avg / (1.0 - math.pow(beta1, count)), 1.0 - math.pow(beta2, count)
    most = 2.0 / (1.0 - beta2) - 1.0
    freedom = most - 2.0 * count * math.pow(beta2, count) / correction
    if freedom <= _LEAST_RECTIFIED:
        return mean
    rectified = (freedom - 4) * (freedom - 2) * most / ((most - 4) * (most - 2) * freedom)
    return mean.mul_(math.sqrt(rectified * correction)).div_(exp_avg_sq.sqrt().add_(group["eps"]))


def _numbers_of(group: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return Adam's two decays of moments and the number of the update."""
    beta1, beta2 = group["betas"]
    return beta1, beta2, group["update"]


def _add_to_moments(gradient: Tensor, *, group: Mapping[str, Any], exp_avg: Tensor, exp_avg_sq: Tensor) -> None:
    beta1, beta2, _ = _numbers_of(group)
    exp_avg.lerp_(gradient, 1.0 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)


_DIRECTIONS: Mapping[str, Callable[..., Tensor]] = {
    "adamw": _adam,
    "lamb": _adam,
    "radam": _radam,
    "sgd": _sgd,
    "muon": _muon,
}
MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names of the moments: running means of the gradient and of its square, in fp32 and in the parameter's shape."""
MOMENTS_OF: Mapping[str, tuple[str, ...]] = {
    rule: MOMENTS[:1] if rule in ("sgd", "muon") else MOMENTS for rule in _DIRECTIONS
}
"""The moments that each update rule keeps."""
