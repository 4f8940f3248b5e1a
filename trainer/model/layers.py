"""Layers without torch's default initialization, because bert.initialize_weights draws each weight.

Skipping that initialization saves seconds for BERT-Large and leaves torch's global generator untouched.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

LAYER_NORM_EPSILON = 1e-12


class Linear(nn.Linear):
    """nn.Linear without default initialization. It can leave the gradient of its bias to another module."""

    parameters_persist = True
    """Whether the parameters exist all the time. False under ZeRO-3, where they exist only while their module runs.
    If false, no other module may use the bias."""
    num_matrices = 1
    """Number of matrices that stand in the weight one below the other. LAMB and Muon take each by itself."""
    is_output = False
    """Whether this is an output layer, which Muon leaves to AdamW."""

    def forward(self, x: Tensor, *, with_bias_gradient: bool = True) -> Tensor:
        """Return the layer's output [..., out] for `x` [..., in].

        If `with_bias_gradient` is false, the bias gets no gradient here, because the next module computes this
        gradient.
        """
        return F.linear(x, self.weight, self.bias if with_bias_gradient else self.bias.detach())

    def reset_parameters(self) -> None:
        """Do nothing, because bert.initialize_weights sets the weights later."""


class Embedding(nn.Embedding):
    """nn.Embedding without default initialization."""

    def reset_parameters(self) -> None:
        """Do nothing, because bert.initialize_weights sets the weights later."""


def layer_norm(width: int) -> nn.LayerNorm:
    """Return a LayerNorm over the last dimension with BERT's epsilon of 1e-12; weights are one and biases zero."""
    return nn.LayerNorm(width, eps=LAYER_NORM_EPSILON)


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """Return the GELU that the config calls `name`: "gelu" is x * Phi(x), "gelu_tanh" is eq. 2 of Hendrycks and Gimpel
    2016."""
    return _gelu_tanh if name == "gelu_tanh" else F.gelu


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")
