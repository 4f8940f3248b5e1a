"""An output folder on a store: the same build, where nothing can be renamed and every file is whole or absent.

Shards are uploaded under their final names as they are finished; what makes them a data set, the manifest, comes last.
OUT/_tmp holds what workers share (spills, records, the tokenizer) and is removed at the end. What this process writes
for itself lies in a local temporary folder until it is published.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from pipeline import storage
from pipeline.dataset import MANIFEST_NAME
from pipeline.errors import Keeps
from pipeline.output.folder import OURS, PUBLISHED, TEMPORARY_NAME, OutputFolder, describe_foreign, warn_of_rest
from pipeline.output.identity import MARK_NAME, BuildMark
from pipeline.runtime import EXCHANGE, PROGRESS, SHARDS, choose_kept, leave_failure, list_records
from pipeline.storage import StoreHold, describe_loss

HOLDERS_NAME = "holders"


def open_output_folder(root: str, *, identity: Mapping[str, Any], notes: str = "") -> OutputFolder | StoredOutput:
    """The output folder of a build, local or on a store. `notes`: as in BuildContext."""
    if storage.is_url(root):
        return StoredOutput(root, identity=identity, notes=notes)
    return OutputFolder(root, identity=identity)


class StoredOutput:
    """OUT on a store, held by one build at a time; used as OutputFolder is."""

    def __init__(self, root: str, *, identity: Mapping[str, Any], notes: str = "") -> None:
        self.root = root.rstrip("/")
        self.temporary = storage.join(self.root, TEMPORARY_NAME)
        self.finished = False
        """True where the folder holds a finished set with the same identity."""
        self.resumes = False
        """True where finished pieces of the same build are there."""
        self.notes = notes
        """For BuildContext.notes."""
        self._mark = BuildMark(self.root, identity=identity)
        self._hold = StoreHold(storage.join(self.temporary, HOLDERS_NAME), note_loss=self._stop_workers)

    def __enter__(self) -> StoredOutput:
        self.staging = Path(tempfile.mkdtemp(prefix="cloze-build-"))
        """Local folder for what this process writes and `publish` uploads."""
        try:
            self._claim()
        except BaseException:
            shutil.rmtree(self.staging)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None and not self.finished:
                with suppress(storage.StorageError):  # the store may be what failed
                    if self._hold.is_held():  # else all that is there is another's
                        self._leave(choose_kept(error))
        finally:
            self._hold.release()
            shutil.rmtree(self.staging)

    def folder(self, name: str) -> str:
        """OUT/_tmp/`name`."""
        return storage.join(self.temporary, name)

    def share(self, name: str) -> str:
        """A file of `staging` as all workers may read it: uploaded."""
        url = storage.join(self.temporary, name)
        storage.store_file(self.staging / name, url)
        return url

    @property
    def vocabulary_hash(self) -> str | None:
        """That of the build, as far as it is known."""
        return self._mark.vocabulary_hash

    def note_vocabulary(self, vocabulary_hash: str) -> None:
        """Note which vocabulary was trained for this build. PassingError where another build took over."""
        self._hold.check(root=self.root)
        self._mark.note_vocabulary(vocabulary_hash)
        self._write_mark()

    def publish(self) -> None:
        """Upload what was built beside the shards. The manifest is still to be written, at once.

        PassingError where another build took over, before or meanwhile.
        """
        self._hold.check(root=self.root)
        for name in PUBLISHED:
            if name == SHARDS:
                continue
            path = self.staging / name
            files = [file.name for file in storage.list_files(path)] if path.is_dir() else [""]
            for file in files:
                storage.store_file(path / file, storage.join(self.root, name, *([file] if file else [])))
        self._hold.check(root=self.root)

    def sweep(self) -> None:
        """Remove OUT/_tmp and the mark; the manifest stands now."""
        self.finished = True
        self._hold.release()
        storage.delete_tree(self.temporary)
        storage.delete(storage.join(self.root, MARK_NAME))

    def _claim(self) -> None:
        if self._look():
            return
        self._hold.take(root=self.root)
        try:
            if self._look():  # another build ended meanwhile
                self._hold.release()
                return
            self.resumes = bool(list_records(self.temporary)) and self._mark.check_unfinished()
            if self.resumes:
                for name in (EXCHANGE, PROGRESS):
                    storage.delete_tree(storage.join(self.temporary, name))
            else:
                self._clear()
            self._write_mark()
        except BaseException:
            self._hold.release()
            raise

    def _look(self) -> bool:
        """Whether there is a finished set; ValueError where it is another one, or what is there is not ours."""
        names = storage.list_names(self.root)
        if MANIFEST_NAME in names:
            self._mark.check_finished()
            self.finished = True
            if MARK_NAME in names:
                with suppress(storage.StorageError):  # a set that may only be read is as good
                    self.sweep()
            return True
        foreign = sorted(names.difference(OURS if MARK_NAME in names else [TEMPORARY_NAME]))
        if foreign:
            raise ValueError(describe_foreign(foreign, root=self.root))
        return False

    def _write_mark(self) -> None:
        storage.write_bytes(storage.join(self.root, MARK_NAME), self._mark.text.encode("utf-8"))

    def _leave(self, keeps: Keeps) -> None:
        """After an error: keep what is finished, or remove everything."""
        if keeps == "nothing" or not list_records(self.temporary):
            self._clear()  # nobody else may begin before this is done
            self._hold.release()
            if not storage.list_files(self.root):
                storage.delete_tree(self.root)  # some stores keep an empty object for a folder
            return
        warn_of_rest(self.temporary, keeps=keeps)
        if keeps == "unchanged_input":
            self._mark.await_input()
            self._write_mark()

    def _stop_workers(self) -> None:
        """Where they are on this machine; in OUT/_tmp it is the new build's workers that would look for it."""
        if self.notes:
            exchange = storage.join(self.notes, EXCHANGE)
            leave_failure(exchange, message=describe_loss(self.root), details="", is_users=True)

    def _clear(self) -> None:
        """Remove what is ours, the mark last; of OUT/_tmp the holders stay."""
        for name in OURS:
            if name == TEMPORARY_NAME:
                for below in sorted(storage.list_names(self.temporary) - {HOLDERS_NAME}):
                    storage.delete_tree(storage.join(self.temporary, below))
            elif name in PUBLISHED[:2]:
                storage.delete_tree(storage.join(self.root, name))
            else:
                storage.delete(storage.join(self.root, name))
