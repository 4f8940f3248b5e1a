"""Lets all ranks write one checkpoint together. Until the checkpoint is committed, it is called a draft.

A commit is one atomic operation. On a file system a draft is a hidden folder that one rename turns into the checkpoint.
An object store has no rename. There each attempt to save writes into its own folder, and the manifest of the checkpoint
names the folder that is valid. The manifest is written last, in one request. Only the manifest can be written twice: a
later attempt to save the same step replaces it. Ranks signal each other by small files.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from pipeline import storage
from pipeline.storage import Location, make_durable_folder, put_in_place, sync
from trainer.checkpoint.format import (
    MANIFEST,
    CheckpointError,
    draft_of,
    open_manifest,
    read_json,
    step_name,
    write_json,
    write_manifest,
)
from trainer.checkpoint.retention import remove

NO_MESSAGE = "no space left for a message"
_GIVEN_UP = "given-up"


class Draft(Protocol):
    """A checkpoint that is being written and is not yet valid. Each rank has its own object for the same draft."""

    name: str
    """The draft's name in messages."""
    pause_s: float
    """Seconds between two checks of the other ranks' progress."""

    @property
    def files(self) -> Location:
        """The folder to write the checkpoint's files into."""

    def begin(self) -> None:
        """Create the draft. For rank 0 only, before the other ranks learn of the draft."""

    def begin_part(self, rank: int) -> None:
        """Announce that `rank` starts to write its files of the checkpoint."""

    def end_part(self, rank: int, *, entries: Mapping[str, Any]) -> None:
        """Announce that `rank` has written its files.

        `entries` maps the names of these files to their manifest entries (size and hash).
        """

    def fail_part(self, rank: int, *, reason: str) -> None:
        """Announce that `rank` cannot write its files, with the reason for the user. Never raises."""

    def collect_finished(self, ranks: set[int]) -> dict[int, dict[str, Any]]:
        """Return {rank: {file name: manifest entry}} for each rank in `ranks` that has finished writing its files.

        A manifest entry is a file's size and hash. Raises CheckpointError if one of `ranks` has failed.
        """

    def seal(self, entries: Mapping[str, Any]) -> None:
        """Prepare the commit. For rank 0 only.

        `entries` maps the names of all ranks' files to their manifest entries (size and hash). On a disk, the manifest
        with these entries is written into the draft and synced. On a store, the entries are kept for `commit`.
        """

    def commit(self) -> None:
        """Turn the draft into its step's checkpoint. For rank 0 only.

        The job must hold the run's lease (the exclusive right to the run directory) during the call.
        """

    def give_up(self) -> None:
        """Abandon the draft, so that no rank waits for it. For rank 0 only. Never raises."""

    def is_committed(self) -> bool | None:
        """Return True if the draft was committed, False if it was abandoned, None if neither has happened yet."""


def open_draft(root: Location, *, step: int, token: int, world_size: int) -> Draft:
    """Return this rank's object for writing the checkpoint of `step`. Until the commit, the checkpoint is a draft.

    `root` is the folder of the run's checkpoints. `token` identifies the attempt to save and must be the same on all
    ranks.
    """
    if isinstance(root, Path):
        return _FolderDraft(root, step=step, token=token, world_size=world_size)
    return _StoreDraft(root, step=step, token=token)


def remove_leftovers(root: Location) -> None:
    """Remove what unfinished saves left in `root`, the folder of a run's checkpoints. No save may be in progress."""
    if isinstance(root, Path):
        for path in root.iterdir():
            if path.name.startswith("."):
                shutil.rmtree(path, ignore_errors=True)
        return
    found: dict[str, set[str]] = {}
    for file in storage.list_files(root):
        folder, _, rest = file.name.partition("/")
        found.setdefault(folder, set()).add(rest.partition("/")[0])
    for folder, names in found.items():
        if folder.startswith(".") or MANIFEST not in names:
            storage.delete_tree(storage.join(root, folder))
        elif len(names) > 2:
            with suppress(CheckpointError):  # a damaged checkpoint stays for inspection
                kept = storage.base_name(str(open_manifest(storage.join(root, folder))[0]))
                for name in names - {MANIFEST, kept}:
                    storage.delete_tree(storage.join(root, folder, name))


class _FolderDraft:
    pause_s = 0.02

    def __init__(self, root: Path, *, step: int, token: int, world_size: int) -> None:
        self._root, self._step, self._world_size = root, step, world_size
        self._final = root / step_name(step)
        self.name = f".tmp-{step_name(step)}-{token:016x}"
        self.files = root / self.name

    def begin(self) -> None:
        make_durable_folder(self._root)
        self.files.mkdir()

    def begin_part(self, rank: int) -> None:
        self._writing(rank).touch()

    def end_part(self, rank: int, *, entries: Mapping[str, Any]) -> None:
        write_json(self._writing(rank), entries)
        # Written before it is renamed, because rank 0 may rename the folder as soon as it sees the new name.
        self._writing(rank).rename(self._done(rank))

    def fail_part(self, rank: int, *, reason: str) -> None:
        with suppress(OSError):
            self._writing(rank).write_text(reason)
        with suppress(OSError):  # a rename needs no space on a full disk
            self._writing(rank).rename(self._failed(rank))

    def collect_finished(self, ranks: set[int]) -> dict[int, dict[str, Any]]:
        for rank in sorted(ranks):
            if self._failed(rank).exists():
                raise _failure(self.name, rank, reason=self._failed(rank).read_text())
        return {rank: read_json(self._done(rank)) for rank in sorted(ranks) if self._done(rank).exists()}

    def seal(self, entries: Mapping[str, Any]) -> None:
        for rank in range(self._world_size):
            self._done(rank).unlink()
        write_manifest(self.files, step=self._step, files=entries, draft=self.name)
        sync(self.files)

    def commit(self) -> None:
        replaced = put_in_place(self.files, final=self._final)
        if replaced is not None:
            remove(replaced)  # it may now have the draft's name, and the other ranks wait until no folder has it

    def give_up(self) -> None:
        """Abandon the draft: rename its folder, then delete the folder.

        Because of the rename, other ranks that are still writing cannot add files during the deletion.
        """
        trash = self.files.with_name(f".given-up-{self.name}")
        with suppress(OSError):
            self.files.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def is_committed(self) -> bool | None:
        """Return True if the draft was committed, False if it was abandoned, None if neither has happened yet.

        The folder of this step's checkpoint may hold an earlier checkpoint of the same step. So the draft counts as
        committed only if the manifest in that folder names this draft.
        """
        if self.files.exists():
            return None
        with suppress(CheckpointError):
            return draft_of(self._final) == self.name
        return False

    def _writing(self, rank: int) -> Path:
        return self.files / f"rank-{rank}.writing"

    def _done(self, rank: int) -> Path:
        return self.files / f"rank-{rank}.done"

    def _failed(self, rank: int) -> Path:
        return self.files / f"rank-{rank}.failed"


class _StoreDraft:
    pause_s = 0.2

    def __init__(self, root: str, *, step: int, token: int) -> None:
        self._step, self._attempt = step, f"{token:016x}"
        self._final = storage.join(root, step_name(step))
        self.name = f"{step_name(step)}/{self._attempt}"
        self.files = storage.join(self._final, self._attempt)
        self._signals = storage.join(root, f".saving-{step_name(step)}-{self._attempt}")
        self._entries: Mapping[str, Any] = {}
        self._may_be_committed = False

    def begin(self) -> None:
        """Do nothing, because on a store a folder exists as soon as it holds a file."""

    def begin_part(self, rank: int) -> None:
        """Do nothing. On a store, a rank does not announce that it starts to write."""

    def end_part(self, rank: int, *, entries: Mapping[str, Any]) -> None:
        write_json(storage.join(self._signals, f"rank-{rank}.done"), entries)

    def fail_part(self, rank: int, *, reason: str) -> None:
        with suppress(OSError):
            storage.write_bytes(storage.join(self._signals, f"rank-{rank}.failed"), reason.encode())

    def collect_finished(self, ranks: set[int]) -> dict[int, dict[str, Any]]:
        names = {file.name for file in storage.list_files(self._signals, below=False)}
        for rank in sorted(ranks):
            if f"rank-{rank}.failed" in names:
                reason = storage.read_bytes(storage.join(self._signals, f"rank-{rank}.failed")).decode()
                raise _failure(self.name, rank, reason=reason)
        done = [rank for rank in sorted(ranks) if f"rank-{rank}.done" in names]
        return {rank: read_json(storage.join(self._signals, f"rank-{rank}.done")) for rank in done}

    def seal(self, entries: Mapping[str, Any]) -> None:
        self._entries = entries

    def commit(self) -> None:
        self._may_be_committed = True  # the manifest may be written even if no answer arrives
        write_manifest(self._final, step=self._step, files=self._entries, attempt=self._attempt)
        with suppress(OSError):  # the checkpoint is committed; the next save removes these files
            storage.delete_tree(self._signals)

    def give_up(self) -> None:
        with suppress(OSError):
            if not self._may_be_committed:
                storage.delete_tree(self.files)
        with suppress(OSError):
            storage.write_bytes(storage.join(self._signals, _GIVEN_UP), b"")

    def is_committed(self) -> bool | None:
        with suppress(CheckpointError):  # there is no manifest yet
            if open_manifest(self._final)[0] == self.files:
                return True
        given_up = storage.find_file(storage.join(self._signals, _GIVEN_UP)) is not None
        return False if given_up else None


def _failure(draft: str, rank: int, *, reason: str) -> CheckpointError:
    return CheckpointError(f"rank {rank} could not write its part of {draft}: {reason or NO_MESSAGE}")
