"""trainer/run.py with faults that cannot be put in from outside; settings in the environment.

CHAOS_NAN_STEPS=22,23: the gradient of lane 1 is NaN in these steps, in the workers too, which import this file again.
CHAOS_FORK=1: workers are forked from a server that has loaded torch once, to save their start.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any

import torch

from trainer.engine.engine import Engine
from trainer.run import main
from trainer.train import loop

NAN_STEPS = {int(step) for step in os.environ.get("CHAOS_NAN_STEPS", "").split(",") if step}


def poison() -> None:
    """Wrap what the loop calls at each micro-batch."""
    seed, backward = loop.dropout_seed, Engine.backward
    bad = False

    def noted(base: int, *, step: int, lane: int) -> int:
        nonlocal bad
        bad = step in NAN_STEPS and lane == 1
        return seed(base, step=step, lane=lane)

    def poisoned(engine: Engine, loss: torch.Tensor, *, last: bool) -> None:
        backward(engine, loss * float("nan") if bad else loss, last=last)

    loop.dropout_seed = noted
    Engine.backward = poisoned  # type: ignore[method-assign]


def fork_workers() -> None:
    """Let trainer.launch.processes fork where it would spawn."""
    from worker_group import PRELOAD

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    original: Any = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: context if method == "spawn" else original(method)


if NAN_STEPS:
    poison()

if __name__ == "__main__":
    if os.environ.get("CHAOS_FORK"):
        fork_workers()
    sys.exit(main())
