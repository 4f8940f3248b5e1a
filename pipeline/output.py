"""The output folder of a build: who may write there, what is left of an earlier build, and how a set becomes visible.

Everything is written under OUT/_tmp; OUT/_build.json marks the folder as ours; the manifest comes last.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from pipeline.failures import describe_error
from pipeline.manifest import MANIFEST_NAME, TOKEN_COUNTS_NAME, TOKENIZER_FOLDER, open_data_set

_LOGGER = logging.getLogger(__name__)

MARK_NAME = "_build.json"
TEMPORARY_NAME = "_tmp"
REPORT_NAME = "report.html"
SUMMARY_NAME = "report.json"
CARD_NAME = "README.md"
PUBLISHED = ("data", TOKENIZER_FOLDER, TOKEN_COUNTS_NAME, REPORT_NAME, SUMMARY_NAME, CARD_NAME)
"""What a build moves from OUT/_tmp to OUT, in this order, before it writes the manifest."""
_OURS = {*PUBLISHED, MARK_NAME, TEMPORARY_NAME, MANIFEST_NAME + ".partial", "manifest.json.partial"}


class OutputFolder:
    """OUT, held by one build at a time.

    Entering makes and locks the folder and refuses one that holds anything but our own; leaving with an error removes
    what the build wrote, so that nothing half-made stays. `identity` is what makes two builds the same.
    """

    def __init__(self, root: str | Path, *, identity: Mapping[str, Any]) -> None:
        self.root = Path(root)
        self.temporary = self.root / TEMPORARY_NAME
        self.finished = False
        """True where the folder holds a finished set with the same identity."""
        self._identity = dict(identity)
        self._lock = -1

    def __enter__(self) -> OutputFolder:
        self._made = not self.root.exists()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ValueError(
                f"output={self.root}: cannot be made or opened ({error.strerror}); choose a folder"
            ) from error
        try:
            self._claim()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not self.finished:
            self._abandon()
        os.close(self._lock)
        if isinstance(error, OSError):
            raise ValueError(describe_error(error, folder=self.root)) from error

    def folder(self, name: str) -> Path:
        """OUT/_tmp/`name`, made if absent."""
        path = self.temporary / name
        path.mkdir(exist_ok=True)
        return path

    def publish(self) -> None:
        """Move what was built out of OUT/_tmp, each in one rename. The manifest is still to be written."""
        for name in PUBLISHED:
            os.replace(self.temporary / name, self.root / name)

    def sweep(self) -> None:
        """Remove OUT/_tmp and the mark; the manifest stands now."""
        self.finished = True
        if self.temporary.exists():
            shutil.rmtree(self.temporary)
        (self.root / MARK_NAME).unlink()

    def _claim(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"output={self.root}: another build is writing there; wait for it or choose another folder"
            ) from error
        except OSError as error:  # a network file system without locks
            _LOGGER.warning("warning: %s cannot be locked (%s); see that no other build writes there", self.root, error)
        names = {path.name for path in self.root.iterdir()}
        if MANIFEST_NAME in names:
            self._check_finished()
            self.finished = True
            if MARK_NAME in names:
                with suppress(OSError):  # a set that may only be read is as good
                    self.sweep()
            return
        foreign = sorted(names - _OURS if MARK_NAME in names else names)
        if foreign:
            shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
            raise ValueError(
                f"output={self.root}: not empty and not a build of ours (found {shown}); choose an empty or new folder"
            )
        try:
            self._clear()
            with open(self.root / MARK_NAME, "w", encoding="utf-8") as stream:
                json.dump(self._identity, stream, indent=1)
            self.temporary.mkdir()
        except OSError as error:
            self._abandon()
            raise ValueError(
                f"output={self.root}: cannot be written ({error.strerror}); choose another folder"
            ) from error

    def _check_finished(self) -> None:
        manifest = open_data_set(self.root)
        run = json.loads((self.root / MANIFEST_NAME).read_text(encoding="utf-8"))["run"]
        found = {**self._identity, "config": manifest.config, "inputs": run.get("inputs")}
        if "vocabulary_hash" in found:
            found["vocabulary_hash"] = manifest.vocabulary_hash
        differences = list(describe_differences(found, self._identity))
        if differences:
            raise ValueError(
                f"output={self.root}: holds a finished data set made otherwise: {'; '.join(differences)}; "
                "choose another output, or delete the folder to build it again"
            )

    def _abandon(self) -> None:
        self._clear()
        if self._made:
            with suppress(OSError):  # somebody else has put something there meanwhile
                self.root.rmdir()

    def _clear(self) -> None:
        for name in _OURS:
            path = self.root / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def describe_differences(old: Any, new: Any, *, key: str = "") -> Iterable[str]:
    """`key: old -> new` for every leaf that differs between two trees."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted({*old, *new}):
            yield from describe_differences(old.get(name), new.get(name), key=f"{key}.{name}" if key else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from describe_differences(left, right, key=f"{key}.{index}")
    elif old != new:
        yield f"{key}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
