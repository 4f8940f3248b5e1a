"""Durations and sizes for people."""

from __future__ import annotations

import pytest

from pipeline.units import describe_bytes, describe_seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (89, "89 s"), (90, "2 min"), (5400, "1.5 h"), (200_000, "2.3 d")]
)
def test_times_have_the_unit_that_suits_them(seconds: float, text: str) -> None:
    assert describe_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1234, "1.23 kB"), (390e9, "390 GB"), (4.5e15, "4,500 TB")]
)
def test_bytes_have_the_unit_that_suits_them(count: float, text: str) -> None:
    assert describe_bytes(count) == text
