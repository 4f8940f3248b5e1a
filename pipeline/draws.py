"""Random draws that depend only on a seed and on stable data such as document ids, never on order or the clock.

There are three ways to draw. A Mersenne Twister is for loops inside a document (0.3 us a draw, 10 us to seed). A Philox
generator is for arrays. Hashes of (key, counter) are for all rows of a shard at once (8 ns a draw); such a draw does
not depend on which other draws are made.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

UInt64s: TypeAlias = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_U27, _U30, _U31, _U32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


def key_bytes(seed: int, *parts: bytes | str | int) -> bytes:
    """Return a hash of 16 bytes, from which a generator of random numbers can start. It depends on the seed and on the
    value, type and position of each of `parts`, such as the id of a document."""
    digest = hashlib.blake2b(str(seed).encode(), digest_size=16)
    for part in parts:
        kind = b"b" if isinstance(part, bytes) else b"s" if isinstance(part, str) else b"i"
        raw = part if isinstance(part, bytes) else str(part).encode()
        digest.update(b"%c%d:" % (kind, len(raw)))
        digest.update(raw)
    return digest.digest()


def key(seed: int, *parts: bytes | str | int) -> int:
    """Return the first 64 bits of key_bytes(seed, *parts) as an integer. It is a key from which random draws are made
    with `counters`."""
    return int.from_bytes(key_bytes(seed, *parts)[:8], "little")


def stream(seed: int, *parts: bytes | str | int) -> random.Random:
    """Return a Mersenne Twister that starts from the seed and `parts`, such as the id of a document. Use only its
    methods random(), randint() and getrandbits()."""
    return random.Random(int.from_bytes(key_bytes(seed, *parts), "little"))


def generator(seed: int, *parts: bytes | str | int) -> np.random.Generator:
    """Return a Philox generator that starts from the seed and `parts`, such as the id of a document."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key_bytes(seed, *parts), "little")))


def mix(values: UInt64s) -> UInt64s:
    """Return each 64-bit value scrambled by the finalizer of SplitMix64, a bijection (Steele, Lea, Flood 2014)."""
    mixed = (values ^ (values >> _U30)) * _MIX_1
    mixed ^= mixed >> _U27
    mixed *= _MIX_2
    mixed ^= mixed >> _U31
    return mixed


def counters(numbers: npt.NDArray[np.int64]) -> UInt64s:
    """A key (a uint64) gives a sequence of random draws. Draw number i, counted from 0, is mix(key + term of i). Return
    the terms (uint64[n]) of the draws whose numbers are in `numbers`.

    The draws are those of SplitMix64 started at the key. Keys must be well mixed (from row_keys, derive or mix).
    Otherwise the sequences of draws of neighbouring keys overlap.
    """
    return (numbers.astype(np.uint64) + np.uint64(1)) * _GOLDEN


def derive(keys: UInt64s, number: int) -> UInt64s:
    """Return a new key for each key in `keys`, for another sequence of random draws. The new key is well mixed, and
    depends on the old key and on `number`."""
    return mix(keys + np.uint64((number + 1) * int(_GOLDEN) % 2**64))


def row_keys(
    seed: int, *parts: bytes | str | int, ids: npt.NDArray[np.uint8], numbers: Sequence[npt.NDArray[np.integer[Any]]]
) -> UInt64s:
    """Return a key for each row, uint64[n], from which random draws for the row are made. The keys are well mixed. A
    row's key depends on the seed, on `parts`, on the row's entry in `ids` and on its entry in each array of `numbers`.

    `ids` is uint8[n, 16], such as the ids of the documents from which the rows come. Each array in `numbers` has an
    integer for each row.
    """
    words = np.ascontiguousarray(ids).view("<u8").astype(np.uint64).reshape(-1, 2)
    keys = mix(words[:, 0] ^ np.uint64(key(seed, *parts)))
    keys = mix(keys + words[:, 1] * _GOLDEN)
    for column in numbers:
        keys = mix(keys + counters(column.astype(np.int64)))
    return keys


def below(draws: UInt64s, bound: int) -> npt.NDArray[np.int64]:
    """Return an integer in [0, bound) for each of `draws`, which are random 64-bit values. `bound` is at most 2**32.

    Only the upper 32 bits of a draw are used. The probability of each integer differs from 1 / bound by less than
    2**-32. Relative to 1 / bound, the difference is less than bound / 2**32.
    """
    return (((draws >> _U32) * np.uint64(bound)) >> _U32).astype(np.int64)


def threshold(probability: float) -> np.uint64:
    """Return a bound such that a draw (a random uint64) is less than the bound with this probability."""
    return np.uint64(min(int(probability * 2.0**64), 2**64 - 1))
