"""A rank's slices, in any ZeRO stage. A slice is a view of a range of a parameter's fp32 values and moments.

Invariant: the slices of all ranks together cover every element of every trainable parameter exactly once. Stage 0 is an
exception: list_slices gives every rank the whole parameters, and Engine.local_slices then cuts out the rank's part.
Listing slices needs no communication. Only this file and engine.py rely on how DeepSpeed (0.19.8) stores its
partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.engine.update_rules import MOMENTS, MOMENTS_OF, Layout, RuleOptimizer


@dataclass(frozen=True, slots=True)
class LocalSlice:
    """A slice of the flattened parameter `name`, from element `start` on. `shape` is the shape of the whole parameter.

    `tensors` maps "parameter" and the names of the moments that its update rule keeps ("exp_avg", and for most
    "exp_avg_sq") to the slice's values, 1-D and fp32.
    """

    name: str
    start: int
    shape: tuple[int, ...]
    tensors: dict[str, Tensor]

    @property
    def stop(self) -> int:
        """The index after the slice's last element."""
        return self.start + self.tensors["parameter"].numel()


@dataclass(frozen=True, slots=True)
class _Fragment:
    """A slice of the flattened parameter `name`, from element `start` on. `shape` is the shape of the whole parameter.

    `values` (1-D fp32) lies at element `offset` of `base`, a tensor that the base_optimizer updates.
    """

    name: str
    start: int
    shape: tuple[int, ...]
    values: Tensor
    base: Tensor
    offset: int


def trainable_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the trainable parameters with their names. A tied parameter appears once, under its first name."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def full_shape(parameter: nn.Parameter) -> tuple[int, ...]:
    """Return the shape of the whole parameter, even if ZeRO-3 has released its storage."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def list_slices(engine: Any, *, stage: int, rank: int) -> list[LocalSlice]:
    """Return slices that cover all elements that this rank's optimizer updates. `engine` is DeepSpeed's engine.

    In stage 0 the slices cover all parameters, on every rank. The slices' tensors are views, so writing to them changes
    the optimizer's values.
    """
    state = base_optimizer(engine, stage=stage).state
    return [
        LocalSlice(
            name=piece.name,
            start=piece.start,
            shape=piece.shape,
            tensors={
                "parameter": piece.values,
                **{
                    moment: state[piece.base][moment].view(-1).narrow(0, piece.offset, piece.values.numel())
                    for moment in MOMENTS
                    if moment in state[piece.base]
                },
            },
        )
        for piece in _fragments(engine, stage=stage, rank=rank)
        if piece.values.numel()
    ]


def find_layouts(engine: Any, *, stage: int, rank: int, matrices: Mapping[str, int]) -> dict[Tensor, Layout]:
    """Return where the matrices of parameters lie in the tensors that the base_optimizer updates.

    `matrices` maps a parameter's name to the number of matrices that stand in it one below the other, if it has
    several. `engine` is DeepSpeed's engine.
    """
    layouts: dict[Tensor, Layout] = {}
    for piece in _fragments(engine, stage=stage, rank=rank):
        layouts.setdefault(piece.base, Layout()).add(
            piece.shape,
            matrices=matrices.get(piece.name, 1),
            start=piece.start,
            offset=piece.offset,
            length=piece.values.numel(),
        )
    return layouts


def base_optimizer(engine: Any, *, stage: int) -> torch.optim.Optimizer:
    """Return the optimizer that DeepSpeed's `engine` wraps. In stages 1 to 3 it is inside DeepSpeed's optimizer."""
    optimizer: torch.optim.Optimizer = engine.optimizer if stage == 0 else engine.optimizer.optimizer
    return optimizer


def prepare_moments(engine: Any, *, stage: int, updates: float) -> None:
    """Create missing moments as zeros and set Adam's step count to `updates`. `engine` is DeepSpeed's engine.

    The count is an fp32 scalar tensor on the device, as torch's fused AdamW needs it. Call this before the first step
    of a new run, and before saved state is loaded. The call is needed because of what DeepSpeed does when it
    initializes. In some stages DeepSpeed creates no moments. In other stages it takes a step with empty gradients, and
    Adam counts this step.
    """
    optimizer = base_optimizer(engine, stage=stage)
    for base, group in _base_tensors(engine, stage=stage):
        state = optimizer.state[base]
        for moment in MOMENTS_OF[group["rule"]]:
            if moment not in state:
                state[moment] = torch.zeros_like(base.data, memory_format=torch.preserve_format)
        state["step"] = torch.tensor(updates, dtype=torch.float32, device=base.device)


@torch.no_grad()
def refresh_model_weights(engine: Any, *, stage: int) -> None:
    """Copy the fp32 weights that the optimizer updates into the parameters that the model computes with. Collective.
    `engine` is DeepSpeed's engine."""
    optimizer = engine.optimizer
    if stage in (1, 2):
        optimizer.update_lp_params()
    if stage == 3:
        optimizer._partition_all_parameters()
        for group in range(len(optimizer.fp16_groups)):
            optimizer._reassign_or_swap_out_partitioned_parameters(group)
        if optimizer.persistent_parameters:
            optimizer.persistent_parameters[0].all_gather(optimizer.persistent_parameters)


def parameter_bytes(engine: Any, *, stage: int) -> int:
    """Return how many bytes the model's parameters take on this rank between two steps.

    The fp32 master weights, which the optimizer updates, do not count.
    """
    total = 0
    for _, parameter in trainable_parameters(engine.module):
        held: list[Tensor] = [parameter.data]
        if stage == 3:
            held.append(_zero3(parameter).ds_tensor)
        total += sum(tensor.numel() * tensor.element_size() for tensor in held)
    return total


def optimizer_bytes(engine: Any, *, stage: int) -> int:
    """Return how many bytes the moments take on this rank."""
    state = base_optimizer(engine, stage=stage).state
    return sum(
        state[base][moment].numel() * state[base][moment].element_size()
        for base, group in _base_tensors(engine, stage=stage)
        for moment in MOMENTS_OF[group["rule"]]
    )


def _fragments(engine: Any, *, stage: int, rank: int) -> Iterator[_Fragment]:
    """Yield this rank's fragment of every trainable parameter, an empty one if the rank has no part of it."""
    optimizer = engine.optimizer
    bases = {}
    if stage in (1, 2):
        groups = optimizer.bit16_groups if hasattr(optimizer, "bit16_groups") else optimizer.bf16_groups
        bases = {id(p): base for base, group in zip(_flat_partitions(optimizer), groups, strict=True) for p in group}
    for name, p in trainable_parameters(engine.module):
        shape = full_shape(p)
        if stage == 0:
            yield _Fragment(name, 0, shape, p.data.view(-1), p, 0)
        elif stage == 3:
            group, offset, size = optimizer.grad_position[optimizer.get_param_id(p)]
            start = size * rank
            held = max(0, min(size, _zero3(p).ds_numel - start))
            base = optimizer.fp32_partitioned_groups_flat[group]
            yield _Fragment(name, start, shape, base.data.narrow(0, offset, held), base, offset)
        elif (link := cast(Any, p)._hp_mapping) is not None:
            start, offset = link.lp_fragment_address.start, link.hp_fragment_address.start
            yield _Fragment(name, start, shape, link.hp_fragment.data, bases[id(p)], offset)
        else:
            yield _Fragment(name, 0, shape, bases[id(p)].data[:0], bases[id(p)], 0)


def update_partitions(
    engine: Any, gradients: Sequence[Tensor], *, rank: int, step: float, divisor: Tensor, skip: Tensor
) -> None:
    """Take a step of the optimizer on this rank's partitions, then update the model's weights on all ranks.

    Collective, for stages 1 and 2. `engine` is DeepSpeed's engine. A partition is this rank's equal share of a
    parameter group. `gradients` has one tensor for each group: the gradient of this rank's partition, to be divided by
    `divisor`. If `skip` is not zero, AdamW changes nothing; with other optimizers the caller must not call this then.
    `step` is the step count for AdamW's bias correction. If it is infinite, nothing is corrected.
    """
    zero = engine.optimizer
    model_weights = [partitions[rank] for partitions in zero.parallel_partitioned_bit16_groups]
    if isinstance(zero.optimizer, RuleOptimizer):
        for base, gradient in zip(_flat_partitions(zero), gradients, strict=True):
            base.grad = gradient.to(base.dtype).div_(divisor)
        zero.optimizer.step()
        for base in _flat_partitions(zero):
            base.grad = None
        zero.update_lp_params()
        return
    if not all(map(can_update_on_gpu, model_weights)):
        zero.optimizer.grad_scale, zero.optimizer.found_inf = divisor, skip
        for base, gradient in zip(_flat_partitions(zero), gradients, strict=True):
            base.grad = gradient.to(base.dtype)
        zero.optimizer.step()
        zero.update_lp_params()
        return
    from trainer.model.kernels import adamw

    groups = zero.optimizer.param_groups
    for base, gradient, weights, group in zip(_flat_partitions(zero), gradients, model_weights, groups, strict=True):
        state = zero.optimizer.state[base]
        adamw.update(
            base.data,
            exp_avg=state["exp_avg"],
            exp_avg_sq=state["exp_avg_sq"],
            gradient=gradient,
            model_weights=weights.data,
            divisor=divisor,
            skip=skip,
            step=step,
            learning_rate=group["lr"],
            weight_decay=group["weight_decay"],
            betas=group["betas"],
            epsilon=group["eps"],
        )
    if dist.get_world_size() > 1:
        for flat, weights in zip(zero.bit16_groups_flat, model_weights, strict=True):
            dist.all_gather_into_tensor(flat, weights)  # in place: `weights` is a view of this rank's part of `flat`


def can_update_on_gpu(model_weights: Tensor) -> bool:
    """Return whether kernels.adamw supports the device and dtype of `model_weights`."""
    return model_weights.is_cuda and model_weights.dtype in (torch.bfloat16, torch.float16)


def _flat_partitions(optimizer: Any) -> list[Tensor]:
    """Return this rank's fp32 partitions in stages 1 and 2: one 1-D tensor for each parameter group.

    A partition is this rank's equal share of the group. DeepSpeed's BF16_Optimizer (stage 1 with fp32 gradient sums)
    stores the partitions under another name than its other optimizers.
    """
    if hasattr(optimizer, "single_partition_of_fp32_groups"):
        return list(optimizer.single_partition_of_fp32_groups)
    return list(optimizer.fp32_groups_flat_partition)


def _base_tensors(engine: Any, *, stage: int) -> list[tuple[Tensor, dict[str, Any]]]:
    """Return the tensors that the base_optimizer updates, each with its parameter group."""
    groups = base_optimizer(engine, stage=stage).param_groups
    if stage == 0:
        return [(p, group) for group in groups for p in group["params"]]
    if stage == 3:
        zero = engine.optimizer
        flats = zero.fp32_partitioned_groups_flat
        return [(flat, groups[zero.sub_group_to_group_id[index]]) for index, flat in enumerate(flats)]
    return list(zip(_flat_partitions(engine.optimizer), groups, strict=True))


def _zero3(parameter: nn.Parameter) -> Any:
    """Return `parameter`, typed as Any because ZeRO-3 adds attributes to it."""
    return parameter
