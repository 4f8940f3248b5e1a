"""Lets the workers of Ray Train listen on their own machine only, if Ray has no other."""

from __future__ import annotations

from typing import Any

import ray
from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend

from trainer.launch.loopback import open_stores_here


def torch_config(*, backend: str, timeout_s: int) -> TorchConfig:
    """Return how Ray Train connects the workers. On a Ray whose nodes have the address 127.0.0.1 (a Ray that a command
    started, or the local cluster), they listen on 127.0.0.1 only. Call this while connected to Ray."""
    kind = _LoopbackConfig if ray.util.get_node_ip_address() == "127.0.0.1" else TorchConfig
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
