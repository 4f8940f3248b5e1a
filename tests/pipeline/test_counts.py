"""Counts as people say them, and no rate of nothing."""

from __future__ import annotations

import pytest

from pipeline.runtime.progress import _rate
from pipeline.units import count_of


@pytest.mark.parametrize(
    ("number", "noun", "plural", "told"),
    [
        (0, "split", "", "0 splits"),
        (1, "split", "", "1 split"),
        (12_000, "split", "", "12,000 splits"),
        (1, "entry", "entries", "1 entry"),
        (2, "entry", "entries", "2 entries"),
    ],
)
def test_one_is_no_plural(number: int, noun: str, plural: str, told: str) -> None:
    assert count_of(number, noun, plural=plural) == told


@pytest.mark.parametrize(
    ("number", "seconds", "told"),
    [(0, 5.0, ""), (12_300, 1.0, " (12.3 kB/s)"), (2e6, 1.0, " (2.0 MB/s)"), (1e6, 100.0, " (10 kB/s)")],
)
def test_a_rate_is_never_shown_as_zero(number: float, seconds: float, told: str) -> None:
    assert _rate(number, seconds) == told
