"""Error types shared by several packages, and what an error is said to be."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

Keeps: TypeAlias = Literal["nothing", "all", "unchanged_input"]
"""What is kept of an unfinished build after an error. With unchanged_input, everything is kept now, and the next start
uses again what was built from input files that have not changed."""


class PassingError(ValueError):
    """An error that may not occur again if the same command is run again, such as a lost worker or a damaged file.

    A build that ends with this error keeps its finished splits and shards, and the next start continues from there.
    """

    keeps: Keeps = "all"


def describe_error(error: BaseException) -> str:
    """Return the text of an error. If it says that no space is left for a file, although only inodes (entries for
    files) are missing, add this."""
    text = str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and isinstance(error.filename, str | os.PathLike):
        path = Path(error.filename)
        folder = next((each for each in (path, *path.parents) if each.exists()), None)
        with suppress(OSError):
            found = os.statvfs(folder) if folder is not None else None
            if found is not None and found.f_files and not found.f_favail and found.f_bavail:
                text += f"; no inode is left there: this disk holds {found.f_files:,} files; remove some"
    return text
