"""Format durations, sizes and counts for people, in the same way everywhere."""

from __future__ import annotations


def describe_seconds(seconds: float) -> str:
    """Return a duration as text with about two digits: 12 s, 3 min, 5.2 h, 4.1 d."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 36 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} d"


def describe_bytes(count: float) -> str:
    """Return a size as text with up to three digits: 123 kB, 4.5 MB, 67 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if count < 999.5 else f"1 {unit}"
        count /= 1000
    return f"{count:,.4g} TB"


def count_of(number: int, noun: str, *, plural: str = "") -> str:
    """Return a number with its noun: 1 split, 12,000 splits. Give `plural` if it is not the noun with an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"
