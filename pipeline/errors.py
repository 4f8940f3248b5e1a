"""Errors that one room raises and others know."""

from __future__ import annotations

from typing import Literal, TypeAlias

Keeps: TypeAlias = Literal["nothing", "all", "unchanged_input"]
"""unchanged_input: what was made from files that are still the same, once the one to blame is mended."""


class PassingError(ValueError):
    """An error that the same command need not meet again: a lost worker, a file of our own that was damaged."""

    keeps: Keeps = "all"
