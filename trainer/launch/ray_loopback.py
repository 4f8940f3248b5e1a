"""Lets the workers of Ray Train, on a Ray of one machine, listen on that machine only."""

from __future__ import annotations

import os
from typing import Any

from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend

from trainer.launch.loopback import open_stores_here


def torch_config(*, backend: str, timeout_s: int) -> TorchConfig:
    """Return how Ray Train connects the workers. Without a cluster (RAY_ADDRESS), they listen on 127.0.0.1 only."""
    kind = TorchConfig if os.environ.get("RAY_ADDRESS") else _LoopbackConfig
    return kind(backend=backend, timeout_s=timeout_s)


class _LoopbackConfig(TorchConfig):  # type: ignore[misc]
    @property
    def backend_cls(self) -> type[_TorchBackend]:
        return _LoopbackBackend


class _LoopbackBackend(_TorchBackend):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        """Connect the workers. Ray Train calls this once they have started."""
        worker_group.execute(open_stores_here)
        super().on_start(worker_group, backend_config)
