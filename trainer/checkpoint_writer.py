"""The writing half of checkpoints: every rank its own part, committed by one rename, off the training thread.

Every rank writes into a temporary folder; rank 0 renames it when all parts are there. Ranks meet through
files with a deadline, so that one rank's failure ends the save for all. Cost: host memory for this rank's slices
(12 bytes a parameter over all ranks, pinned where there is a GPU), and a pause for the copy into it.
"""

from __future__ import annotations

import logging
import math
import secrets
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint_files import (
    STATE,
    CheckpointError,
    CheckpointState,
    checkpoints_folder,
    library_versions,
    list_checkpoints,
    put_in_place,
    read_json,
    step_name,
    step_of,
    sync_folder,
    write_json,
    write_manifest,
)
from trainer.checkpoint_keep import choose_kept, held_out_losses, remove
from trainer.checkpoint_slices import KINDS, part_name, write_part
from trainer.config import CheckpointConfig, TrainerConfig
from trainer.engine import Engine
from trainer.engine_state import LocalSlice
from trainer.lease import LeaseError, held

logger = logging.getLogger(__name__)

ROOM_BYTES = 2**20
"""For state, manifest, headers and generators."""


class CheckpointWriter:
    """Saves the checkpoints of one run. Each rank has one; `save` and `finish` are called by all ranks.

    `save` pauses training for the copy off the device alone; a thread writes and commits. `lease_token`: of the lease
    that the job must have on the run directory when it commits.
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        engine: Engine,
        config: TrainerConfig,
        lease_token: str | None = None,
    ) -> None:
        self._root = checkpoints_folder(run_dir)
        self._engine = engine
        self._config = config
        self._lease_token = lease_token
        numel = sum(math.prod(shape) for shape in engine.parameter_shapes().values())
        self._bytes_needed = numel * len(KINDS) * torch.float32.itemsize + ROOM_BYTES
        if engine.rank == 0 and (free := free_bytes(self._root)) < self._bytes_needed:
            logger.warning("%s", _no_room(self._root, needed=self._bytes_needed, free=free))
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
    ) -> None:
        """Begin the checkpoint after `step` steps; `plan_state` and `guard` must be JSON.

        `data_hash`: of the data set that the step was made from.
        Waits for the one before, and raises what went wrong with it, or CheckpointError where this one
        cannot be begun.
        """
        self.finish()
        job = self._begin(step, plan_state=plan_state, guard=guard or {}, data_hash=data_hash)
        self._thread = threading.Thread(target=self._write, args=(job,), name=f"checkpoint-{step}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until the last checkpoint is committed; raises CheckpointError on every rank where it is not."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _begin(self, step: int, *, plan_state: Mapping[str, Any], guard: Mapping[str, Any], data_hash: str) -> _Job:
        engine = self._engine
        token, trouble = 0, ""
        if engine.rank == 0:
            token = secrets.randbelow(2**62) + 1
            try:
                _temporary(self._root, step, token).mkdir(parents=True)
                if (free := free_bytes(self._root)) < self._bytes_needed:
                    _temporary(self._root, step, token).rmdir()
                    token = -1 - free
            except OSError as error:
                token, trouble = 0, f": {error}"
        token = engine.broadcast_int(token)
        if token == 0:
            raise CheckpointError(f"rank 0 could not create a folder in {self._root}{trouble}")
        if token < 0:
            message = _no_room(self._root, needed=self._bytes_needed, free=-1 - token)
            raise CheckpointError(f"step {step}: {message}; the same command goes on from the last checkpoint")
        return _Job(
            root=self._root,
            temporary=_temporary(self._root, step, token),
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
                guard=dict(guard),
                data_hash=data_hash,
            ),
            slices=self._copy_slices(),
            generators=_generators(engine.device),
            keep=self._config.checkpoint,
            lease_token=self._lease_token,
            deadline=time.monotonic() + self._config.collective_timeout_s,
        )

    def _copy_slices(self) -> list[LocalSlice]:
        """The rank's slices, copied into the staging memory, which the write before has left."""
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

    def _write(self, job: _Job) -> None:
        try:
            job.write()
        except BaseException as error:
            self._error = error


def save(
    run_dir: str | Path,
    *,
    step: int,
    engine: Engine,
    plan_state: Mapping[str, Any],
    config: TrainerConfig,
    data_hash: str = "",
) -> Path:
    """Write the checkpoint after `step` steps and return its folder when it is committed. Collective."""
    writer = CheckpointWriter(run_dir, engine=engine, config=config)
    writer.save(step, plan_state=plan_state, data_hash=data_hash)
    writer.finish()
    return checkpoints_folder(run_dir) / step_name(step)


@dataclass(frozen=True, slots=True)
class _Job:
    """One rank's work for one checkpoint, with everything copied off the engine."""

    root: Path
    temporary: Path
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
                shutil.rmtree(self.temporary, ignore_errors=True)  # tells the others
            elif not self.temporary.exists():
                raise self._given_up() from error
            else:
                self._tell_rank_0(str(error))
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"rank {self.rank} could not write {self.temporary}: {error}") from error
        if self.rank != 0:
            self._await_commit()

    def _write_part(self) -> None:
        self._writing.touch()
        name = part_name(self.rank, world_size=self.state.world_size)
        entries = {name: write_part(self.temporary / name, slices=self.slices, generators=self.generators)}
        if self.rank == 0:
            entries[STATE] = write_json(self.temporary / STATE, asdict(self.state))
        write_json(self._done(self.rank), entries)
        self._writing.unlink()

    def _tell_rank_0(self, message: str) -> None:
        with suppress(OSError):
            self._writing.write_text(message)
        with suppress(OSError):  # a rename needs no space on a full disk
            self._writing.rename(self._failed(self.rank))

    def _commit(self) -> None:
        entries = self._collect()
        for rank in range(self.state.world_size):
            self._done(rank).unlink()
        write_manifest(self.temporary, step=self.state.step, files=entries)
        sync_folder(self.temporary)
        try:
            with held(self.root.parent, token=self.lease_token):
                replaced = put_in_place(self.temporary, final=self.root / step_name(self.state.step))
                sync_folder(self.root)
                if replaced is not None:
                    remove(replaced)  # the others wait for its name to go
                self._prune()
        except LeaseError as error:
            raise CheckpointError(f"the checkpoint of step {self.state.step} is not committed: {error}") from error

    def _prune(self) -> None:
        try:
            _prune(self.root, step=self.state.step, keep=self.keep)
        except OSError as error:  # the checkpoint itself stands
            logger.warning("an old checkpoint in %s could not be removed: %s", self.root, error)

    def _collect(self) -> dict[str, dict[str, Any]]:
        """Manifest entries of all ranks, when all have written."""
        waiting = set(range(self.state.world_size))
        entries: dict[str, dict[str, Any]] = {}
        while True:
            for rank in sorted(waiting):
                if self._failed(rank).exists():
                    reason = self._failed(rank).read_text() or "no space left for a message"
                    raise CheckpointError(f"rank {rank} could not write its part of {self.temporary.name}: {reason}")
                if self._done(rank).exists():
                    entries.update(read_json(self._done(rank)))
                    waiting.discard(rank)
            if not waiting:
                return entries
            self._pause(f"ranks {sorted(waiting)} have not written their parts")

    def _await_commit(self) -> None:
        while self.temporary.exists():
            self._pause("rank 0 has not committed")
        if not (self.root / step_name(self.state.step)).exists():
            raise self._given_up()

    def _given_up(self) -> CheckpointError:
        return CheckpointError(f"rank 0 gave up {self.temporary.name}; its own message says why")

    def _pause(self, what: str) -> None:
        if time.monotonic() > self.deadline:
            raise CheckpointError(f"{self.temporary}: {what} in time (collective_timeout_s); see their logs")
        time.sleep(0.02)

    @property
    def _writing(self) -> Path:
        return self.temporary / f"rank-{self.rank}.writing"

    def _done(self, rank: int) -> Path:
        return self.temporary / f"rank-{rank}.done"

    def _failed(self, rank: int) -> Path:
        return self.temporary / f"rank-{rank}.failed"


def _prune(root: Path, *, step: int, keep: CheckpointConfig) -> None:
    """Remove old checkpoints, what a dead save left, and those of a future that was given up."""
    for path in root.iterdir():
        if path.name.startswith("."):
            shutil.rmtree(path, ignore_errors=True)
    folders = list_checkpoints(root.parent)
    past = [path for path in folders if step_of(path) <= step]
    kept = choose_kept(map(step_of, past), config=keep, losses=held_out_losses(root.parent) if keep.keep_best else {})
    for path in past:
        if step_of(path) not in kept:
            remove(path)
    for path in folders[len(past) :]:
        logger.warning("checkpoint %s is removed: the run went back behind it and is now at step %d", path.name, step)
        remove(path)


def free_bytes(folder: Path) -> int:
    """Bytes that may be written where `folder` is, or will be."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return shutil.disk_usage(existing).free


def _no_room(root: Path, *, needed: int, free: int) -> str:
    return (
        f"{root}: a checkpoint needs {needed:,} bytes and {free:,} are free; free space there, lower "
        f"checkpoint.keep_last (`python -m trainer.checkpoint {root.parent} prune` removes old ones), or move the run "
        f"directory to a larger disk"
    )


def _temporary(root: Path, step: int, token: int) -> Path:
    return root / f".tmp-{step_name(step)}-{token:016x}"


def _generators(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states
