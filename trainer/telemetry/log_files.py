"""A run's log files on this node: in the run directory or, if that is on an object store, in a local folder.

An object store cannot append to a file. So each rank writes its logs to its node's disk, and sends them to the store
before a checkpoint is committed. The stored logs then hold all steps up to the checkpoint. They may also hold later
steps, and a resume removes these. A log that has grown is sent whole and replaces the stored log. For example,
metrics.jsonl takes 0.5 KB a step: half a gigabyte for a million steps, an eighth of a checkpoint of BERT-Large.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from pipeline import storage
from pipeline.settings import ConfigError
from pipeline.storage import held, locate, sync

LOGS = "*.jsonl"
TENSORBOARD_FOLDER, WANDB_FOLDER, MLFLOW_FOLDER = "tensorboard", "wandb", "mlflow"
MLFLOW_RUN_NAME = "mlflow_run.txt"
_OF_A_RANK = re.compile(r"rows-(\d+)\.jsonl")


class RunFiles:
    """The log files that one rank writes: rows-RANK.jsonl, and on rank 0 all other logs.

    `run` is the run directory. If it is on an object store, the files are in a local folder below `working_folder`
    (None: below the folder for temporary files). `lease_token` belongs to the job's lease (sole right to write) on the
    run directory. Without a valid lease, logs are not sent to the store.
    """

    def __init__(
        self,
        run: str | Path,
        *,
        rank: int = 0,
        world_size: int = 1,
        working_folder: str | None = None,
        lease_token: str | None = None,
    ) -> None:
        self.run = locate(run)
        self._private = Path(tempfile.gettempdir()) / f"cloze-{os.getuid()}" if working_folder is None else None
        below = self._private or Path(str(working_folder))
        self.folder = self.run if isinstance(self.run, Path) else below / _name_of(self.run)
        """The folder on this node to which logs are written: the run directory, or the local folder."""
        self._rank, self._world_size, self._lease_token = rank, world_size, lease_token
        self._sent: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    @property
    def is_local_copy(self) -> bool:
        """Whether `folder` is a local copy of the logs in a run directory on an object store."""
        return self.folder != self.run

    def fetch_logs(self, names: Iterable[str] | None = None) -> None:
        """Make the rank's local logs (or the files in `names`) equal to those on the object store.

        A local log that the store lacks is deleted. If the run directory is on a disk, nothing is done. Raises
        StorageError if the store cannot be read.
        """
        if isinstance(self.run, Path):
            return
        self._make_folder()
        stored = {file.name for file in storage.list_files(self.run, below=False)}
        local = {path.name for path in self.folder.glob(LOGS)}
        wanted = {name for name in stored | local if self._owns(name)} if names is None else set(names)
        for name in sorted(wanted):
            if name in stored:
                storage.fetch_file(storage.join(self.run, name), self.folder / name)
                self._sent[name] = _state_of(self.folder / name)
            else:
                (self.folder / name).unlink(missing_ok=True)
        if self._rank == 0 and names is None:
            self._fetch_tracker_files(stored)

    def _make_folder(self) -> None:
        """Make the local folder for the logs. If no working_folder was given, the local folder is inside cloze-UID, a
        folder for temporary files of this user. Raises ConfigError if cloze-UID belongs to another user."""
        if self._private is not None:
            self._private.mkdir(mode=0o700, exist_ok=True)
            if self._private.is_symlink() or self._private.stat().st_uid != os.getuid():
                raise ConfigError(f"{self._private}: is another user's; give working_folder, or set TMPDIR")
        self.folder.mkdir(parents=True, exist_ok=True)

    def _fetch_tracker_files(self, stored: set[str]) -> None:
        """Fetch MLflow's files from the store, because MLflow continues them. Other trackers start new files.

        `stored` holds the names of the files that the store has directly in the run directory, not in a subfolder.
        """
        shutil.rmtree(self.folder / MLFLOW_FOLDER, ignore_errors=True)
        (self.folder / MLFLOW_RUN_NAME).unlink(missing_ok=True)
        below = [f"{MLFLOW_FOLDER}/{file.name}" for file in storage.list_files(storage.join(self.run, MLFLOW_FOLDER))]
        for name in [*below, *stored.intersection({MLFLOW_RUN_NAME})]:
            storage.fetch_file(storage.join(self.run, name), self.folder / name)
            self._sent[name] = _state_of(self.folder / name)

    def make_durable(self) -> None:
        """Make the rank's logs durable before a checkpoint: sync them to disk, or send the changed ones to the store.

        Raises OSError (StorageError for a store) if that fails, and LeaseError if another job now holds the lease on a
        run directory on a store.
        """
        if isinstance(self.run, Path):
            for path in self._own_logs():
                sync(path)
                sync(path.parent)
            return
        with self._lock, held(self.run, token=self._lease_token):
            for path in self._own_logs():
                self._send_if_changed(path, partial(storage.store_file, path))
            for path in self._tracker_files():
                with suppress(FileNotFoundError):  # trackers also replace and remove their files
                    content = path.read_bytes()  # read, not mapped: truncating a mapped file kills the process
                    self._send_if_changed(path, partial(_write, content))

    def make_file_durable(self, name: str) -> str:
        """Send the file `name` to the run directory if the run directory is on an object store. Return the path or URL
        of the file in the run directory."""
        if not isinstance(self.run, Path):
            storage.store_file(self.folder / name, storage.join(self.run, name))
        return str(locate(self.run, name))

    def _send_if_changed(self, path: Path, store: Callable[[str], None]) -> None:
        name, state = path.relative_to(self.folder).as_posix(), _state_of(path)
        if self._sent.get(name) != state:
            store(storage.join(self.run, name))
            self._sent[name] = state

    def _owns(self, name: str) -> bool:
        match = _OF_A_RANK.fullmatch(name)
        if match is not None and int(match[1]) < self._world_size:
            return int(match[1]) == self._rank
        return self._rank == 0 and name.endswith(LOGS.removeprefix("*"))

    def _own_logs(self) -> Iterator[Path]:
        yield from (path for path in sorted(self.folder.glob(LOGS)) if self._owns(path.name))

    def _tracker_files(self) -> Iterator[Path]:
        if self._rank == 0:
            for name in (TENSORBOARD_FOLDER, WANDB_FOLDER, MLFLOW_FOLDER, MLFLOW_RUN_NAME):
                found = [self.folder / name, *sorted((self.folder / name).rglob("*"))]
                yield from (path for path in found if path.is_file() and not path.is_symlink())


def _write(content: bytes, url: str) -> None:
    storage.write_bytes(url, content)


def _name_of(run: str) -> str:
    """Return the name of the local folder for a run whose URL on a store is `run`."""
    return f"{storage.base_name(run)}-{hashlib.sha256(run.encode()).hexdigest()[:12]}"


def _state_of(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
