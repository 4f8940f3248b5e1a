"""GELU after a linear layer on a GPU (kernels/bias_gelu.py), as operators that torch.compile does not look inside."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.library.custom_op("cloze::gelu_of_biased", mutates_args=())
def gelu_of_biased(biased: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    """Return GELU(biased), [rows, columns]; `tanh` selects the tanh approximation.

    `biased` already includes `bias`. `bias` is an argument only so that it gets a gradient.
    """
    from trainer.model.kernels import bias_gelu as kernels

    return kernels.forward(biased.contiguous(), tanh=tanh)


@gelu_of_biased.register_fake
def _(biased: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    return torch.empty_like(biased, memory_format=torch.contiguous_format)


@torch.library.custom_op("cloze::gelu_of_biased_backward", mutates_args=())
def gelu_of_biased_backward(biased: Tensor, upstream: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """Return the gradients of `biased` [rows, columns] and of the bias [columns].

    `upstream` is the loss's gradient with respect to the result of gelu_of_biased.
    """
    from trainer.model.kernels import bias_gelu as kernels

    return kernels.backward(biased.contiguous(), upstream.contiguous(), tanh=tanh)


@gelu_of_biased_backward.register_fake
def _(biased: Tensor, upstream: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(biased, memory_format=torch.contiguous_format), biased.new_empty(biased.shape[-1])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    biased, _, ctx.tanh = inputs
    ctx.save_for_backward(biased)


def _backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    (biased,) = ctx.saved_tensors
    return *gelu_of_biased_backward(biased, upstream, ctx.tanh), None


gelu_of_biased.register_autograd(_backward, setup_context=_setup_context)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor, *, tanh: bool) -> Tensor:
    """Return GELU(x weight^T + bias), [rows, out] for x [rows, in], in bf16 or fp16 on a GPU.

    `tanh` selects the tanh approximation. GELU's backward pass computes the gradient of the bias. So the linear layer
    uses the bias detached from autograd.
    """
    return gelu_of_biased(F.linear(x, weight, bias.detach()), bias, tanh)  # type: ignore[no-any-return]
