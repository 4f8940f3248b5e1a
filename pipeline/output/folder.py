"""The output folder of a build: who may write there, what is left of an earlier build, and how a set becomes visible.

Everything is written under OUT/_tmp; OUT/_build.json marks the folder as ours and says what is built; the manifest
comes last. What a stopped build had finished stays under OUT/_tmp for the same build to go on with.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from pipeline.dataset import MANIFEST_NAME, TOKEN_COUNTS_NAME, TOKENIZER_FOLDER
from pipeline.errors import Keeps
from pipeline.output.identity import MARK_NAME, BuildMark
from pipeline.runtime import (
    EXCHANGE,
    PROGRESS,
    SHARDS,
    SPILLS,
    choose_kept,
    describe_error,
    leave_failure,
    list_records,
)
from pipeline.settings import ConfigError
from pipeline.storage import find_existing, sync, sync_below

_LOGGER = logging.getLogger(__name__)

_PARTIAL_MARK = MARK_NAME + ".partial"
TEMPORARY_NAME = "_tmp"
REPORT_NAME = "report.html"
SUMMARY_NAME = "report.json"
CARD_NAME = "README.md"
PUBLISHED = ("data", TOKENIZER_FOLDER, TOKEN_COUNTS_NAME, REPORT_NAME, SUMMARY_NAME, CARD_NAME)
"""What a build moves from OUT/_tmp to OUT, in this order, before it writes the manifest."""
OURS = (TEMPORARY_NAME, *PUBLISHED, f"{MANIFEST_NAME}.partial", _PARTIAL_MARK, MARK_NAME)
"""What may stand beside a mark. The mark is the last to be removed: without it the rest would look like another's."""
_PREPARED = (EXCHANGE, PROGRESS, SPILLS, SHARDS)
_WAIT_S = 30.0
_LOOK_EVERY_S = 0.1


class OutputFolder:
    """OUT, held by one build at a time.

    Entering makes and locks the folder and refuses one that holds anything but our own, or what another build had
    finished before it was stopped. Leaving with an error keeps what is finished where the same command may get further
    another time, else removes everything. `identity` is what makes two builds the same.
    """

    notes = ""
    """For BuildContext.notes: counts and failures are left in OUT/_tmp."""

    def __init__(self, root: str | Path, *, identity: Mapping[str, Any]) -> None:
        self.root = Path(root)
        self.temporary = self.root / TEMPORARY_NAME
        self.finished = False
        """True where the folder holds a finished set with the same identity."""
        self.resumes = False
        """True where finished pieces of the same build are there."""
        self._mark = BuildMark(str(root), identity=identity)
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
            self._leave(choose_kept(error))
        os.close(self._lock)
        if isinstance(error, OSError):
            raise ValueError(describe_error(error, folder=self.root)) from error

    def folder(self, name: str) -> str:
        """OUT/_tmp/`name`, made if absent."""
        path = self.temporary / name
        path.mkdir(exist_ok=True)
        return str(path)

    @property
    def staging(self) -> Path:
        """Local folder for what this process writes and `publish` makes visible: OUT/_tmp itself."""
        return self.temporary

    def share(self, name: str) -> str:
        """A file of `staging` as all workers may read it."""
        return str(self.staging / name)

    @property
    def vocabulary_hash(self) -> str | None:
        """That of the build, as far as it is known."""
        return self._mark.vocabulary_hash

    def note_vocabulary(self, vocabulary_hash: str) -> None:
        """Note which vocabulary was trained for this build."""
        self._mark.note_vocabulary(vocabulary_hash)
        self._write_mark()

    def publish(self) -> None:
        """Move what was built out of OUT/_tmp, each in one rename, once it is on the disk. The manifest is still to be
        written."""
        for name in PUBLISHED:
            sync_below(self.temporary / name)
            os.replace(self.temporary / name, self.root / name)
        sync(self.root)

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
            self._mark.check_finished()
            self.finished = True
            if MARK_NAME in names:
                with suppress(OSError):  # a set that may only be read is as good
                    self.sweep()
            return
        foreign = sorted(names.difference(OURS if MARK_NAME in names else [_PARTIAL_MARK]))
        if foreign:
            raise ValueError(describe_foreign(foreign, root=str(self.root)))
        if self.temporary.is_dir():
            self._wait_for_workers()
        self.resumes = bool(list_records(self.temporary)) and self._mark.check_unfinished()
        try:
            if self.resumes:
                self._take_back()
            else:
                self._clear()
            self._write_mark()
            self.temporary.mkdir(exist_ok=True)
            for name in _PREPARED:
                if name in (EXCHANGE, PROGRESS) and (self.temporary / name).exists():
                    shutil.rmtree(self.temporary / name)
                self.folder(name)
        except OSError as error:
            if not self.resumes:
                self._abandon()
            raise ValueError(
                f"output={self.root}: cannot be written ({error.strerror}); choose another folder"
            ) from error

    def _take_back(self) -> None:
        """Undo what a build that was killed while publishing had moved out of OUT/_tmp."""
        for name in PUBLISHED:
            path = self.root / name
            if path.exists():
                _remove(self.temporary / name)
                os.replace(path, self.temporary / name)
        _remove(self.root / f"{MANIFEST_NAME}.partial")

    def _wait_for_workers(self) -> None:
        """Wait until no worker of a killed build works here: one might still write. They look every second whether
        their build has ended or failed."""
        descriptor = os.open(self.temporary, os.O_RDONLY | os.O_DIRECTORY)
        try:
            deadline = time.monotonic() + _WAIT_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except BlockingIOError as error:
                    leave_failure(str(self.temporary / EXCHANGE), message="taken over", details="", is_users=True)
                    if time.monotonic() > deadline:
                        raise ValueError(
                            f"output={self.root}: worker processes of an earlier build still write there; end them "
                            "(ps shows pipeline.engines.beam_worker; or the engine's tasks), or choose another folder"
                        ) from error
                    time.sleep(_LOOK_EVERY_S)
                except OSError:  # a network file system without locks: said above
                    return
        finally:
            os.close(descriptor)

    def _write_mark(self) -> None:
        partial = self.root / _PARTIAL_MARK
        partial.write_text(self._mark.text, encoding="utf-8")
        sync(partial)
        os.replace(partial, self.root / MARK_NAME)

    def _leave(self, keeps: Keeps) -> None:
        """After an error: keep what is finished, or remove everything."""
        if keeps == "nothing" or not list_records(self.temporary):
            self._abandon()
            return
        warn_of_rest(str(self.temporary), keeps=keeps)
        if keeps == "unchanged_input":
            self._mark.await_input()
            with suppress(OSError):
                self._write_mark()

    def _abandon(self) -> None:
        self._clear()
        if self._made:
            with suppress(OSError):  # somebody else has put something there meanwhile
                self.root.rmdir()

    def _clear(self) -> None:
        for name in OURS:
            _remove(self.root / name)


def describe_foreign(names: Sequence[str], *, root: str) -> str:
    """The message for a folder that holds what no build of ours left."""
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"output={root}: not empty and not a build of ours (found {shown}); choose an empty or new folder"


def warn_of_rest(temporary: str, *, keeps: Keeps) -> None:
    """Say that what a failed build had finished is kept."""
    mended = " once the file is mended" if keeps == "unchanged_input" else ""
    _LOGGER.warning("%s: what is finished stays there; the same command goes on from it%s", temporary, mended)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_writable(folder: Path, *, key: str) -> None:
    """ConfigError where the folder that setting `key` names cannot be made or written in."""
    existing = find_existing(folder)
    if not existing.is_dir():
        raise ConfigError(f"{key}={folder}: {existing} is a file; give a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}={folder}: no permission to write in {existing}; give another folder")
