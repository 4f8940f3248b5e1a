"""Random draws that depend only on a seed and on stable data such as document ids, never on order or the clock.

There are three ways to draw. A Mersenne Twister is for loops inside a document (0.3 us a draw, 10 us to seed). A Philox
generator is for arrays. Hashes of (key, counter) are for whole buckets, which are groups of documents (8 ns a draw);
such a draw does not depend on which other draws are made.
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
    """Return a hash of 16 bytes that depends on the seed and on the value, type and position of every part."""
    digest = hashlib.blake2b(str(seed).encode(), digest_size=16)
    for part in parts:
        kind = b"b" if isinstance(part, bytes) else b"s" if isinstance(part, str) else b"i"
        raw = part if isinstance(part, bytes) else str(part).encode()
        digest.update(b"%c%d:" % (kind, len(raw)))
        digest.update(raw)
    return digest.digest()


def key(seed: int, *parts: bytes | str | int) -> int:
    """Return the first 64 bits of key_bytes(seed, *parts) as an integer, to be used as a key with `counters`."""
    return int.from_bytes(key_bytes(seed, *parts)[:8], "little")


def stream(seed: int, *parts: bytes | str | int) -> random.Random:
    """Return a Mersenne Twister seeded by the seed and these parts. Use only random(), randint() and getrandbits()."""
    return random.Random(int.from_bytes(key_bytes(seed, *parts), "little"))


def generator(seed: int, *parts: bytes | str | int) -> np.random.Generator:
    """Return a Philox generator seeded by the seed and these parts."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key_bytes(seed, *parts), "little")))


def mix(values: UInt64s) -> UInt64s:
    """Return each 64-bit value scrambled by the finalizer of SplitMix64, a bijection (Steele, Lea, Flood 2014)."""
    mixed = (values ^ (values >> _U30)) * _MIX_1
    mixed ^= mixed >> _U27
    mixed *= _MIX_2
    mixed ^= mixed >> _U31
    return mixed


def counters(numbers: npt.NDArray[np.int64]) -> UInt64s:
    """Return an array with a term for each index in `numbers`. Each key (a uint64) has a sequence of draws, which are
    counted from 0. The draw at an index is mix(key + term).

    The draws are those of SplitMix64 started at the key. Keys must be well mixed (from row_keys, derive or mix).
    Otherwise the sequences of draws of neighbouring keys overlap.
    """
    return (numbers.astype(np.uint64) + np.uint64(1)) * _GOLDEN


def derive(keys: UInt64s, number: int) -> UInt64s:
    """Return a new well mixed key for each key in `keys`. The new key depends on the old key and on `number`."""
    return mix(keys + np.uint64((number + 1) * int(_GOLDEN) % 2**64))


def row_keys(
    seed: int, *parts: bytes | str | int, ids: npt.NDArray[np.uint8], numbers: Sequence[npt.NDArray[np.integer[Any]]]
) -> UInt64s:
    """Return uint64[n]: a well mixed key for each row. It depends on the seed, the parts, the row's id and the row's
    numbers.

    `ids` is uint8[n, 16]. Each array in `numbers` has an integer for each row.
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
