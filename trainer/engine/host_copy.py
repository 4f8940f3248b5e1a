"""Copies a tensor from a GPU to the host while the GPU works on. Whoever reads the copy waits for the copying, but not
for later GPU work."""

from __future__ import annotations

import torch
from torch import Tensor


class HostCopy:
    """Copies a tensor into the host's memory. The constructor starts copying, and `wait` returns the copy. For a tensor
    on a CPU the copy is complete at once."""

    def __init__(self, values: Tensor) -> None:
        on_gpu = values.device.type == "cuda"
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=on_gpu)
        self._host.copy_(values.detach(), non_blocking=True)
        self._event = torch.cuda.current_stream(values.device).record_event() if on_gpu else None

    def wait(self) -> Tensor:
        """Wait for the copy, but not for GPU work launched after it; return the copy, a tensor on the CPU."""
        if self._event is not None:
            self._event.synchronize()
        return self._host
