"""Error types shared by several packages."""

from __future__ import annotations

from typing import Literal, TypeAlias

Keeps: TypeAlias = Literal["nothing", "all", "unchanged_input"]
"""What stays after an error. unchanged_input: everything built from files that have not changed since."""


class PassingError(ValueError):
    """An error that may not recur if the command is run again: a lost worker, a damaged file of the build."""

    keeps: Keeps = "all"
