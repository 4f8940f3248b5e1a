"""The training engine over DeepSpeed: forward, backward, step, and its state as named slices.

Only this package uses DeepSpeed. Invariant: between two steps the state of a run is `steps_taken`, the loss scale and
the slices (ranges of parameters and moments). A run needs nothing else to continue, at any world size, stage or
precision. One test of the gradient norm decides whether a whole step is applied or skipped. The settings select one of
six paths:

    ZeRO 0                                        DeepSpeed averages gradients, every rank updates everything
    ZeRO 1 and 2, on a CPU or in fp32             gradients.py, then torch's AdamW over this rank's partitions
    ZeRO 1 and 2, on a GPU in bf16 or fp16        gradients.py, then kernels/adamw.py
    ZeRO 1 and 2, another optimizer than AdamW    gradients.py, then update_rules.py over this rank's partitions
    ZeRO 1 and 2, with any `deepspeed.*` setting  DeepSpeed's own step; slower, the reference for tests of gradients.py
    ZeRO 3                                        DeepSpeed's own step
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.config import TrainerConfig
from trainer.engine import zero_state
from trainer.engine.deepspeed_setup import INITIAL_LOSS_SCALE, bound_waits, deepspeed_dictionary, load_deepspeed
from trainer.engine.gradients import PartitionedGradients
from trainer.engine.host_copy import HostCopy
from trainer.engine.optimizers import build_optimizer, count_matrices, count_updates
from trainer.engine.update_rules import RuleOptimizer
from trainer.engine.zero_state import LocalSlice
from trainer.model import Encoder

SliceReader = Callable[[str, int, int], dict[str, Tensor]]
"""A function of (name, start, stop). It returns a dict with the keys of LocalSlice.tensors. The values, 1-D and fp32,
are elements [start, stop) of the flattened parameter `name` and of its moments."""

SCALE_WINDOW = 1000
"""Number of consecutive finite steps after which fp16's loss scale doubles."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The outcome of a step, the same on every rank.

    `grad_norm` is the gradient norm before clipping, without the loss scale. `skipped` is true if this norm is not
    finite, and then the parameters were not updated.
    """

    grad_norm: float
    skipped: bool


@dataclass(slots=True)
class LossScale:
    """Holds fp16's loss scale. An overflow halves it, and SCALE_WINDOW finite steps in a row double it.

    In other precisions it stays 1.
    """

    value: float = 1.0
    finite_steps: int = 0

    def update(self, *, finite: bool) -> None:
        """Adjust the loss scale after a step. `finite` says whether the step's gradients were finite."""
        self.finite_steps = self.finite_steps + 1 if finite else 0
        if not finite:
            self.value = max(1.0, self.value / 2)
        elif self.finite_steps % SCALE_WINDOW == 0:
            self.value *= 2


class Engine:
    """Trains a model on this rank with DeepSpeed, ZeRO stage 0 to 3. torch.distributed must be initialized.

    For each step, every rank calls `backward(loss of engine(batch), last=...)` exactly `micro_batches` times, and then
    `step`.
    """

    def __init__(self, model: nn.Module, *, config: TrainerConfig, device: torch.device, micro_batches: int) -> None:
        if not dist.is_initialized():
            raise RuntimeError("Engine needs an initialized process group (torch.distributed)")
        bound_waits(config.collective_timeout_s)
        deepspeed = load_deepspeed(device, precision=config.precision, logs=config.deepspeed.has_reports())
        self.device = device
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.stage = config.zero_stage
        self.micro_batches = micro_batches
        self.steps_taken = 0
        self.loss_scale = LossScale(INITIAL_LOSS_SCALE if config.precision == "fp16" else 1.0)
        self._dynamic_scale = config.precision == "fp16"
        self._clip_norm = config.optimizer.clip_norm
        for module in model.modules():
            if isinstance(module, Encoder):
                module.recompute = config.recompute == "layers"
        model.to(device)
        parameters = zero_state.trainable_parameters(model)
        initial_weights = (
            {} if config.precision == "fp32" else {name: p.detach().float().clone() for name, p in parameters}
        )
        num_elements = sum(parameter.numel() for _, parameter in parameters)
        optimizer = build_optimizer(model, config=config.optimizer)
        self._engine: Any = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            config=deepspeed_dictionary(config, micro_batches=micro_batches, num_elements=num_elements),
        )[0]
        self.module: nn.Module = self._engine.module
        if self.stage == 3:
            for module in self.module.modules():
                module.parameters_persist = False
        self.compiled = config.compile if config.compile is not None else device.type == "cuda" and self.stage < 3
        self.cuda_graphs = self.compiled and config.cuda_graphs and device.type == "cuda"
        if self.compiled:
            # Draw random numbers like eager code, so that the same seed gives the same dropout in both.
            options = {"fallback_random": True, "triton.cudagraphs": self.cuda_graphs}
            self.module.compile(dynamic=False, options=options)
        self._count_updates = partial(count_updates, config=config.optimizer)
        zero_state.prepare_moments(self._engine, stage=self.stage, updates=self._count_updates(0))
        self._skips_on_host = isinstance(optimizer, RuleOptimizer)
        if isinstance(optimizer, RuleOptimizer):
            matrices = count_matrices(self.module)
            layouts = zero_state.find_layouts(self._engine, stage=self.stage, rank=self.rank, matrices=matrices)
            optimizer.bind(layouts, partitioned=self.stage > 0 and self.world_size > 1)
        if initial_weights:  # restore the fp32 weights, which DeepSpeed has rounded to `precision`
            self._write_slices(lambda name, start, stop: {"parameter": initial_weights[name].view(-1)[start:stop]})
        self._gradients: PartitionedGradients | None = None
        if self.stage in (1, 2) and not config.deepspeed.given():
            self._gradients = PartitionedGradients(
                self._engine.optimizer,
                micro_batches=micro_batches,
                sum_before_sending=self.stage == 1,
                send_fp32=config.communication_data_type == "fp32",
            )
        elif self.stage in (1, 2) and hasattr(self._engine.optimizer, "check_grad_overflow"):
            # Test only the global norm: it is computed anyway, and it is not finite if any gradient is not.
            self._engine.optimizer.check_grad_overflow = True
            self._engine.optimizer.check_overflow = lambda partition_gradients=True: None

    def __call__(self, *inputs: Any) -> Any:
        """Run the model's forward pass on `inputs` and return its output. Under ZeRO-3 all ranks must call this equally
        often."""
        return self._engine(*inputs) if self._gradients is None else self.module(*inputs)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradients of the scalar `loss` to the step's gradients; set `last` for the step's last micro-batch.

        Gradients are averaged over ranks and summed over micro-batches. To get the gradient of a mean over all masked
        positions or pairs of the step, pass (loss summed over this micro-batch) x world size / (their count over all
        ranks and micro-batches).
        """
        if self._gradients is not None:
            torch.autograd.backward(loss * self.loss_scale.value if self._dynamic_scale else loss)
            self._gradients.add(last=last)
            return
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> StepResult:
        """Clip the gradients to the norm `optimizer.clip_norm`, update the parameters, and return the outcome.

        If the gradient norm is not finite, the update is skipped.
        """
        for group in zero_state.base_optimizer(self._engine, stage=self.stage).param_groups:
            group["lr"] = learning_rate
            group["update"] = self._count_updates(self.steps_taken + 1)
        if self.stage == 0:
            result = self._step_replicated()
        elif self._gradients is None:
            result = self._step_partitioned()
        else:
            result = self._step_with(self._gradients)
        if not result.skipped:
            self.steps_taken += 1
        if self._dynamic_scale:
            self.loss_scale.update(finite=not result.skipped)
            self._engine.optimizer.loss_scaler.cur_scale = self.loss_scale.value
        return result

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Return a context manager for evaluation. Inside its `with` block the model is in evaluation mode, and no
        gradients are recorded. The engine is called as in training."""
        training = self.module.training
        self._engine.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self._engine.train(training)
            if self.stage == 3:  # forward leaves all parameters gathered; in training the step releases them
                self._engine.optimizer.empty_partition_cache()

    def local_slices(self) -> list[LocalSlice]:
        """Return views of this rank's part of parameters and moments. Each element of a parameter or moment is in the
        part of exactly one rank."""
        slices = zero_state.list_slices(self._engine, stage=self.stage, rank=self.rank)
        return slices if self.stage else [self._own_part(piece) for piece in slices]

    def restore(self, read: SliceReader, *, steps_taken: int, loss_scale: LossScale | None = None) -> None:
        """Load parameters and moments with `read`. Collective.

        `read` returns ranges of the saved parameters and moments (see SliceReader). The run that saved them may have
        had another world size, stage or precision. `steps_taken` is the number of updates that the saved run had made.
        `loss_scale` comes from an fp16 checkpoint and is used if this engine is fp16 too. If `loss_scale` is None, the
        initial scale stays.
        """
        zero_state.prepare_moments(self._engine, stage=self.stage, updates=self._count_updates(steps_taken))
        self._write_slices(read)
        self.steps_taken = steps_taken
        if self._dynamic_scale and loss_scale is not None:
            self.loss_scale = loss_scale
            self._engine.optimizer.loss_scaler.cur_scale = loss_scale.value

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the full shape of every trainable parameter by name."""
        parameters = zero_state.trainable_parameters(self.module)
        return {name: zero_state.full_shape(parameter) for name, parameter in parameters}

    def broadcast_int(self, value: int) -> int:
        """Return rank 0's `value` on every rank. Collective."""
        tensor = torch.tensor([value], dtype=torch.int64, device=self.device)
        dist.broadcast(tensor, src=0)
        return int(tensor.item())

    def optimizer_bytes(self) -> int:
        """Return how many bytes the moments take on this rank."""
        return zero_state.optimizer_bytes(self._engine, stage=self.stage)

    def parameter_bytes(self) -> int:
        """Return how many bytes the model's parameters take on this rank between two steps.

        The fp32 master weights, which the optimizer updates, do not count.
        """
        return zero_state.parameter_bytes(self._engine, stage=self.stage)

    def close(self) -> None:
        """Remove DeepSpeed's hooks from the model."""
        self._engine.destroy()

    def _write_slices(self, read: SliceReader) -> None:
        for piece in zero_state.list_slices(self._engine, stage=self.stage, rank=self.rank):
            for kind, values in read(piece.name, piece.start, piece.stop).items():
                piece.tensors[kind].copy_(values)
        zero_state.refresh_model_weights(self._engine, stage=self.stage)

    def _step_replicated(self) -> StepResult:
        parameters = [p for _, p in zero_state.trainable_parameters(self.module)]
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        grad_norm = float(norm)
        if not math.isfinite(grad_norm):
            self._engine.zero_grad()
            return StepResult(grad_norm=grad_norm, skipped=True)
        if self._clip_norm > 0.0:
            torch.nn.utils.clip_grads_with_norm_(parameters, self._clip_norm, norm)
        self._engine.step()
        return StepResult(grad_norm=grad_norm, skipped=False)

    def _step_partitioned(self) -> StepResult:
        self._engine.step()
        optimizer = self._engine.optimizer
        return StepResult(grad_norm=float(optimizer._global_grad_norm), skipped=bool(optimizer.overflow))

    @torch.no_grad()
    def _step_with(self, gradients: PartitionedGradients) -> StepResult:
        """Take a step and return its outcome. The host does not wait for the gradient norm before it launches AdamW.

        The host need not know the norm, because AdamW's kernel clips the gradients on the device. The kernel also skips
        the update if the norm is not finite. For other optimizers the host waits and skips the update itself.
        """
        gradient_scale = self.world_size * self.loss_scale.value
        norm = gradients.norm() / gradient_scale
        excess = (norm / self._clip_norm).clamp(min=1.0) if self._clip_norm > 0.0 else torch.ones_like(norm)
        divisor, skip = (excess * gradient_scale).float(), (~norm.isfinite()).float()
        host_norm = HostCopy(norm)
        if not (self._skips_on_host and skip):
            zero_state.update_partitions(
                self._engine,
                gradients.partitions,
                rank=self.rank,
                step=self._count_updates(self.steps_taken + 1),
                divisor=divisor,
                skip=skip,
            )
        gradients.clear()
        grad_norm = float(host_norm.wait())
        return StepResult(grad_norm=grad_norm, skipped=not math.isfinite(grad_norm))

    def _own_part(self, piece: LocalSlice) -> LocalSlice:
        numel = piece.stop - piece.start
        first = numel * self.rank // self.world_size
        stop = numel * (self.rank + 1) // self.world_size
        tensors = {kind: values[first:stop] for kind, values in piece.tensors.items()}
        return LocalSlice(name=piece.name, start=piece.start + first, shape=piece.shape, tensors=tensors)
