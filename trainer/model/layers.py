"""Building blocks whose weights are drawn once, by name, in bert.py: torch's own default draws are left out.

That saves seconds for BERT-Large, and leaves torch's global generator alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

LAYER_NORM_EPSILON = 1e-12


class Linear(nn.Linear):
    """nn.Linear without a default draw, and with a bias whose gradient may be made elsewhere."""

    parameters_stay = True
    """False where they are there only while this module computes (ZeRO-3): nothing else may use the bias then."""

    def forward(self, x: Tensor, *, bias_gradient: bool = True) -> Tensor:
        """[..., in] -> [..., out]. bias_gradient=False: whoever takes the result gives the bias its gradient."""
        return F.linear(x, self.weight, self.bias if bias_gradient else self.bias.detach())

    def reset_parameters(self) -> None:
        """Leave the weights to bert.initialize_weights."""


class Embedding(nn.Embedding):
    """nn.Embedding without a default draw."""

    def reset_parameters(self) -> None:
        """Leave the weights to bert.initialize_weights."""


def layer_norm(width: int) -> nn.LayerNorm:
    """LayerNorm over the last dimension with BERT's epsilon of 1e-12; weight one, bias zero."""
    return nn.LayerNorm(width, eps=LAYER_NORM_EPSILON)


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """GELU by its config name: `gelu` (x * Phi(x), exact) or `gelu_tanh` (Hendrycks and Gimpel 2016, eq. 2)."""
    if name == "gelu_tanh":
        return _gelu_tanh
    return F.gelu


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")
