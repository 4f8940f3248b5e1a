"""Format durations, sizes and counts for people, in the same way everywhere."""

from __future__ import annotations


def describe_seconds(seconds: float) -> str:
    """Return a duration as text with about two digits, such as 12 s, 3 min, 5.2 h or 4.1 d."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 36 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} d"


def describe_bytes(count: float) -> str:
    """Return a number of bytes as text with up to three digits, such as 123 kB, 4.5 MB or 67 GB (powers of 1000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if count < 999.5 else f"1 {unit}"
        count /= 1000
    return f"{count:,.4g} TB"


def count_of(number: int, noun: str, *, plural: str = "") -> str:
    """Return a number with its noun, such as 1 split or 12,000 splits. `plural` is the plural of `noun`. It may be left
    out if the plural is the noun with an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"
