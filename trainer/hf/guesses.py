"""The likeliest tokens for a [MASK]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MASK = "[MASK]"


@dataclass(frozen=True, slots=True)
class Guess:
    """A token predicted for a [MASK]."""

    token: str
    probability: float


def rank_guesses(logits: Tensor, *, tokens: Sequence[str], count: int) -> list[tuple[Guess, ...]]:
    """Return for each row of `logits` [M, V] the `count` likeliest tokens (at most V), best first.

    `tokens` is the vocabulary, ordered by id.
    """
    best = torch.softmax(logits, -1).topk(min(count, logits.shape[-1]))
    return [
        tuple(Guess(tokens[token], share) for token, share in zip(ids, shares, strict=True))
        for ids, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
