"""One build at a time in a folder on a store, which has no locks: a small object that its holder renews.

All times are the store's own. A holder that was killed on this machine is known at once to be gone, one elsewhere after
DEAD_S. Cost: a request every BEAT_S seconds.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pipeline.errors import PassingError
from pipeline.storage import files
from pipeline.storage.clients import AbsentError

BEAT_S = 20.0
DEAD_S = 90.0
_LOOK_EVERY_S = 2.0
_BYTES = 256
"""Size of an object, always: a reader asks for the size first, and would get a part of one renewed meanwhile."""


class StoreHold:
    """Held from `take` to `release`, or until another took it over. `folder`: URL of a folder for holders alone.

    `note_loss` is called, in a thread of its own, once the holder's object is found to be gone.
    """

    def __init__(self, folder: str, *, note_loss: Callable[[], None] = lambda: None) -> None:
        self._folder, self._note_loss = folder, note_loss
        self._url = files.join(folder, f"{uuid.uuid4().hex}.json")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="store-hold", daemon=True)

    def take(self, *, root: str) -> None:
        """Hold the folder; ValueError, naming `root`, where another process does. Waits up to DEAD_S to know that."""
        self._write()
        self._thread.start()
        try:
            now = _modified(self._url)
            for file in files.list_files(self._folder, below=False):
                other = files.join(self._folder, file.name)
                if other == self._url:
                    continue
                if self._is_alive(other, modified=file.modified, age_s=now - file.modified):
                    raise ValueError(
                        f"output={root}: another build is writing there; wait for it or choose another folder"
                    )
                files.delete(other)
        except BaseException:
            self.release()
            raise

    def is_held(self) -> bool:
        """Whether nobody took it over. StorageError where the store does not say."""
        return files.find_file(self._url) is not None

    def check(self, *, root: str) -> None:
        """PassingError, naming `root`, where another build took it over."""
        if not self.is_held():
            raise PassingError(describe_loss(root))

    def release(self) -> None:
        """Let go. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(OSError):
            files.delete(self._url)

    def _is_alive(self, url: str, *, modified: float, age_s: float) -> bool:
        """Whether its holder renews it; looks until it is renewed, gone or DEAD_S old."""
        try:
            tree = json.loads(files.read_bytes(url))
        except FileNotFoundError:
            return False
        if tree["machine"] == _machine():
            return bool(_started(tree["process"]) == tree["started"])
        deadline = time.monotonic() + DEAD_S - age_s
        while time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
            found = files.find_file(url)
            if found is None:
                return False
            if found.modified > modified:
                return True
        return False

    def _write(self) -> None:
        process = os.getpid()
        tree = {"machine": _machine(), "process": process, "started": _started(process), "time": time.time()}
        files.write_bytes(self._url, json.dumps(tree).ljust(_BYTES).encode("ascii"))

    def _renew(self) -> None:
        renewed = time.monotonic()
        while not self._stop.wait(BEAT_S):
            with suppress(OSError):  # the store may answer again before DEAD_S are over
                if not self.is_held():  # written again it would hide that another has the folder
                    self._note_loss()
                    return
                begun = time.monotonic()
                self._write()
                if time.monotonic() - renewed > DEAD_S and self._has_others():
                    files.delete(self._url)  # it came so late that it was back after another had removed it
                    self._note_loss()
                    return
                renewed = begun

    def _has_others(self) -> bool:
        held = files.list_files(self._folder, below=False)
        return any(files.join(self._folder, file.name) != self._url for file in held)


def describe_loss(root: str) -> str:
    """What the build that was taken over has to say."""
    return (
        f"output={root}: another build took it over while this one stood still or was cut off from the store; wait for "
        "the end of that, then run the same command again"
    )


def _modified(url: str) -> float:
    found = files.find_file(url)
    if found is None:
        raise AbsentError(f"{url}: was written but is not there; does the store keep what is written?")
    return found.modified


def _machine() -> str:
    """This boot of this machine, and the space in which process ids count; of its own where that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"unknown {uuid.uuid4().hex}"


def _started(process: int) -> str:
    """When a process began, in clock ticks since boot; "" where there is none, or one that has ended (a zombie)."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    state, *rest = text.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]
