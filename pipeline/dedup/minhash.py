"""Finds near duplicates by MinHash and banding: a band is a part of a signature, and two documents are compared only if
they agree in a band (Broder 1997; Leskovec, Rajaraman, Ullman 2014, chapter 3).

Pure: results depend only on the set of documents, not on their order, on paths or on workers. Computing signatures
reads about 3 MB of text a second.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt

from pipeline import draws
from pipeline.config import NearDuplicatesConfig

Signatures: TypeAlias = npt.NDArray[np.uint32]

_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORDS = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_BATCH_SHINGLES = 4096
_FOUND = 0.98
"""Two documents whose similarity is exactly the threshold must share a band with at least this probability."""
_NEIGHBOURS = 16
_MATCHES = 4
_NAME_BYTES = 64
MATCH_TYPE = np.dtype(
    [("id", "V16"), ("words", "<i8"), ("kept_id", "V16"), ("similarity", "<f4"), ("kept_name", f"S{_NAME_BYTES}")]
)
"""The record of a match: a document (`id`, and `words`, its number of words), a better-ranked document that it
resembles (`kept_id`, `kept_name`), and the estimated `similarity` (the share of shingles, runs of words, that the two
have in common)."""


def shingle_hashes(sentences: Sequence[str], *, words: int) -> tuple[npt.NDArray[np.uint32], int]:
    """Return a uint32 hash of each shingle (run of `words` words), and the number of words in the text.

    A text with fewer than `words` words is a single shingle.
    """
    hashes = [crc32(word.encode()) for word in _WORDS.findall("\n".join(sentences).casefold())]
    if not hashes:
        return np.zeros(0, np.uint32), 0
    single = draws.mix(np.array(hashes, np.uint64))
    length = min(words, single.size)
    rolled = np.zeros(single.size - length + 1, np.uint64)
    for place in range(length):
        rolled = draws.mix(rolled + single[place : place + rolled.size])
    return (rolled >> np.uint64(32)).astype(np.uint32), single.size


class Signer:
    """Computes MinHash signatures of documents with the library datasketch."""

    def __init__(self, config: NearDuplicatesConfig) -> None:
        from datasketch import MinHash  # takes a second; only builds that look for near duplicates need it

        self._config = config
        self._empty = MinHash(num_perm=config.permutations, seed=config.seed, hashfunc=int)

    def sign(self, sentences: Sequence[str]) -> tuple[Signatures, int] | None:
        """Return (signature, number of words) of a document. The signature is uint32[permutations]. Return None for a
        document without words."""
        hashes, words = shingle_hashes(sentences, words=self._config.shingle_words)
        if not words:
            return None
        distinct = np.unique(hashes)
        minhash = self._empty.copy()
        for start in range(0, distinct.size, _BATCH_SHINGLES):
            minhash.update_batch(distinct[start : start + _BATCH_SHINGLES].tolist())
        return minhash.hashvalues.astype(np.uint32), words


@cache
def choose_bands(threshold: float, permutations: int) -> tuple[int, int]:
    """Return (number of bands of a signature, number of entries in each band). The second number is called rows.
    `permutations` is the number of entries of a signature.

    Two documents are compared if they agree in a whole band. With more rows, fewer documents are compared, but more
    near duplicates are missed. The result has the most rows with which two documents of similarity `threshold` are
    still compared with at least 98% probability.
    """
    for rows in range(permutations, 0, -1):
        bands = permutations // rows
        if 1 - (1 - threshold**rows) ** bands >= _FOUND:
            return bands, rows
    return permutations, 1


def band_keys(signatures: Signatures, *, bands: int, rows: int) -> draws.UInt64s:
    """Return uint64[documents, bands]: a key for each band (`rows` neighbouring entries) of each signature.

    Two documents have the same key for a band if their signatures agree in the whole band. `signatures` is
    uint32[documents, permutations].
    """
    keys = np.empty((len(signatures), bands), np.uint64)
    for band in range(bands):
        key = np.full(len(signatures), np.uint64(draws.key(0, "band", band)))
        for row in range(band * rows, (band + 1) * rows):
            key = draws.mix(key + signatures[:, row])
        keys[:, band] = key
    return keys


def compare_group(
    ids: Sequence[bytes], *, words: Sequence[int], names: Sequence[str], signatures: Signatures, threshold: float
) -> npt.NDArray[Any]:
    """Return the pairs of near duplicates among documents that share a band key (a hash of part of a signature), as
    records of MATCH_TYPE.

    `ids` (distinct), `words` (how many words a document has), `names` and `signatures` have an entry for each document.
    Documents are ranked: the one with most words is best, and among equals the one with the lowest id. Each document is
    compared with the 16 best of all documents and with the 16 ranked just before it, so the cost is linear in the
    number of documents. At most four better-ranked documents are recorded for each document.
    """
    ranked = sorted(range(len(ids)), key=lambda index: (-words[index], ids[index]))
    signed = signatures[ranked]
    found: list[tuple[bytes, int, bytes, float, bytes]] = []
    for place in range(1, len(ranked)):
        others = np.unique(np.r_[: min(place, _NEIGHBOURS), max(0, place - _NEIGHBOURS) : place])
        shares = (signed[others] == signed[place]).mean(axis=1)
        one = ranked[place]
        for match in np.flatnonzero(shares >= threshold)[:_MATCHES].tolist():
            other = ranked[others[match]]
            found.append((ids[one], words[one], ids[other], shares[match], _cut_name(names[other])))
    return np.array(found, MATCH_TYPE)


def _cut_name(name: str) -> bytes:
    raw = name.encode()
    return raw if len(raw) <= _NAME_BYTES else raw[: _NAME_BYTES - 3].decode(errors="ignore").encode() + b"..."
