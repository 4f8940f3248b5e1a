"""Error types shared by several packages."""

from __future__ import annotations

from typing import Literal, TypeAlias

Keeps: TypeAlias = Literal["nothing", "all", "unchanged_input"]
"""What stays of an unfinished build after an error. unchanged_input keeps what was built from files that have not
changed since."""


class PassingError(ValueError):
    """An error that may not recur if the command is run again, such as a lost worker or a damaged file of the build."""

    keeps: Keeps = "all"
