"""Recognize that a device ran out of memory, and say which settings to change.

The same command would run out of memory again at the same step. So the error counts as bad input, and the run is not
started again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from pipeline.dataset import read_manifest
from trainer.checkpoint import find_checkpoints
from trainer.config import TrainerConfig
from trainer.data import OpenPhase, open_phases, resolve_phases
from trainer.engine import name_remedies

_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    r"|cudaErrorMemoryAllocation|ncclUnhandledCudaError.*out of memory|NCCL.*out of memory"
    r"|Failed to CUDA (calloc|malloc)|DefaultCPUAllocator: can't allocate memory",
    re.DOTALL,
)
"""Matches out-of-memory messages of errors whose class is plain RuntimeError."""
_REQUESTED = re.compile(r"Tried to allocate ([\d.]+ \w+)")


class MemoryShortage(ValueError):  # noqa: N818
    """Raised if the device has too little memory for the run's settings."""


@contextmanager
def memory_shortage_explained(config: TrainerConfig, *, rank: int, device: torch.device) -> Iterator[None]:
    """Turn an out-of-memory error inside the `with` block into a MemoryShortage that names a remedy.

    `rank` and `device` are those of this worker.
    """
    try:
        yield
    except Exception as error:
        found = find_shortage(error)
        if found is None:
            raise
        raise MemoryShortage(describe_shortage(found, config=config, rank=rank, device=device)) from error


def find_shortage(error: BaseException) -> BaseException | None:
    """Return the out-of-memory error that `error` is or wraps. Return None if there is none.

    The search follows the chain of errors that led to `error`. It ends at a ValueError or OSError, because such an
    error counts as the problem itself, even if it was raised while an out-of-memory error was being handled.
    """
    seen: set[int] = set()
    node: BaseException | None = error
    while node is not None and id(node) not in seen and not isinstance(node, ValueError | OSError):
        seen.add(id(node))
        if isinstance(node, torch.OutOfMemoryError) or (
            isinstance(node, RuntimeError) and _OUT_OF_MEMORY.search(str(node))
        ):
            return node
        handled = node.__context__ if isinstance(node, RuntimeError) and not node.__suppress_context__ else None
        node = node.__cause__ or handled
    return None


def describe_shortage(error: BaseException, *, config: TrainerConfig, rank: int, device: torch.device) -> str:
    """Return a line that says how much memory was requested, how much is in use, how much the device has, and which
    settings reduce the need.

    `error` is an out-of-memory error on this worker, which has the rank `rank` and the device `device`.
    """
    requested = _REQUESTED.search(str(error))
    remedies = name_remedies(config, phases=_open_phases(config))
    begun = "another output" in remedies and find_checkpoints(config.output).folders
    return (
        f"worker {rank}: out of memory on {device.type}{f' (tried to allocate {requested[1]})' if requested else ''}"
        f"{_in_use(device)}; {remedies}"
        + (f", with resume_from={config.output} from its newest checkpoint" if begun else "")
    )


def _in_use(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    with suppress(RuntimeError):  # a failed device may not answer
        free, total = torch.cuda.mem_get_info(device)
        tensors = torch.cuda.memory_allocated(device)
        return (
            f": the GPU has {total / 1e9:.1f} GB, of which {(total - free) / 1e9:.1f} GB were in use, "
            f"{tensors / 1e9:.1f} GB by this worker's tensors"
        )
    return ""


def _open_phases(config: TrainerConfig) -> tuple[OpenPhase, ...]:
    """Open the data set of each phase of the run, and return the opened phases. Return an empty tuple if one of the
    data sets can no longer be read: advice about memory is then given without its numbers, and no second error hides
    the first."""
    with suppress(ValueError, OSError):
        phases = resolve_phases(config)
        return open_phases(phases, manifests=[read_manifest(phase.config.data) for phase in phases])
    return ()
