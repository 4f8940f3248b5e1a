"""Writes checkpoints in a thread while training continues. Every rank writes its part, then rank 0 commits all parts.

The ranks write into a draft (a checkpoint not yet valid, see trainer/checkpoint/commit.py) and signal each other by
files. They wait for each other until a deadline, so that one rank's failure ends the save on all ranks. Cost: training
pauses while each rank copies its parts of the parameters and moments into host memory. The copies take 12 bytes per
parameter over all ranks (8 if the optimizer keeps one moment). Their memory is pinned if there is a GPU.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from pipeline.errors import describe_error
from pipeline.storage import (
    AbsentError,
    DeniedError,
    LeaseError,
    Location,
    StorageError,
    free_bytes,
    held,
    locate,
    parent_of,
)
from trainer.checkpoint.commit import Draft, open_draft, remove_leftovers
from trainer.checkpoint.format import (
    STATE,
    CheckpointError,
    CheckpointState,
    checkpoints_folder,
    find_checkpoints,
    library_versions,
    step_name,
    step_of,
    write_json,
)
from trainer.checkpoint.retention import choose_kept, rank_evaluations, remove
from trainer.checkpoint.slices import KINDS, part_name, write_part
from trainer.config import CheckpointConfig, TrainerConfig
from trainer.engine import Engine, LocalSlice
from trainer.telemetry import RunFiles

T = TypeVar("T")

logger = logging.getLogger(__name__)

METADATA_BYTES = 2**20
"""Bytes that a checkpoint may need besides its parameters and moments: for state, manifest, headers and generators."""
RETRY_S = 5.0
"""Seconds before a save tries again after the store failed. By then the store's client has already tried for a
minute."""
_FIRST_FAILURE_WAIT_S = 3.0


class CheckpointWriter:
    """A rank's writer of checkpoints for one run. All ranks must call `save` and `finish`.

    `save` stops training only while it copies the state off the device. A thread then writes and commits the
    checkpoint. `lease_token` identifies the lease (exclusive right to the run directory) that the job must hold to
    commit. `files` are the run's logs, which are uploaded before each commit if the run is on a store.
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        engine: Engine,
        config: TrainerConfig,
        lease_token: str | None = None,
        files: RunFiles | None = None,
    ) -> None:
        self._run = locate(run_dir)
        self._root = checkpoints_folder(run_dir)
        self._files = files or RunFiles(run_dir, rank=engine.rank, world_size=engine.world_size)
        self._engine = engine
        self._config = config
        self._lease_token = lease_token
        numel = sum(math.prod(shape) for shape in engine.parameter_shapes().values())
        self._bytes_needed = numel * len(KINDS) * torch.float32.itemsize + METADATA_BYTES
        if engine.rank == 0 and (free := self._find_shortage()) is not None:
            logger.warning("%s", _describe_shortage(self._root, needed=self._bytes_needed, free=free))
        self._staging = torch.empty(
            sum(values.numel() for piece in engine.local_slices() for values in piece.tensors.values()),
            dtype=torch.float32,
            pin_memory=engine.device.type == "cuda",
        )
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(
        self,
        step: int,
        *,
        plan_state: Mapping[str, Any],
        guard: Mapping[str, Any] | None = None,
        data_hash: str = "",
        rows: Mapping[str, Any] | None = None,
        seconds: float = 0.0,
    ) -> None:
        """Copy the run's state after `step` steps, and start a thread that writes the checkpoint.

        The arguments become fields of CheckpointState and must be valid JSON. First waits for the previous save, and
        raises the error of that save if it failed. Raises CheckpointError on every rank if this save cannot begin.
        """
        self.finish()
        engine = self._engine
        save = _Save(
            run=self._run,
            draft=self._begin_draft(step),
            files=self._files,
            rank=engine.rank,
            state=CheckpointState(
                step=step,
                steps_taken=engine.steps_taken,
                loss_scale=asdict(engine.loss_scale),
                plan_state=dict(plan_state),
                config=self._config.model_dump(mode="json"),
                world_size=engine.world_size,
                threads=torch.get_num_threads(),
                versions=library_versions(engine.device),
                guard=dict(guard or {}),
                data_hash=data_hash,
                rows=dict(rows or {}),
                seconds=seconds,
            ),
            slices=self._copy_slices(),
            generators=_generators(engine.device),
            keep=self._config.checkpoint,
            lease_token=self._lease_token,
            deadline=time.monotonic() + self._config.collective_timeout_s,
        )
        self._thread = threading.Thread(target=self._write, args=(save,), name=f"checkpoint-{step}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until the last checkpoint is committed. Raises CheckpointError on every rank if it could not be
        committed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def send_logs(self) -> None:
        """Upload the logs at the end of a run on a store. On a disk, sync the logs.

        If the store fails, tries again. If it still fails after `collective_timeout_s` (a setting of the run, in
        seconds), raises the store's error.
        """
        deadline = time.monotonic() + self._config.collective_timeout_s
        _retry_on_outage(self._files.make_durable, what="the end of the run waits", deadline=deadline)

    def _begin_draft(self, step: int) -> Draft:
        """Create the draft, a checkpoint that is not yet valid, on rank 0. Return this rank's object for the draft.

        Collective. Raises CheckpointError on every rank if the disk has not enough room, or if the draft cannot be
        created.
        """
        token, trouble = 0, ""
        if self._engine.rank == 0:
            token = secrets.randbelow(2**62) + 1
            try:
                self._open_draft(step, token).begin()
                if (free := self._find_shortage()) is not None:
                    self._open_draft(step, token).give_up()
                    token = -1 - free
            except OSError as error:
                token, trouble = 0, f": {describe_error(error)}"
        token = self._engine.broadcast_int(token)
        if token == 0:
            raise CheckpointError(f"rank 0 could not create a folder in {self._root}{trouble}")
        if token < 0:
            message = _describe_shortage(self._root, needed=self._bytes_needed, free=-1 - token)
            raise CheckpointError(f"step {step}: {message}; the same command continues from the last checkpoint")
        return self._open_draft(step, token)

    def _open_draft(self, step: int, token: int) -> Draft:
        return open_draft(self._root, step=step, token=token, world_size=self._engine.world_size)

    def _find_shortage(self) -> int | None:
        """Return the free bytes of the disk if they are too few for a checkpoint. Otherwise, or on a store, return
        None."""
        free = free_bytes(self._root) if isinstance(self._root, Path) else self._bytes_needed
        return free if free < self._bytes_needed else None

    def _copy_slices(self) -> list[LocalSlice]:
        """Copy the rank's slices (its parts of the parameters and moments) into host memory, and return the copies.

        All saves use the same host memory, so the previous save must have finished.
        """
        copies, offset = [], 0
        for piece in self._engine.local_slices():
            tensors = {}
            for kind, values in piece.tensors.items():
                tensors[kind] = self._staging[offset : offset + values.numel()]
                tensors[kind].copy_(values, non_blocking=True)
                offset += values.numel()
            copies.append(LocalSlice(name=piece.name, start=piece.start, shape=piece.shape, tensors=tensors))
        if self._engine.device.type == "cuda":
            torch.cuda.synchronize(self._engine.device)
        return copies

    def _write(self, save: _Save) -> None:
        try:
            save.write()
        except BaseException as error:
            self._error = error


@dataclass(frozen=True, slots=True)
class _Save:
    """One rank's part in writing one checkpoint. Holds copies of the engine's state, so that training can continue."""

    run: Location
    draft: Draft
    files: RunFiles
    rank: int
    state: CheckpointState
    slices: list[LocalSlice]
    generators: dict[str, Tensor]
    keep: CheckpointConfig
    lease_token: str | None
    deadline: float

    def write(self) -> None:
        try:
            self._write_part()
            if self.rank == 0:
                self._commit()
        except (OSError, CheckpointError) as error:
            if self.rank == 0:
                self.draft.give_up()  # this also tells the other ranks
            elif self._is_given_up():
                raise self._given_up() from error
            else:
                self.draft.fail_part(self.rank, reason=str(error))
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"rank {self.rank} could not write {self.draft.files}: {error}") from error
        if self.rank != 0:
            self._await_commit()

    def _write_part(self) -> None:
        self.draft.begin_part(self.rank)
        name = part_name(self.rank, world_size=self.state.world_size)
        part = locate(self.draft.files, name)
        write = partial(write_part, part, slices=self.slices, generators=self.generators)
        entries = {name: self._retry_on_outage(write)}
        if self.rank == 0:
            state = partial(write_json, locate(self.draft.files, STATE), asdict(self.state))
            entries[STATE] = self._retry_on_outage(state)
        try:
            self._retry_on_outage(self.files.make_durable)
        except LeaseError as error:
            raise self._not_committed(error) from error
        self._retry_on_outage(partial(self.draft.end_part, self.rank, entries=entries))

    def _commit(self) -> None:
        self.draft.seal(self._collect())
        try:
            self._retry_on_outage(self._commit_under_lease)
        except LeaseError as error:
            raise self._not_committed(error) from error
        if not isinstance(self.run, Path):
            try:
                self._retry_on_outage(self._prune_under_lease)
            except LeaseError as error:
                raise CheckpointError(f"the checkpoint of step {self.state.step} is committed, but {error}") from error

    def _commit_under_lease(self) -> None:
        with held(self.run, token=self.lease_token):
            self.draft.commit()
            if isinstance(self.run, Path):
                self._prune()

    def _prune_under_lease(self) -> None:
        """Remove old checkpoints if the job still holds the run's lease (the exclusive right to the run directory).

        Raises LeaseError if another job has taken the lease during a slow commit.
        """
        with held(self.run, token=self.lease_token):
            self._prune()

    def _prune(self) -> None:
        try:
            _prune(self.run, step=self.state.step, keep=self.keep, logs=self.files.folder)
        except OSError as error:  # the checkpoint itself is committed
            logger.warning("an old checkpoint in %s cannot be removed: %s", checkpoints_folder(self.run), error)

    def _collect(self) -> dict[str, dict[str, Any]]:
        """Wait until all ranks have written their files. Return {file name: {"bytes": size, "sha256": hash}} for all
        these files."""
        waiting = set(range(self.state.world_size))
        entries: dict[str, dict[str, Any]] = {}
        while True:
            for rank, written in self._retry_on_outage(partial(self.draft.collect_finished, waiting)).items():
                entries.update(written)
                waiting.discard(rank)
            if not waiting:
                return entries
            self._pause(f"ranks {sorted(waiting)} have not written their parts")

    def _await_commit(self) -> None:
        while (committed := self._retry_on_outage(self.draft.is_committed)) is None:
            self._pause("rank 0 has not committed")
        if not committed:
            raise self._given_up()

    def _not_committed(self, error: LeaseError) -> CheckpointError:
        return CheckpointError(f"the checkpoint of step {self.state.step} is not committed: {error}")

    def _is_given_up(self) -> bool:
        with suppress(OSError):
            return self.draft.is_committed() is False
        return False

    def _given_up(self) -> CheckpointError:
        time.sleep(_FIRST_FAILURE_WAIT_S)  # the user sees only the first failure: let rank 0 raise its own first
        return CheckpointError(f"rank 0 gave up {self.draft.name}; see its own message for the reason")

    def _retry_on_outage(self, act: Callable[[], T]) -> T:
        return _retry_on_outage(act, what=f"the checkpoint of step {self.state.step} waits", deadline=self.deadline)

    def _pause(self, what: str) -> None:
        if time.monotonic() > self.deadline:
            raise CheckpointError(f"{self.draft.files}: {what} in time (collective_timeout_s); see their logs")
        time.sleep(self.draft.pause_s)


def _retry_on_outage(act: Callable[[], T], *, what: str, deadline: float) -> T:
    """Call `act` and return its result. If the store fails, log a warning that begins with `what`, and try again.

    Raises the store's error if it still fails at `deadline` (in time.monotonic() seconds). Raises the error at once if
    the store denies access or the object does not exist.
    """
    while True:
        try:
            return act()
        except (AbsentError, DeniedError):
            raise
        except StorageError as error:
            if time.monotonic() + RETRY_S > deadline:
                raise
            logger.warning("%s for the store: %s", what, error)
            time.sleep(RETRY_S)


def _prune(run: Location, *, step: int, keep: CheckpointConfig, logs: Path) -> None:
    """Remove old checkpoints and the remains of unfinished saves from a run.

    `step` is the run's current step. If the run has rolled back to `step`, its checkpoints of later steps are removed
    too. `keep` says which checkpoints stay. `logs` is the folder with the run's evaluations, which show the best
    checkpoints.
    """
    remove_leftovers(checkpoints_folder(run))
    folders = find_checkpoints(run).folders
    past = [path for path in folders if step_of(path) <= step]
    kept = choose_kept(map(step_of, past), config=keep, rankings=rank_evaluations(logs) if keep.keep_best else ())
    for path in past:
        if step_of(path) not in kept:
            remove(path)
    for path in folders[len(past) :]:
        name = step_name(step_of(path))
        logger.warning("removing checkpoint %s: the run went back behind it and is now at step %d", name, step)
        remove(path)


def _describe_shortage(root: Location, *, needed: int, free: int) -> str:
    return (
        f"{root}: a checkpoint needs {needed:,} bytes, but {free:,} are free; free space there, lower "
        f"checkpoint.keep_last (`python -m trainer.checkpoint {parent_of(root)} prune` removes old ones), or move the "
        f"run directory to a larger disk"
    )


def _generators(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states
