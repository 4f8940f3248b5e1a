"""Predict a masked token from its two neighbours: a baseline that a model which reads context must beat.

Counts adjacent tokens in a sample of the training rows. Cost, once per process and data set: reading about MOST_TOKENS
tokens; measured: one second and 250 MB with a vocabulary of 30,522.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset import Manifest, schema
from trainer.data import MicroBatch, RowGroupError, read_row_group

MOST_TOKENS = 4_000_000
"""Size of the sample: whole row groups in a fixed random order; the last one may exceed it."""
_SEED = 0


class Bigrams:
    """P(token | neighbours): the mean of the distributions that the known neighbours give.

    A neighbour n gives (c(n, t) + d(n) u(t)) / (c(n) + d(n)): c counts pairs in that direction, d(n) is the number of
    different tokens seen beside n, u the unigram distribution (Witten and Bell 1991, method C). A neighbour that is
    masked, special or never seen is unknown; if both are, the probability is u(t).
    """

    def __init__(self, pairs: NDArray[np.int64], *, unigram: NDArray[np.float64]) -> None:
        """`pairs`: [n, 2] adjacent tokens, left and right; `unigram`: [V] natural logarithms of probabilities."""
        self._size, self._unigram = unigram.size, np.exp(unigram)
        self._keys, self._counts = np.unique(pairs[:, 0] * self._size + pairs[:, 1], return_counts=True)
        sides = (self._keys // self._size, self._keys % self._size)
        self._totals = [np.bincount(side, weights=self._counts, minlength=self._size + 1) for side in sides]
        self._kinds = [np.bincount(side, minlength=self._size + 1) for side in sides]

    def losses(self, micro_batch: MicroBatch) -> NDArray[np.float64]:
        """[m] cross-entropy in nats at each masked position."""
        unknown = self._size
        ids = np.full(micro_batch.num_tokens + 2, unknown, dtype=np.int64)
        ids[1:-1] = micro_batch.input_ids
        ids[micro_batch.masked_positions + 1] = unknown
        tokens = micro_batch.masked_labels.astype(np.int64)
        chance = self._unigram[tokens]
        left, right = ids[micro_batch.masked_positions], ids[micro_batch.masked_positions + 2]
        told, known = np.zeros(tokens.size), np.zeros(tokens.size)
        sides = ((0, left, left * self._size + tokens), (1, right, tokens * self._size + right))
        for side, neighbours, keys in sides:
            total, kinds = self._totals[side][neighbours], self._kinds[side][neighbours]
            told += np.where(total > 0, (self._count(keys) + kinds * chance) / np.maximum(total + kinds, 1), 0.0)
            known += total > 0
        return np.asarray(-np.log(np.where(known > 0, told / np.maximum(known, 1), chance)), dtype=np.float64)

    def _count(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self._keys.size:
            return np.zeros_like(keys)
        places = np.minimum(np.searchsorted(self._keys, keys), self._keys.size - 1)
        return np.where(self._keys[places] == keys, self._counts[places], 0)


def count_bigrams(
    data: str, *, manifest: Manifest, unigram: NDArray[np.float64], most: int = MOST_TOKENS, skip_corrupt: bool = False
) -> Bigrams:
    """Count all training rows of a data set, or a sample of its row groups with at least `most` tokens.

    Raises RowGroupError if a row group cannot be read; `skip_corrupt` leaves it out instead.
    """
    shards = manifest.shards_of("train")
    groups = [(shard, index) for shard in shards for index in range(len(shard.row_group_rows))]
    pairs, tokens = [np.zeros((0, 2), np.int64)], 0
    for place in np.random.default_rng(_SEED).permutation(len(groups)):
        if tokens >= most:
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
    """[n, 2] adjacent tokens within `rows` (an Arrow list array of ids), without pairs that hold a special token.

    [UNK] stands for a word, so its pairs count.
    """
    ids = rows.flatten().to_numpy().astype(np.int64)
    pairs = np.stack([ids[:-1], ids[1:]], axis=1)
    specials = [token for name, token in special.items() if name != "unk"]
    return pairs[~np.isin(pairs, specials).any(axis=1)]
