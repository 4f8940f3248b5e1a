"""Before the first step of a compiled run: does the compiled model give the gradients of the eager one?

A compiler once gave zeros for the gradients of a loss, and nothing else looked wrong. The very graph that is trained
is compared, on the run's first micro-batch, dropout included: its masks are a function of the seed. Cost: one eager
forward and backward pass; the compilation is the one that training needs.
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
from trainer.batches import Batch
from trainer.config import Precision
from trainer.engine import Engine
from trainer.engine_state import trainable_parameters

TOLERANCE: Mapping[Precision, float] = {"fp32": 1e-3, "fp16": 0.02, "bf16": 0.05}
"""Greatest relative difference of a loss or of the norm of a parameter's gradient. Measured: 1e-6, 0.002, 0.01."""
SMALL, SMALL_TOLERANCE = 0.05, 6.0
"""A norm below this share of the whole gradient's may be a sum that cancels (the next-sentence bias): its relative
difference may be so many times greater."""
NEGLIGIBLE = 1e-3
"""Share of the whole gradient's norm below which a parameter's own is rounding: differences count in relation to this
much at least."""
FP16_SCALE = 1024.0
"""Of the loss in fp16, whose small gradients would vanish."""
_SHOWN = 4

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Pass:
    """Losses of one forward and backward pass, and the norm of each parameter's gradient, by name."""

    losses: dict[str, float]
    norms: dict[str, float]


def check_compiled_model(engine: Engine, batch: Batch, *, precision: Precision, seed: int) -> None:
    """Raise ConfigError, on all ranks, if the compiled and the eager model disagree on `batch`. Collective.

    `seed` of torch's generators, for both passes. Parameters, their gradients and the engine's state stay as they are.
    An eager pass that does not fit into the GPU's memory is warned of, and nothing is compared.
    """
    try:
        eager = _run(engine, batch, seed=seed, stance="force_eager", precision=precision)
        compiled = _run(engine, batch, seed=seed, stance="default", precision=precision)
        complaints = compare(compiled, eager, tolerance=TOLERANCE[precision])
    except torch.OutOfMemoryError:
        logger.warning(
            "the self-check is left out: the model that is not compiled needs more memory than the GPU has left; lower "
            "batch.tokens_per_slot to have it, or set self_check=false"
        )
        complaints = []
    answers: list[list[str]] = [[] for _ in range(engine.world_size)]
    dist.all_gather_object(answers, complaints)
    found = next((answer for answer in answers if answer), [])
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise ConfigError(
            f"self-check: compiled by torch {torch.__version__}, the model disagrees with itself not compiled on the "
            f"first micro-batch: {'; '.join(found[:_SHOWN])}{more}. It would not learn as it should: set compile=false "
            f"(slower), or use another version of torch; self_check=false trains all the same"
        )


def compare(compiled: _Pass, eager: _Pass, *, tolerance: float) -> list[str]:
    """What differs by more than `tolerance`, the greatest difference first; what is finite in neither is left out."""
    whole = sum(norm**2 for norm in eager.norms.values()) ** 0.5
    pairs = [(f"{name} loss", compiled.losses[name], loss, 0.0) for name, loss in eager.losses.items()]
    pairs += [
        (f"gradient norm of {name}", compiled.norms[name], norm, NEGLIGIBLE * whole)
        for name, norm in eager.norms.items()
    ]
    found = []
    for what, here, there, least in pairs:
        small = least > 0.0 and max(here, there) < SMALL * whole
        excess = _difference(here, there, least=least) / (tolerance * SMALL_TOLERANCE if small else tolerance)
        if excess > 1.0:
            found.append((excess, f"{what} {here:.6g} compiled, {there:.6g} eager"))
    return [text for _, text in sorted(found, key=lambda each: -each[0])]


def _difference(here: float, there: float, *, least: float) -> float:
    """Relative to the greater of both, or to `least`; infinite where only one is finite."""
    if not (math.isfinite(here) and math.isfinite(there)):
        return math.inf if math.isfinite(here) != math.isfinite(there) else 0.0
    size = max(abs(here), abs(there), least)
    return abs(here - there) / size if size > 0.0 else 0.0


def _run(engine: Engine, batch: Batch, *, seed: int, stance: str, precision: Precision) -> _Pass:
    parameters = dict(trainable_parameters(engine.module))
    scale = FP16_SCALE if precision == "fp16" else 1.0
    torch.manual_seed(seed)
    with torch.compiler.set_stance(stance):
        output = engine.module(batch)
        losses = {
            "masked-LM": output.mlm_loss_sum / max(1, batch.num_masked),
            "next-sentence": output.nsp_loss_sum / max(1, batch.num_labelled),
        }
        # Not backward(): DeepSpeed's hooks on the parameters must not see these gradients.
        gradients = torch.autograd.grad(sum(losses.values()) * scale, list(parameters.values()), allow_unused=True)
    norms = [_norm(gradient, device=engine.device) for gradient in gradients]
    values = torch.stack([*(loss.detach().double() for loss in losses.values()), *norms]).tolist()
    return _Pass(
        losses=dict(zip(losses, values, strict=False)),
        norms=dict(zip(parameters, values[len(losses) :], strict=True)),
    )


def _norm(gradient: Tensor | None, *, device: torch.device) -> Tensor:
    if gradient is None:
        return torch.zeros((), dtype=torch.float64, device=device)
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=torch.float32)
    return norm.double()
