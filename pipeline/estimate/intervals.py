"""Totals from a sample, each with the band that holds the truth 19 times of 20. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""97.5% points of Student's distribution by degrees of freedom from 1; 2.1 beyond."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """An estimate: the value is within `band` of it either way (None: unknown, from a single unit)."""

    value: float
    band: float | None

    def __add__(self, other: Quantity) -> Quantity:
        bands = (self.band, other.band)
        band = None if None in bands else math.hypot(self.band or 0.0, other.band or 0.0)
        return Quantity(self.value + other.value, band)

    def scale(self, factor: float) -> Quantity:
        """So many times the value, with the same share of band."""
        return Quantity(self.value * factor, None if self.band is None else self.band * factor)

    def widen(self, share: float) -> Quantity:
        """The same with a further error of this share."""
        return Quantity(self.value, None if self.band is None else math.hypot(self.band, share * self.value))


def expand(values: Sequence[float], *, sizes: Sequence[float], total: float) -> Quantity:
    """A ratio estimate: the sum over everything of what these parts of it gave, `total` being the sum of all sizes.

    The band follows from how much the parts differ for their size (Cochran, Sampling Techniques, 6.3), and vanishes
    where the parts are everything.
    """
    size = sum(sizes)
    if not size:
        return Quantity(0.0, 0.0)
    ratio = sum(values) / size
    value = ratio * total
    missing = max(0.0, 1.0 - size / total)
    if missing < 1e-9:
        return Quantity(value, 0.0)
    freedom = len(values) - 1
    if not freedom:
        return Quantity(value, None)
    squares = sum((x - ratio * s) ** 2 for x, s in zip(values, sizes, strict=True))
    deviation = total / size * math.sqrt(missing * len(values) * squares / freedom)
    return Quantity(value, (_T_95[freedom - 1] if freedom <= len(_T_95) else 2.1) * deviation)
