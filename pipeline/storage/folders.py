"""Folders on a file system: made and swapped so that no moment, and no power cut, leaves less than there was.

Invariant: a name is durable once the folder that it stands in is synced; what makes a folder here syncs those above.
"""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

from pipeline.storage.durable import sync

ASIDE = ".aside-"
"""Before the name of a folder that could not swap places with the one that replaces it."""
_EXCHANGE = 2
_HERE = -100


def make_durable_folder(folder: Path) -> None:
    """Make a folder, and those above it, where they are absent; their names are then on disk."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in made:
        sync(path.parent)


def put_in_place(temporary: Path, *, final: Path) -> Path | None:
    """Rename the folder `temporary` to `final`; returns where a folder that was there is now, to be removed.

    At every moment `final` is whole, or after a kill in between, where the system knows no exchange, ASIDE + its name.
    """
    if not final.exists():
        temporary.rename(final)
        return None
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if exchange is not None and exchange(_HERE, bytes(temporary), _HERE, bytes(final), _EXCHANGE) == 0:
        return temporary
    aside = final.with_name(f"{ASIDE}{final.name}")
    shutil.rmtree(aside, ignore_errors=True)
    final.rename(aside)
    temporary.rename(final)
    return aside
