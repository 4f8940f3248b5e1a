"""Asynchronous copy from a GPU to the host; reading waits for this copy only."""

from __future__ import annotations

import torch
from torch import Tensor


class HostCopy:
    """A copy of a tensor, started by the constructor; on a CPU it is complete at once."""

    def __init__(self, values: Tensor) -> None:
        on_gpu = values.device.type == "cuda"
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=on_gpu)
        self._host.copy_(values.detach(), non_blocking=True)
        self._event = torch.cuda.current_stream(values.device).record_event() if on_gpu else None

    def here(self) -> Tensor:
        """Return the copy, on the CPU; wait for it, but for nothing launched later."""
        if self._event is not None:
            self._event.synchronize()
        return self._host
