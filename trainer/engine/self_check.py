"""Checks, before the first step of a run, that the compiled model has the same losses and gradients as eager code.

A compiler once returned zeros for the gradients of a loss, and nothing else looked wrong. The check runs the very graph
that will be trained, on the run's first micro-batch. Dropout stays on: its masks depend on the seed alone, so the
compiled pass and the eager pass have the same masks. The eager pass is the cost of the check. The compiled pass costs
little, because training needs the compilation anyway. With CUDA graphs the check compares a replay, with another seed
than the recorded pass had.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.settings import ConfigError
from trainer.config import Precision
from trainer.engine.engine import Engine
from trainer.engine.zero_state import trainable_parameters
from trainer.model import Batch

TOLERANCE: Mapping[Precision, float] = {"fp32": 1e-3, "fp16": 0.02, "bf16": 0.05}
"""Maximum relative difference between compiled and eager code in a loss or a parameter's gradient norm. The differences
measured were 1e-6 in fp32, 0.002 in fp16 and 0.01 in bf16."""
SLACK: Mapping[Precision, float] = {"fp32": 1e-5, "fp16": 1e-4, "bf16": 5e-4}
"""Additional tolerance of a parameter's gradient norm, as a share of the norm of the whole gradient. It is needed
because some gradients are sums that cancel to rounding errors (the next-sentence bias differed by 6%). The median
parameter has 1% of the whole norm, so in bf16 a tenth of its norm may be missing unnoticed."""
FP16_SCALE = 1024.0
"""Loss scale of the check in fp16, where small gradients would otherwise become zero."""
_BEFORE_REPLAY = 2
"""Passes before torch replays a CUDA graph: one to warm up, one that is recorded."""
_SHOWN = 4

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PassResult:
    """The results of one forward and backward pass.

    `losses` has the keys "masked-LM" and "next-sentence". `norms` maps each parameter's name to its gradient norm.
    """

    losses: dict[str, float]
    norms: dict[str, float]


def check_compiled_model(engine: Engine, batch: Batch, *, precision: Precision, seed: int) -> None:
    """Raise ConfigError on all ranks if compiled and eager code give different losses or gradients for `batch`.

    Collective. The model runs forward and backward twice, compiled and eager, each time with torch's generators seeded
    with `seed`. Parameters, their gradients and the engine stay unchanged. If the eager losses are not finite, a
    warning is logged and nothing is compared. The same happens if the eager pass runs out of GPU memory in ZeRO stages
    0 to 2; in stage 3, torch's OutOfMemoryError is raised.
    """
    eager = _run_eager(engine, batch, seed=seed, precision=precision)
    complaints: list[str] = []
    if eager is not None:
        for _ in range(_BEFORE_REPLAY if engine.cuda_graphs else 0):
            _run(engine, batch, seed=seed + 1, stance="default", precision=precision)
        compiled = _run(engine, batch, seed=seed, stance="default", precision=precision)
        complaints = compare(compiled, eager, precision=precision)
    answers: list[list[str]] = [[] for _ in range(engine.world_size)]
    dist.all_gather_object(answers, complaints)
    found = next((answer for answer in answers if answer), [])
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise ConfigError(
            f"self-check: compiled by torch {torch.__version__}, the model gives results that differ from eager code "
            f"on the first micro-batch: {'; '.join(found[:_SHOWN])}{more}. It would not learn correctly: set "
            f"compile=false (slower), or use another version of torch; set self_check=false to train anyway"
        )


def _run_eager(engine: Engine, batch: Batch, *, seed: int, precision: Precision) -> PassResult | None:
    try:
        eager = _run(engine, batch, seed=seed, stance="force_eager", precision=precision)
    except torch.OutOfMemoryError:
        if engine.stage == 3:  # the other ranks wait in the collectives of this pass
            raise
        logger.warning(
            "no self-check: the eager model needs more memory than the GPU has left; lower batch.tokens_per_slot, or "
            "set self_check=false"
        )
        return None
    if not all(map(math.isfinite, eager.losses.values())):
        logger.warning("no self-check: the losses of the first micro-batch are not finite: %s", eager.losses)
        return None
    return eager


def compare(compiled: PassResult, eager: PassResult, *, precision: Precision) -> list[str]:
    """Return a text for each loss or norm that differs by more than TOLERANCE and SLACK allow, the worst first.

    A value that is finite in neither pass is ignored.
    """
    whole = sum(norm**2 for norm in eager.norms.values() if math.isfinite(norm)) ** 0.5
    pairs = [(f"{name} loss", compiled.losses[name], loss, 0.0) for name, loss in eager.losses.items()]
    pairs += [
        (f"gradient norm of {name}", compiled.norms[name], norm, SLACK[precision] * whole)
        for name, norm in eager.norms.items()
    ]
    found = []
    for what, compiled_value, eager_value, slack in pairs:
        allowed = TOLERANCE[precision] * max(abs(compiled_value), abs(eager_value)) + slack
        excess = _excess(compiled_value, eager_value, allowed=allowed)
        if excess > 1.0:
            found.append((excess, f"{what} {compiled_value:.6g} compiled, {eager_value:.6g} eager"))
    return [text for _, text in sorted(found, key=lambda pair: -pair[0])]


def _excess(compiled: float, eager: float, *, allowed: float) -> float:
    """Return |compiled - eager| / allowed. Return infinity if only one of the two values is finite, and 0 if neither
    is."""
    if not (math.isfinite(compiled) and math.isfinite(eager)):
        return math.inf if math.isfinite(compiled) != math.isfinite(eager) else 0.0
    return abs(compiled - eager) / allowed if compiled != eager else 0.0


def _run(engine: Engine, batch: Batch, *, seed: int, stance: str, precision: Precision) -> PassResult:
    parameters = dict(trainable_parameters(engine.module))
    scale = FP16_SCALE if precision == "fp16" else 1.0
    torch.manual_seed(seed)
    with torch.compiler.set_stance(stance):
        output = engine.module(batch)
        losses = {
            "masked-LM": output.mlm_loss_sum / max(1, batch.num_masked),
            "next-sentence": output.nsp_loss_sum / max(1, batch.num_labelled),
        }
        # backward() would run DeepSpeed's hooks on the parameters, which must not see these gradients.
        gradients = torch.autograd.grad(sum(losses.values()) * scale, list(parameters.values()), allow_unused=True)
    norms = [_norm(gradient, device=engine.device) for gradient in gradients]
    values = torch.stack([*(loss.detach().double() for loss in losses.values()), *norms]).tolist()
    return PassResult(
        losses=dict(zip(losses, values, strict=False)), norms=dict(zip(parameters, values[len(losses) :], strict=True))
    )


def _norm(gradient: Tensor | None, *, device: torch.device) -> Tensor:
    if gradient is None:
        return torch.zeros((), dtype=torch.float64, device=device)
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=torch.float32)
    return norm.double()
