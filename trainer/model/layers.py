"""Layers without torch's default initialization: bert.py draws each weight once, by name.

That saves seconds for BERT-Large and leaves torch's global generator untouched.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

LAYER_NORM_EPSILON = 1e-12


class Linear(nn.Linear):
    """nn.Linear without default initialization, whose bias gradient may be computed elsewhere."""

    parameters_stay = True
    """False if the parameters exist only while this module runs (ZeRO-3), so that nothing else may use the bias."""

    def forward(self, x: Tensor, *, bias_gradient: bool = True) -> Tensor:
        """[..., in] -> [..., out]. bias_gradient=False: the consumer of the result computes the bias gradient."""
        return F.linear(x, self.weight, self.bias if bias_gradient else self.bias.detach())

    def reset_parameters(self) -> None:
        """Leave the weights to bert.initialize_weights."""


class Embedding(nn.Embedding):
    """nn.Embedding without default initialization."""

    def reset_parameters(self) -> None:
        """Leave the weights to bert.initialize_weights."""


def layer_norm(width: int) -> nn.LayerNorm:
    """LayerNorm over the last dimension with BERT's epsilon of 1e-12; weight one, bias zero."""
    return nn.LayerNorm(width, eps=LAYER_NORM_EPSILON)


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """GELU by its config name: `gelu` (x * Phi(x), exact) or `gelu_tanh` (Hendrycks and Gimpel 2016, eq. 2)."""
    return _gelu_tanh if name == "gelu_tanh" else F.gelu


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")
