"""Predict a masked token from its two neighbours. A model that reads context must beat this baseline.

The prediction uses counts of adjacent tokens in a sample of the training rows. Each process reads about SAMPLE_TOKENS
tokens for it, once per data set. With a vocabulary of 30,522 this took one second and 250 MB.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset import Manifest, schema
from trainer.data import MicroBatch, RowGroupError, read_row_group

SAMPLE_TOKENS = 4_000_000
"""Number of tokens at which the sample ends. It holds whole row groups, so it may be a little larger."""
_SEED = 0


class Bigrams:
    """Estimates P(token | neighbours): the mean of the distributions that the known neighbours give.

    A neighbour n gives token t the probability (c(n, t) + d(n) u(t)) / (c(n) + d(n)). Here c counts pairs in that
    direction, d(n) is the number of different tokens seen beside n, and u is the unigram distribution (Witten and Bell
    1991, method C). A neighbour is unknown if it is masked, special or never seen. If both are unknown, the probability
    is u(t).
    """

    def __init__(self, pairs: NDArray[np.int64], *, unigram: NDArray[np.float64]) -> None:
        """Count `pairs`, ids [n, 2] of adjacent tokens. `unigram` holds each token's natural log probability, [V]."""
        self._size, self._unigram = unigram.size, np.exp(unigram)
        self._keys, self._counts = np.unique(pairs[:, 0] * self._size + pairs[:, 1], return_counts=True)
        sides = (self._keys // self._size, self._keys % self._size)
        self._totals = [np.bincount(side, weights=self._counts, minlength=self._size + 1) for side in sides]
        self._distinct = [np.bincount(side, minlength=self._size + 1) for side in sides]

    def losses(self, micro_batch: MicroBatch) -> NDArray[np.float64]:
        """Return the cross-entropy in nats at each masked position of the micro-batch, [m]."""
        unknown = self._size
        ids = np.full(micro_batch.num_tokens + 2, unknown, dtype=np.int64)
        ids[1:-1] = micro_batch.input_ids
        ids[micro_batch.masked_positions + 1] = unknown
        tokens = micro_batch.masked_labels.astype(np.int64)
        unigram_probability = self._unigram[tokens]
        left, right = ids[micro_batch.masked_positions], ids[micro_batch.masked_positions + 2]
        probability_sum, known = np.zeros(tokens.size), np.zeros(tokens.size)
        sides = ((0, left, left * self._size + tokens), (1, right, tokens * self._size + right))
        for side, neighbours, keys in sides:
            total, distinct = self._totals[side][neighbours], self._distinct[side][neighbours]
            smoothed = (self._count(keys) + distinct * unigram_probability) / np.maximum(total + distinct, 1)
            probability_sum += np.where(total > 0, smoothed, 0.0)
            known += total > 0
        probability = np.where(known > 0, probability_sum / np.maximum(known, 1), unigram_probability)
        return np.asarray(-np.log(probability), dtype=np.float64)

    def _count(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self._keys.size:
            return np.zeros_like(keys)
        places = np.minimum(np.searchsorted(self._keys, keys), self._keys.size - 1)
        return np.where(self._keys[places] == keys, self._counts[places], 0)


def count_bigrams(
    data: str,
    *,
    manifest: Manifest,
    unigram: NDArray[np.float64],
    max_tokens: int = SAMPLE_TOKENS,
    skip_corrupt: bool = False,
) -> Bigrams:
    """Return the Bigrams of all training rows, or of a sample of their row groups with at least `max_tokens` tokens.

    Raises RowGroupError if a row group cannot be read. With `skip_corrupt`, that row group is left out instead.
    """
    shards = manifest.shards_of("train")
    groups = [(shard, index) for shard in shards for index in range(len(shard.row_group_rows))]
    pairs, tokens = [np.zeros((0, 2), np.int64)], 0
    for place in np.random.default_rng(_SEED).permutation(len(groups)):
        if tokens >= max_tokens:
            break
        shard, index = groups[place]
        try:
            table = read_row_group(data, path=shard.path, row_group=index, columns=[schema.INPUT_IDS])
        except RowGroupError:
            if not skip_corrupt:
                raise
            continue
        tokens += shard.row_group_tokens[index]
        pairs += [adjacent(chunk, special=manifest.special.model_dump()) for chunk in table[schema.INPUT_IDS].chunks]
    return Bigrams(np.concatenate(pairs), unigram=unigram)


def adjacent(rows: Any, *, special: dict[str, int]) -> NDArray[np.int64]:
    """Return the ids of adjacent tokens in each of `rows` (an Arrow list array of ids), [n, 2].

    Pairs with a special token are left out. Pairs with [UNK] count, because [UNK] stands for a word.
    """
    ids = rows.flatten().to_numpy().astype(np.int64)
    pairs = np.stack([ids[:-1], ids[1:]], axis=1)
    specials = [token for name, token in special.items() if name != "unk"]
    return pairs[~np.isin(pairs, specials).any(axis=1)]
