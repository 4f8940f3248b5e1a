"""Dropout masks that are hashes: drawn with the right probability, independent, and the same in backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from packed import keep_mask
from trainer.model.attention_gpu import count_dropped_draws
from trainer.model.dropout import hash_dropout, keep_hash

PROBABILITY = 0.1
ROWS, COLUMNS = 4096, 512


def hidden_mask(seed: int) -> Tensor:
    return keep_hash(ROWS, COLUMNS, seeds=torch.tensor([seed, seed + 1], dtype=torch.int32), probability=PROBABILITY)


def attention_mask(seed: int) -> Tensor:
    tokens, columns = (torch.arange(count, dtype=torch.int32) for count in (ROWS, COLUMNS))
    return keep_mask(seed, head=3, tokens=tokens, columns=columns, threshold=count_dropped_draws(PROBABILITY))


@pytest.mark.parametrize("seed", [0, 1, 77, 2**31 - 2])
@pytest.mark.parametrize("draw", [hidden_mask, attention_mask])
def test_masks_are_like_independent_draws(draw: Callable[[int], Tensor], seed: int) -> None:
    """Mean, spread of the means of rows and columns, and correlation between rows and between columns."""
    mask = draw(seed).double()
    deviation = (PROBABILITY * (1 - PROBABILITY)) ** 0.5
    centred = (mask - (1 - PROBABILITY)) / deviation
    assert abs(centred.mean().item()) < 6 / (ROWS * COLUMNS) ** 0.5 + 1e-3
    assert centred.mean(1).var().item() * COLUMNS == pytest.approx(1.0, abs=0.15)
    assert centred.mean(0).var().item() * ROWS == pytest.approx(1.0, abs=0.5)
    for values, count in ((centred, COLUMNS), (centred.T, ROWS)):
        correlation = values @ values.T / count
        correlation.fill_diagonal_(0.0)
        assert (correlation**2).mean().item() * count == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("draw", [hidden_mask, attention_mask])
def test_another_seed_gives_another_mask(draw: Callable[[int], Tensor]) -> None:
    assert torch.equal(draw(5), draw(5))
    agreement = (draw(5) == draw(6)).double().mean().item()
    assert agreement == pytest.approx((1 - PROBABILITY) ** 2 + PROBABILITY**2, abs=0.01)


@pytest.mark.parametrize("shape", [(300, 64), (3, 100, 64), (50,)])
def test_dropout_scales_what_it_keeps_and_masks_the_gradient_alike(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.rand(shape).add_(0.5).requires_grad_()
    seeds = torch.tensor([5, 6], dtype=torch.int32)
    y = hash_dropout(x, PROBABILITY, seeds=seeds)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    kept = y != 0
    torch.testing.assert_close(y[kept], x[kept] / (1 - PROBABILITY))
    torch.testing.assert_close(gradient, kept / (1 - PROBABILITY))
    assert torch.equal(hash_dropout(x, PROBABILITY, seeds=seeds), y)
    assert not torch.equal(hash_dropout(x, PROBABILITY, seeds=seeds + 1), y)
