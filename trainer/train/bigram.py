"""What the two neighbours of a masked token tell of it: a line that a model which reads context has to beat.

Adjacent tokens are counted in a sample of the training rows. Cost, once a process and data set: reading at most
MOST_TOKENS tokens, about a second and 200 MB at 30,522 entries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset import Manifest, schema
from trainer.data import BlockError, Slot, read_row_group

MOST_TOKENS = 4_000_000
"""A larger training split is sampled: whole row groups in a fixed random order, the last one may exceed this."""
_SEED = 0


class Bigrams:
    """P(token | neighbours): the mean over the neighbours that are known of each one's distribution.

    A neighbour n gives (c(n, t) + d(n) u(t)) / (c(n) + d(n)), with c the counts of pairs in that direction, d the
    number of different tokens seen beside n, u the unigram distribution (Witten and Bell 1991, method C). A neighbour
    that is masked itself, special, or never seen is not known; where neither is known, the probability is u(t).
    """

    def __init__(self, pairs: NDArray[np.int64], *, unigram: NDArray[np.float64]) -> None:
        """`pairs`: [n, 2] adjacent tokens, left and right; `unigram`: [V] natural logarithms of probabilities."""
        self._size, self._unigram = unigram.size, np.exp(unigram)
        self._keys, self._counts = np.unique(pairs[:, 0] * self._size + pairs[:, 1], return_counts=True)
        sides = (self._keys // self._size, self._keys % self._size)
        self._totals = [np.bincount(side, weights=self._counts, minlength=self._size + 1) for side in sides]
        self._kinds = [np.bincount(side, minlength=self._size + 1) for side in sides]

    def losses(self, slot: Slot) -> NDArray[np.float64]:
        """[m] cross-entropy in nats at each masked position."""
        unknown = self._size
        ids = np.full(slot.num_tokens + 2, unknown, dtype=np.int64)
        ids[1:-1] = slot.input_ids
        ids[slot.masked_positions + 1] = unknown
        tokens = slot.masked_labels.astype(np.int64)
        chance = self._unigram[tokens]
        left, right = ids[slot.masked_positions], ids[slot.masked_positions + 2]
        told, known = np.zeros(tokens.size), np.zeros(tokens.size)
        for side, neighbours, keys in (
            (0, left, left * self._size + tokens),
            (1, right, tokens * self._size + right),
        ):
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
    """Count the training rows of a data set, or of a sample of its row groups with at least `most` tokens.

    Raises BlockError for a row group that cannot be read; with `skip_corrupt` it is left out.
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
        except BlockError:
            if not skip_corrupt:
                raise
            continue
        tokens += shard.row_group_tokens[index]
        pairs += [adjacent(chunk, special=manifest.special.model_dump()) for chunk in table[schema.INPUT_IDS].chunks]
    return Bigrams(np.concatenate(pairs), unigram=unigram)


def adjacent(rows: Any, *, special: dict[str, int]) -> NDArray[np.int64]:
    """[n, 2] pairs of neighbours inside rows (an Arrow list array of ids), without those that hold a special token.

    All but [UNK], which stands for a word.
    """
    ids = rows.flatten().to_numpy().astype(np.int64)
    pairs = np.stack([ids[:-1], ids[1:]], axis=1)
    specials = [token for name, token in special.items() if name != "unk"]
    return pairs[~np.isin(pairs, specials).any(axis=1)]
