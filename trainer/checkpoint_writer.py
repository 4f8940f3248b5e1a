"""The writing half of checkpoints: every rank its own part, committed by one rename, off the training thread.

Every rank writes into a temporary folder; rank 0 renames it when all parts are there. Ranks meet through
files with a deadline, so that one rank's failure ends the save for all. Cost: host memory for this rank's slices
(12 bytes a parameter over all ranks, pinned where there is a GPU), and a pause for the copy into it.
"""

from __future__ import annotations

import logging
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
    read_json,
    step_name,
    step_of,
    sync_folder,
    write_json,
    write_manifest,
)
from trainer.checkpoint_slices import part_name, write_part
from trainer.config import TrainerConfig
from trainer.engine import Engine
from trainer.engine_state import LocalSlice

logger = logging.getLogger(__name__)


class CheckpointWriter:
    """Saves the checkpoints of one run. Each rank has one; `save` and `finish` are called by all ranks.

    `save` pauses training for the copy off the device alone; a thread writes and commits.
    """

    def __init__(self, run_dir: str | Path, *, engine: Engine, config: TrainerConfig) -> None:
        self._root = checkpoints_folder(run_dir)
        self._engine = engine
        self._config = config
        self._staging = torch.empty(
            sum(values.numel() for piece in engine.local_slices() for values in piece.tensors.values()),
            dtype=torch.float32,
            pin_memory=engine.device.type == "cuda",
        )
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, step: int, *, plan_state: Mapping[str, Any]) -> None:
        """Begin the checkpoint after `step` steps; `plan_state` must be JSON.

        Waits for the one before, and raises what went wrong with it, or CheckpointError where this one
        cannot be begun.
        """
        self.finish()
        job = self._begin(step, plan_state=plan_state)
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

    def _begin(self, step: int, *, plan_state: Mapping[str, Any]) -> _Job:
        engine = self._engine
        token, trouble = 0, ""
        if engine.rank == 0:
            token = secrets.randbelow(2**62) + 1
            try:
                _temporary(self._root, step, token).mkdir(parents=True)
            except OSError as error:
                token, trouble = 0, f": {error}"
        token = engine.broadcast_int(token)
        if token == 0:
            raise CheckpointError(f"rank 0 could not create a folder in {self._root}{trouble}")
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
            ),
            slices=self._copy_slices(),
            generators=_generators(engine.device),
            keep_last=self._config.checkpoint.keep_last,
            keep_every_steps=self._config.checkpoint.keep_every_steps,
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
    run_dir: str | Path, *, step: int, engine: Engine, plan_state: Mapping[str, Any], config: TrainerConfig
) -> Path:
    """Write the checkpoint after `step` steps and return its folder when it is committed. Collective."""
    writer = CheckpointWriter(run_dir, engine=engine, config=config)
    writer.save(step, plan_state=plan_state)
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
    keep_last: int
    keep_every_steps: int | None
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
        final = self.root / step_name(self.state.step)
        if final.exists():
            _remove(final)
        self.temporary.rename(final)
        sync_folder(self.root)
        try:
            _prune(self.root, step=self.state.step, keep_last=self.keep_last, keep_every_steps=self.keep_every_steps)
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


def _prune(root: Path, *, step: int, keep_last: int, keep_every_steps: int | None) -> None:
    """Remove old checkpoints, what a dead save left, and those of a future that was given up."""
    for path in root.iterdir():
        if path.name.startswith("."):
            shutil.rmtree(path, ignore_errors=True)
    folders = list_checkpoints(root.parent)
    past = [path for path in folders if step_of(path) <= step]
    for path in past[:-keep_last]:
        if keep_every_steps is None or step_of(path) % keep_every_steps:
            _remove(path)
    for path in folders[len(past) :]:
        logger.warning("checkpoint %s is removed: the run went back behind it and is now at step %d", path.name, step)
        _remove(path)


def _remove(folder: Path) -> None:
    """Take the name away first, so that a half-removed folder never looks like a checkpoint."""
    trash = folder.with_name(f".trash-{folder.name}-{secrets.token_hex(4)}")
    folder.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def _temporary(root: Path, step: int, token: int) -> Path:
    return root / f".tmp-{step_name(step)}-{token:016x}"


def _generators(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states
