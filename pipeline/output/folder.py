"""The output folder OUT of a build: who may write there, what an earlier build left, how a data set becomes visible.

A build first writes everything to OUT/_tmp. A lease there (an exclusive claim, renewed while the build runs) keeps
other builds away. OUT/_build.json, the mark, says which build the folder belongs to. The manifest is written last. A
stopped build leaves its finished pieces (splits read, shards written), so that the same command can resume it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from pipeline import storage
from pipeline.dataset import MANIFEST_NAME, TOKEN_COUNTS_NAME, TOKENIZER_FOLDER
from pipeline.errors import Keeps
from pipeline.output.identity import MARK_NAME, BuildMark
from pipeline.runtime import (
    PROGRESS,
    RESULTS,
    SHARDS,
    SPILLS,
    choose_kept,
    describe_error,
    leave_failure,
    list_records,
)
from pipeline.settings import ConfigError
from pipeline.storage import LEASE_FOLDER, LeaseError, Location, find_existing, replaced_by, sync, sync_below

_LOGGER = logging.getLogger(__name__)

LEASE_TIMEOUT_S = 60
"""A build may take the folder over from another build if that build has not renewed its lease for this time."""
TEMPORARY_NAME = "_tmp"
REPORT_NAME = "report.html"
SUMMARY_NAME = "report.json"
CARD_NAME = "README.md"
PUBLISHED = ("data", TOKENIZER_FOLDER, TOKEN_COUNTS_NAME, REPORT_NAME, SUMMARY_NAME, CARD_NAME)
"""Names that a build moves from OUT/_tmp to OUT, in this order, before it writes the manifest."""
OURS = (TEMPORARY_NAME, *PUBLISHED, MARK_NAME)
"""Names that a build creates in OUT, besides the manifest. The mark (OUT/_build.json) is removed last, because only the
mark shows that the other files come from a build."""
_PREPARED = (RESULTS, PROGRESS, SPILLS, SHARDS)
_WAIT_S = 30.0
_LOOK_EVERY_S = 0.1


class BuildOutput(ABC):
    """The base class of the output folder OUT of a build, on a local disk or an object store. Only one build at a time
    may use OUT.

    `root` is the path or URL of OUT. `identity` is JSON data that is equal for builds of the same data set, and
    different for other builds (see BuildMark).
    """

    notes = ""
    """A local folder where workers leave counts and failures. If it is "", they use OUT/_tmp (BuildContext.notes)."""

    def __init__(self, root: Location, *, identity: Mapping[str, Any]) -> None:
        self.root = root
        self.temporary = storage.locate(root, TEMPORARY_NAME)
        self.finished = False
        """True if the folder holds a finished data set that this build would make (or has made)."""
        self.resumes = False
        """True if the folder holds splits or shards that an earlier start of this build finished. This start continues
        from there."""
        self._mark = BuildMark(str(root), identity=identity)
        self._lease = ExitStack()
        self._token = ""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other builds from taking the folder over while the `with` block runs.

        Raises LeaseError (a PassingError) if another build has already taken it over.
        """
        with storage.held(self.temporary, token=self._token, name=self._name):
            yield

    @property
    def vocabulary_hash(self) -> str | None:
        """The hash of the build's vocabulary, or None if the vocabulary is not known yet."""
        return self._mark.vocabulary_hash

    def note_vocabulary(self, vocabulary_hash: str) -> None:
        """Write to OUT/_build.json the hash of the vocabulary that was trained for this build.

        Raises LeaseError if another build took over.
        """
        self._mark.note_vocabulary(vocabulary_hash)
        with self.held():
            self._write_mark()

    @abstractmethod
    def sweep(self) -> None:
        """Remove OUT/_tmp and OUT/_build.json. Call this once the manifest is written."""

    @property
    def _name(self) -> str:
        return f"output={self.root}"

    def _take(self, *, note_loss: Callable[[], object] = lambda: None) -> None:
        """Take the lease on OUT. If the lease is lost later, `note_loss` is called. Raises LeaseError if another build
        is running there."""
        holding = storage.hold(
            self.temporary, timeout_s=LEASE_TIMEOUT_S, say=_LOGGER.warning, note_loss=note_loss, name=self._name
        )
        self._token = self._lease.enter_context(holding)

    def _find_finished(self) -> bool:
        """Whether the folder already holds the finished data set of this build: the same input, config and code made
        it.

        Raises ValueError if the folder holds a different data set, or files that no build has written.
        """
        names = storage.list_names(self.root)
        if MANIFEST_NAME in names:
            self._mark.check_finished()
            self.finished = True
            if MARK_NAME in names:
                with suppress(OSError):  # the set may be read-only
                    self.sweep()
            return True
        known = {*OURS, MANIFEST_NAME} if MARK_NAME in names else {MARK_NAME}
        foreign = sorted(name for name in names if not {name, replaced_by(name)} & known)
        if foreign == [TEMPORARY_NAME] and storage.list_names(self.temporary) <= {LEASE_FOLDER}:
            return False  # a build was killed before it wrote its mark, or has just begun
        if foreign:
            shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
            raise ValueError(
                f"{self._name}: contains files that no build has written ({shown}); choose an empty or new folder"
            )
        return False

    def _write_mark(self) -> None:
        storage.write_bytes(storage.join(self.root, MARK_NAME), self._mark.text.encode("utf-8"))

    def _clean_up(self, keeps: Keeps) -> None:
        """Clean up after an error. Remove everything if `keeps` is "nothing", or if no split or shard is finished.
        Otherwise keep the finished splits and shards for the next start of the build."""
        if keeps == "nothing" or not list_records(self.temporary):
            self._clear()  # while the lease still keeps other builds out
            return
        once = " once the file is fixed" if keeps == "unchanged_input" else ""
        _LOGGER.warning("%s: finished pieces are kept; the same command goes on from them%s", self.temporary, once)
        if keeps == "unchanged_input":
            self._mark.await_input()
            with suppress(OSError):
                self._write_mark()

    @abstractmethod
    def _clear(self) -> None:
        """Remove all files that builds wrote, and remove OUT/_build.json last. Keep the lease in OUT/_tmp."""


class OutputFolder(BuildOutput):
    """The output OUT of a build as a local folder, for a `with` statement.

    Entering the block creates the folder and takes its lease. Entering raises ValueError if the folder holds results of
    a build of a different data set, or files that no build has written. After an error in the block, finished work
    (splits read, shards written) stays in the folder if the same command may get further next time. Otherwise
    everything is removed.
    """

    root: Path
    temporary: Path

    def __init__(self, root: str | Path, *, identity: Mapping[str, Any]) -> None:
        super().__init__(Path(root), identity=identity)

    def __enter__(self) -> OutputFolder:
        self._made = not self.root.exists()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            os.listdir(self.root)
        except OSError as error:
            raise ValueError(
                f"{self._name}: cannot be created or opened ({error.strerror}); choose a folder"
            ) from error
        try:
            self._prepare()
        except BaseException:
            self._let_go()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None and not self.finished:
                with suppress(LeaseError), self.held():  # with a LeaseError, another build owns the folder
                    self._clean_up(choose_kept(error))
        finally:
            self._let_go()
        if isinstance(error, OSError):
            raise ValueError(describe_error(error, folder=self.root)) from error

    def folder(self, name: str) -> str:
        """Return the path of the folder OUT/_tmp/`name`, and create it if it is absent."""
        path = self.temporary / name
        path.mkdir(exist_ok=True)
        return str(path)

    @property
    def staging(self) -> Path:
        """The local folder for files that this process writes and later makes visible with `publish`. Here it is
        OUT/_tmp."""
        return self.temporary

    def share(self, name: str) -> str:
        """Return the path under which all workers can read the file `name`, which this process has written to the
        folder `staging`."""
        return str(self.staging / name)

    def publish(self) -> None:
        """Sync the results (all files of the data set but the manifest) to disk, and move each from OUT/_tmp to OUT in
        one rename. The manifest is written later.

        Raises LeaseError if another build took over.
        """
        for name in PUBLISHED:
            sync_below(self.temporary / name)
        with self.held():
            for name in PUBLISHED:
                os.replace(self.temporary / name, self.root / name)
            sync(self.root)

    def sweep(self) -> None:
        """Remove OUT/_tmp and OUT/_build.json. Call this once the manifest is written."""
        self.finished = True
        self._lease.close()
        shutil.rmtree(self.temporary, ignore_errors=True)  # another command may remove it at the same time
        self._remove_partial()
        (self.root / MARK_NAME).unlink(missing_ok=True)

    def _let_go(self) -> None:
        """Release the lease. Remove OUT/_tmp if it is empty, and OUT if it is empty and this build created it."""
        self._lease.close()
        for path in (self.temporary, *([self.root] if self._made else [])):
            with suppress(OSError):  # it is not empty
                path.rmdir()

    def _prepare(self) -> None:
        if self._find_finished():
            return
        try:
            self._take()
        except OSError as error:
            raise self._unwritable(error) from error
        if self._find_finished():  # another build finished before this one got the lease
            return
        self._wait_for_workers()
        self.resumes = bool(list_records(self.temporary)) and self._mark.check_unfinished()
        try:
            if self.resumes:
                self._take_back()
            else:
                self._clear()
            self._write_mark()
            for name in _PREPARED:
                if name in (RESULTS, PROGRESS) and (self.temporary / name).exists():
                    shutil.rmtree(self.temporary / name)
                self.folder(name)
        except OSError as error:
            if not self.resumes:
                self._clear()
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> ValueError:
        return ValueError(f"{self._name}: cannot be written ({error.strerror}); choose another folder")

    def _take_back(self) -> None:
        """Move the results that a killed build had already moved to OUT back to OUT/_tmp."""
        for name in PUBLISHED:
            path = self.root / name
            if path.exists():
                _remove(self.temporary / name)
                os.replace(path, self.temporary / name)
        self._remove_partial()

    def _remove_partial(self) -> None:
        """Remove half-written copies of _build.json and of the manifest, which a killed build has left in OUT."""
        for path in self.root.iterdir():
            if replaced_by(path.name) in (MARK_NAME, MANIFEST_NAME):
                path.unlink(missing_ok=True)

    def _wait_for_workers(self) -> None:
        """Wait until the workers of a killed build have ended. They end because they check every second whether their
        build still runs.

        Raises ValueError if a worker is still there after 30 s.
        """
        descriptor = os.open(self.temporary, os.O_RDONLY | os.O_DIRECTORY)
        try:
            deadline = time.monotonic() + _WAIT_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except BlockingIOError as error:
                    leave_failure(str(self.temporary / RESULTS), message="taken over", details="", is_users=True)
                    if time.monotonic() > deadline:
                        raise ValueError(
                            f"{self._name}: worker processes of an earlier build still write there; end them "
                            "(ps shows pipeline.engines.beam_worker; or the engine's tasks), or choose another folder"
                        ) from error
                    time.sleep(_LOOK_EVERY_S)
                except OSError as error:  # a network file system without locks
                    _LOGGER.warning(
                        "warning: %s cannot be locked (%s); make sure that no worker of an earlier build is running",
                        self.root,
                        error,
                    )
                    return
        finally:
            os.close(descriptor)

    def _clear(self) -> None:
        for path in self.temporary.iterdir() if self.temporary.exists() else ():
            if path.name != LEASE_FOLDER:
                _remove(path)
        self._remove_partial()
        for name in (*PUBLISHED, MARK_NAME):
            _remove(self.root / name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_writable(folder: Path, *, key: str) -> None:
    """Check that `folder`, the value of the setting `key`, can be created and written to. Raises ConfigError if not."""
    existing = find_existing(folder)
    if not existing.is_dir():
        raise ConfigError(f"{key}={folder}: {existing} is a file; give a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}={folder}: no permission to write in {existing}; give another folder")
