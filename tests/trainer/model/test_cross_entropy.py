"""The masked-word head in chunks: cross-entropy and its gradients, for any chunk and precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model import cross_entropy
from trainer.model.cross_entropy import NO_LABEL, linear_cross_entropy_sum
from trainer.model.heads import cross_entropy_sum


def head_inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden, weight, bias = (torch.randn(*shape, dtype=dtype) for shape in ((7, 4), (9, 4), (9,)))
    return hidden, weight, bias, torch.tensor([0, 8, 3, NO_LABEL, 1, 0, 5]), torch.rand(7)


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_chunked_head_is_cross_entropy_for_any_chunk(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, bias, labels, weights = head_inputs()
    leaves = [tensor.requires_grad_() for tensor in (hidden, weight, bias)]
    monkeypatch.setattr(cross_entropy, "CPU_CHUNK_BYTES", rows * 4 * weight.shape[0])
    loss, correct, each = linear_cross_entropy_sum(hidden, weight, bias, labels=labels, weights=weights)
    logits = F.linear(hidden, weight, bias)
    expected, expected_correct = cross_entropy_sum(logits, labels=labels, weights=weights)
    losses = F.cross_entropy(logits, labels, reduction="none", ignore_index=NO_LABEL)
    torch.testing.assert_close(loss.float(), expected)
    torch.testing.assert_close(correct.float(), expected_correct)
    torch.testing.assert_close(each, losses.detach() * weights.double())
    found = torch.autograd.grad(3 * loss, leaves)
    wanted = torch.autograd.grad(3 * (losses * weights.double()).sum(), leaves)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_chunked_head_passes_gradcheck() -> None:
    hidden, weight, bias, labels, weights = head_inputs()
    leaves = [tensor.requires_grad_() for tensor in (hidden, weight, bias)]

    def loss(*tensors: Tensor) -> Tensor:
        return linear_cross_entropy_sum(*tensors, labels=labels, weights=weights)[0]

    assert torch.autograd.gradcheck(loss, leaves)


def test_chunked_head_in_bfloat16_keeps_its_sums_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "CPU_CHUNK_BYTES", 100 * 4 * 500)
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(300, 64), torch.randn(500, 64) / 8, torch.randn(500)
    labels, weights = torch.randint(0, 500, (300,)), torch.ones(300)
    half = [tensor.bfloat16().requires_grad_() for tensor in (hidden, weight, bias)]
    full = [tensor.detach().float().requires_grad_() for tensor in half]
    loss, _, _ = linear_cross_entropy_sum(*half, labels=labels, weights=weights)
    expected, _, _ = linear_cross_entropy_sum(*full, labels=labels, weights=weights)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=2e-3, atol=0)
    for one, other in zip(torch.autograd.grad(loss, half), torch.autograd.grad(expected, full), strict=True):
        assert one.dtype == torch.bfloat16
        assert (one.float() - other).norm() / other.norm() < 0.01
