"""The hash for dropout in kernels: the same function as trainer.model.dropout.mix, for uint32 on a GPU."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mix(x):
    """Return a hash of each uint32 in `x`. The hash is a bijection, and each of its bits depends on all bits of the
    uint32."""
    tl.static_assert(x.dtype == tl.uint32)
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)
