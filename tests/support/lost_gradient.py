"""The fault that the self-check is for: compiled, a loss has no gradient; eagerly nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def lose_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the same values and, where it is compiled, without gradients."""

    def without_gradient(*tensors: Tensor, **others: Any) -> Any:
        lost = torch.compiler.is_compiling()
        return function(*(tensor.detach() if lost else tensor for tensor in tensors), **others)

    return without_gradient
