"""Other processes as tests see them: they may end at any moment."""

from __future__ import annotations

import psutil


def command_of(process: psutil.Process) -> str:
    """Its command line; "" where it has just ended, or was killed and nobody has asked after it yet."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
