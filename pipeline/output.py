"""The output folder of a build: who may write there, what is left of an earlier build, and how a set becomes visible.

Everything is written under OUT/_tmp; OUT/_build.json marks the folder as ours and says what is built; the manifest
comes last. What a stopped build had finished stays under OUT/_tmp for the same build to go on with.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from pipeline.failures import Keeps, choose_kept, describe_error
from pipeline.job import EXCHANGE, PROGRESS, SHARDS, SPILLS
from pipeline.ledger import list_records
from pipeline.manifest import MANIFEST_NAME, TOKEN_COUNTS_NAME, TOKENIZER_FOLDER, open_data_set

_LOGGER = logging.getLogger(__name__)

MARK_NAME = "_build.json"
_PARTIAL_MARK = MARK_NAME + ".partial"
TEMPORARY_NAME = "_tmp"
REPORT_NAME = "report.html"
SUMMARY_NAME = "report.json"
CARD_NAME = "README.md"
PUBLISHED = ("data", TOKENIZER_FOLDER, TOKEN_COUNTS_NAME, REPORT_NAME, SUMMARY_NAME, CARD_NAME)
"""What a build moves from OUT/_tmp to OUT, in this order, before it writes the manifest."""
_OURS = (TEMPORARY_NAME, *PUBLISHED, f"{MANIFEST_NAME}.partial", _PARTIAL_MARK, MARK_NAME)
"""What may stand beside a mark. The mark is the last to be removed: without it the rest would look like another's."""
_PREPARED = (EXCHANGE, PROGRESS, SPILLS, SHARDS)
_VOCABULARY_HASH, _AWAITS_INPUT, _INPUT = "vocabulary_hash", "awaits_input", ("inputs", "modified")
_WAIT_S = 30.0
_LOOK_EVERY_S = 0.1


class OutputFolder:
    """OUT, held by one build at a time.

    Entering makes and locks the folder and refuses one that holds anything but our own, or what another build had
    finished before it was stopped. Leaving with an error keeps what is finished where the same command may get further
    another time, else removes everything. `identity` is what makes two builds the same.
    """

    def __init__(self, root: str | Path, *, identity: Mapping[str, Any]) -> None:
        self.root = Path(root)
        self.temporary = self.root / TEMPORARY_NAME
        self.finished = False
        """True where the folder holds a finished set with the same identity."""
        self.resumes = False
        """True where finished pieces of the same build are there."""
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
            self._leave(choose_kept(error))
        os.close(self._lock)
        if isinstance(error, OSError):
            raise ValueError(describe_error(error, folder=self.root)) from error

    def folder(self, name: str) -> Path:
        """OUT/_tmp/`name`, made if absent."""
        path = self.temporary / name
        path.mkdir(exist_ok=True)
        return path

    @property
    def vocabulary_hash(self) -> str | None:
        """That of the build, as far as it is known."""
        found = self._identity.get(_VOCABULARY_HASH)
        return None if found is None else str(found)

    def note_vocabulary(self, vocabulary_hash: str) -> None:
        """Note which vocabulary was trained for this build."""
        self._identity[_VOCABULARY_HASH] = vocabulary_hash
        self._write_mark()

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
        foreign = sorted(names.difference(_OURS if MARK_NAME in names else [_PARTIAL_MARK]))
        if foreign:
            shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
            raise ValueError(
                f"output={self.root}: not empty and not a build of ours (found {shown}); choose an empty or new folder"
            )
        if self.temporary.is_dir():
            self._wait_for_workers()
        self.resumes = bool(list_records(self.temporary)) and self._check_unfinished()
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

    def _check_unfinished(self) -> bool:
        """Whether the mark says what is to be built; ValueError where it says something else, False where it is no
        mark of this release."""
        try:
            old = json.loads((self.root / MARK_NAME).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        if not isinstance(old, dict) or not {"config", "inputs"} <= set(old):
            return False
        trained = old.get(_VOCABULARY_HASH)
        known = {*old, *self._identity} - {_VOCABULARY_HASH, _AWAITS_INPUT}
        if old.get(_AWAITS_INPUT):
            known -= set(_INPUT)
            if any(old.get(name) != self._identity.get(name) for name in _INPUT):
                trained = None  # what the vocabulary of this build was trained on has changed
        if trained is not None and _VOCABULARY_HASH in self._identity:
            known.add(_VOCABULARY_HASH)
        differences = list(
            describe_differences(
                {name: old.get(name) for name in known}, {name: self._identity.get(name) for name in known}
            )
        )
        if differences:
            raise ValueError(
                f"output={self.root}: holds an unfinished build made otherwise: {'; '.join(differences)}; repeat what "
                "it was begun with to go on, choose another output, or delete the folder to begin anew"
            )
        if trained is not None:
            self._identity[_VOCABULARY_HASH] = trained
        return True

    def _take_back(self) -> None:
        """Undo what a build that was killed while publishing had moved out of OUT/_tmp."""
        for name in PUBLISHED:
            path = self.root / name
            if path.exists():
                _remove(self.temporary / name)
                os.replace(path, self.temporary / name)
        _remove(self.root / f"{MANIFEST_NAME}.partial")

    def _wait_for_workers(self) -> None:
        """Wait until no worker process of a killed build lives (they look every second): one might still write."""
        descriptor = os.open(self.temporary, os.O_RDONLY | os.O_DIRECTORY)
        try:
            deadline = time.monotonic() + _WAIT_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        raise ValueError(
                            f"output={self.root}: worker processes of an earlier build still write there; end them "
                            "(ps shows pipeline.beam_worker), or choose another folder"
                        ) from error
                    time.sleep(_LOOK_EVERY_S)
                except OSError:  # a network file system without locks: said above
                    return
        finally:
            os.close(descriptor)

    def _write_mark(self) -> None:
        partial = self.root / _PARTIAL_MARK
        with open(partial, "w", encoding="utf-8") as stream:
            json.dump(self._identity, stream, indent=1)
        os.replace(partial, self.root / MARK_NAME)

    def _leave(self, keeps: Keeps) -> None:
        """After an error: keep what is finished, or remove everything."""
        if keeps == "nothing" or not list_records(self.temporary):
            self._abandon()
            return
        mended = " once the file is mended" if keeps == "unchanged_input" else ""
        _LOGGER.warning("%s: what is finished stays there; the same command goes on from it%s", self.temporary, mended)
        if keeps == "unchanged_input":
            self._identity[_AWAITS_INPUT] = True
            with suppress(OSError):
                self._write_mark()

    def _abandon(self) -> None:
        self._clear()
        if self._made:
            with suppress(OSError):  # somebody else has put something there meanwhile
                self.root.rmdir()

    def _clear(self) -> None:
        for name in _OURS:
            _remove(self.root / name)


def _remove(path: Path) -> None:
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
