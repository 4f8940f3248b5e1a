"""The output folder OUT of a build on an object store, where files cannot be renamed and are never half-written.

Finished shards are uploaded under their final names. The manifest comes last and makes them a data set. OUT/_tmp holds
the lease and the files that workers share (spills, records, the tokenizer), and is removed at the end. The main process
keeps its own files in a local temporary folder until they are published.
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
from pipeline.errors import Keeps
from pipeline.output.folder import OURS, PUBLISHED, TEMPORARY_NAME, BuildOutput, OutputFolder
from pipeline.output.identity import MARK_NAME
from pipeline.runtime import PROGRESS, RESULTS, SHARDS, choose_kept, leave_failure, list_records
from pipeline.storage import LEASE_FOLDER, LeaseError


def open_output_folder(root: str, *, identity: Mapping[str, Any], notes: str = "") -> OutputFolder | StoredOutput:
    """Return the output of a build at `root`, which is a local folder or a URL. `notes` is "" or the local folder to
    which workers write their counts and failures. It is used only if `root` is a URL: if another build takes over, a
    failure written there stops the workers."""
    if storage.is_url(root):
        return StoredOutput(root, identity=identity, notes=notes)
    return OutputFolder(root, identity=identity)


class StoredOutput(BuildOutput):
    """The output OUT of a build on an object store, with the same methods as OutputFolder."""

    root: str
    temporary: str

    def __init__(self, root: str, *, identity: Mapping[str, Any], notes: str = "") -> None:
        super().__init__(root.rstrip("/"), identity=identity)
        self.notes = notes

    def __enter__(self) -> StoredOutput:
        self.staging = Path(tempfile.mkdtemp(prefix="cloze-build-"))
        """The local folder for files that this process writes and `publish` uploads."""
        try:
            self._prepare()
        except BaseException:
            self._lease.close()
            shutil.rmtree(self.staging)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None and not self.finished:
                with suppress(storage.StorageError, LeaseError), self.held():  # the store may be what failed
                    self._clean_up(choose_kept(error))
        finally:
            self._lease.close()
            shutil.rmtree(self.staging)

    def folder(self, name: str) -> str:
        """Return the URL of OUT/_tmp/`name`."""
        return storage.join(self.temporary, name)

    def share(self, name: str) -> str:
        """Upload the file `name`, which this process has written to the folder `staging`. Return its URL, which all
        workers can read."""
        url = storage.join(self.temporary, name)
        storage.store_file(self.staging / name, url)
        return url

    def publish(self) -> None:
        """Upload all results except two: the shards, which the workers have uploaded, and the manifest, which is
        written later.

        Raises LeaseError if another build took over.
        """
        with self.held():
            for name in PUBLISHED:
                if name == SHARDS:
                    continue
                path = self.staging / name
                files = [file.name for file in storage.list_files(path)] if path.is_dir() else [""]
                for file in files:
                    storage.store_file(path / file, storage.join(self.root, name, *([file] if file else [])))

    def sweep(self) -> None:
        """Remove OUT/_tmp and OUT/_build.json. Call this once the manifest is written."""
        self.finished = True
        self._lease.close()
        storage.delete_tree(self.temporary)
        storage.delete(storage.join(self.root, MARK_NAME))

    def _prepare(self) -> None:
        if self._find_finished():
            return
        self._take(note_loss=self._stop_workers)
        if self._find_finished():  # another build finished before this one got the lease
            return
        self.resumes = bool(list_records(self.temporary)) and self._mark.check_unfinished()
        if self.resumes:
            for name in (RESULTS, PROGRESS):
                storage.delete_tree(storage.join(self.temporary, name))
        else:
            self._clear()
        self._write_mark()

    def _clean_up(self, keeps: Keeps) -> None:
        super()._clean_up(keeps)
        if storage.list_names(self.root) <= {TEMPORARY_NAME}:
            self._lease.close()
            if not storage.list_files(self.root):
                storage.delete_tree(self.root)  # some stores keep an empty object for a folder

    def _stop_workers(self) -> None:
        """Stop this machine's workers by a message in the folder `notes`, because OUT/_tmp now belongs to another
        build."""
        if self.notes:
            results_folder = storage.join(self.notes, RESULTS)
            message = f"{self._name}: another build took it over; wait for its end, then run the same command again"
            leave_failure(results_folder, message=message, details="", is_users=True)

    def _clear(self) -> None:
        for name in OURS:
            if name == TEMPORARY_NAME:
                for below in sorted(storage.list_names(self.temporary) - {LEASE_FOLDER}):
                    storage.delete_tree(storage.join(self.temporary, below))
            elif name in PUBLISHED[:2]:
                storage.delete_tree(storage.join(self.root, name))
            else:
                storage.delete(storage.join(self.root, name))
