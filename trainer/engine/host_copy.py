"""Numbers on their way from a GPU to the host: what is launched after them is not waited for."""

from __future__ import annotations

import torch
from torch import Tensor


class HostCopy:
    """A copy of a tensor, begun when this is made; on a CPU it is there at once."""

    def __init__(self, values: Tensor) -> None:
        on_gpu = values.device.type == "cuda"
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=on_gpu)
        self._host.copy_(values.detach(), non_blocking=True)
        self._event = torch.cuda.current_stream(values.device).record_event() if on_gpu else None

    def here(self) -> Tensor:
        """The copy, on the CPU; waits for it, and for nothing later."""
        if self._event is not None:
            self._event.synchronize()
        return self._host
