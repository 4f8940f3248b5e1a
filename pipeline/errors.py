"""Error types shared by several packages."""

from __future__ import annotations

from typing import Literal, TypeAlias

Keeps: TypeAlias = Literal["nothing", "all", "unchanged_input"]
"""What is kept of an unfinished build after an error. With unchanged_input, everything is kept now, and the next start
uses again what was built from input files that have not changed."""


class PassingError(ValueError):
    """An error that may not occur again if the same command is run again, such as a lost worker or a damaged file.

    A build that ends with this error keeps its finished splits and shards, and the next start continues from there.
    """

    keeps: Keeps = "all"
