"""Checkpoints of a run: RUN/checkpoints/step-00000100/, whole or absent, for any world size and stage.

What is resumed is the newest checkpoint whose every byte verifies: never one that is not whole, never silently
nothing. Writing is trainer/checkpoint_writer.py, the files are trainer/checkpoint_files.py and
checkpoint_slices.py; `python -m trainer.checkpoint RUN` is trainer/checkpoint_command.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.checkpoint_files import (
    STATE,
    CheckpointError,
    CheckpointState,
    checkpoints_folder,
    library_versions,
    list_checkpoints,
    put_back,
    read_json,
    step_name,
    step_of,
    verify,
)
from trainer.checkpoint_slices import SavedTensors
from trainer.checkpoint_writer import CheckpointWriter, save
from trainer.engine import Engine, LossScale

__all__ = [
    "CheckpointError",
    "CheckpointState",
    "CheckpointWriter",
    "list_checkpoints",
    "newest_verified",
    "read_state",
    "read_weights",
    "restore",
    "resume",
    "save",
]

logger = logging.getLogger(__name__)


def resume(run_dir: str | Path, *, engine: Engine, through: int | None = None) -> CheckpointState | None:
    """Restore the newest checkpoint that verifies and return its state; None where the run has none.

    `through`: the newest up to that step, where there is one. Collective: rank 0 verifies, all ranks restore. Raises
    CheckpointError on every rank where there are checkpoints but none verifies, or where it does not fit the model.
    """
    step, trouble = -1, ""
    if engine.rank == 0:
        try:
            put_back(run_dir)
            newest = newest_verified(run_dir, through=through)
            step = -1 if newest is None else step_of(newest)
        except CheckpointError as error:
            step, trouble = -2, str(error)
    step = engine.broadcast_int(step)
    if step == -2:
        told = [trouble]
        dist.broadcast_object_list(told, src=0)  # whichever rank is heard first, the user reads the reason
        raise CheckpointError(told[0])
    if step == -1:
        return None
    return restore(checkpoints_folder(run_dir) / step_name(step), engine=engine)


def restore(checkpoint: str | Path, *, engine: Engine) -> CheckpointState:
    """Put a checkpoint into the engine, whatever world size, stage and precision wrote it. Collective.

    Reads the elements that this rank holds. Random generators are set where the world size is the same.
    Raises CheckpointError where names or shapes of parameters are not the model's. Does not verify.
    """
    folder = Path(checkpoint)
    state = read_state(folder)
    saved = SavedTensors(folder)
    _check_model(folder, saved=saved.shapes, model=engine.parameter_shapes())
    engine.restore(saved.read, steps_taken=state.steps_taken, loss_scale=LossScale(**state.loss_scale))
    for name, generator in saved.read_generators(engine.rank, world_size=engine.world_size).items():
        if name == "cpu":
            torch.set_rng_state(generator)
        elif engine.device.type == name:
            torch.cuda.set_rng_state(generator, engine.device)
    if engine.rank == 0:
        _warn_of_changes(state, engine=engine)
    return state


def newest_verified(run_dir: str | Path, *, through: int | None = None) -> Path | None:
    """Folder of the newest checkpoint of a run whose every byte verifies; None where there is none at all.

    `through`: of those up to that step, where there are any. Raises CheckpointError where there are some and none
    verifies: the run must not start again from zero.
    """
    complaints = []
    folders = list_checkpoints(run_dir)
    before = [folder for folder in folders if through is None or step_of(folder) <= through]
    for folder in reversed(before or folders):
        try:
            verify(folder)
        except CheckpointError as error:
            logger.warning("checkpoint %s is passed over: %s", folder.name, error)
            complaints.append(str(error))
        else:
            return folder
    if complaints:
        raise CheckpointError(
            f"{checkpoints_folder(run_dir)}: none of its {len(complaints)} checkpoints verifies "
            f"({'; '.join(complaints)}); bring one back, or start anew with another output"
        )
    return None


def read_state(checkpoint: str | Path) -> CheckpointState:
    """The state of a checkpoint that is not a tensor. CheckpointError where state.json holds anything else."""
    path = Path(checkpoint) / STATE
    try:
        return CheckpointState(**read_json(path))
    except TypeError as error:
        raise CheckpointError(f"{path}: does not hold the state of a checkpoint ({error})") from error


def read_weights(checkpoint: str | Path) -> dict[str, Tensor]:
    """Parameter name -> fp32 tensor of its full shape, on the CPU. Verifies first; needs no DeepSpeed."""
    folder = Path(checkpoint)
    verify(folder)
    saved = SavedTensors(folder)
    weights = {}
    for name, shape in saved.shapes.items():
        numel = int(torch.Size(shape).numel())
        weights[name] = saved.read(name, 0, numel, kinds=("parameter",))["parameter"].view(shape)
    return weights


def _check_model(folder: Path, *, saved: Mapping[str, tuple[int, ...]], model: Mapping[str, tuple[int, ...]]) -> None:
    for name in sorted(saved.keys() | model.keys()):
        there, here = saved.get(name), model.get(name)
        if there != here:
            raise CheckpointError(
                f"{folder}: parameter {name} has shape {there} there and {here} in this model; "
                f"the run was begun with another model.* or another vocabulary"
            )


def _warn_of_changes(state: CheckpointState, *, engine: Engine) -> None:
    now = {**library_versions(engine.device), "threads": str(torch.get_num_threads())}
    then = {**state.versions, "threads": str(state.threads)}
    for name in sorted(now.keys() | then.keys()):
        if now.get(name) != then.get(name):
            logger.warning(
                "%s was %s when the checkpoint was written and is %s now: results may differ in the last bits",
                name,
                then.get(name),
                now.get(name),
            )


if __name__ == "__main__":
    import sys

    from trainer.checkpoint_command import main

    sys.exit(main())
