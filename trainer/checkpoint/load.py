"""Checkpoints of a run: RUN/checkpoints/step-00000100/, whole or absent, for any world size and stage.

What is resumed is the newest checkpoint whose every byte verifies: never one that is not whole, never silently
nothing. Writing is writer.py, the files are format.py and slices.py; `python -m trainer.checkpoint RUN` is
command.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.storage import Location, locate
from trainer.checkpoint.format import (
    CheckpointError,
    Checkpoints,
    CheckpointState,
    checkpoints_folder,
    find_checkpoints,
    library_versions,
    put_back,
    read_state,
    step_name,
    step_of,
    verify,
)
from trainer.checkpoint.slices import SavedTensors
from trainer.checkpoint.writer import CheckpointWriter, save
from trainer.engine import Engine, LossScale

__all__ = [
    "CheckpointError",
    "CheckpointState",
    "CheckpointWriter",
    "find_checkpoints",
    "find_together",
    "newest_verified",
    "read_state",
    "read_weights",
    "restore",
    "resume",
    "save",
    "verify_together",
]

logger = logging.getLogger(__name__)


def find_together(run_dir: str | Path) -> Checkpoints:
    """The run's checkpoints as rank 0 lists them, once one that was put aside has its name again. Collective.

    Raises CheckpointError on every rank if they cannot be listed.
    """
    found: Checkpoints | str = ""
    if dist.get_rank() == 0:
        try:
            put_back(run_dir)
            found = find_checkpoints(run_dir)
        except OSError as error:
            found = str(error)
    found = _tell_all(found)
    if isinstance(found, str):
        raise CheckpointError(f"{checkpoints_folder(run_dir)}: cannot be read: {found}")
    return found


def resume(checkpoints: Checkpoints, *, engine: Engine, through: int | None = None) -> CheckpointState | None:
    """Restore the newest checkpoint that verifies and return its state; None where the run has none.

    `through`: the newest up to that step, where there is one. Collective: each rank verifies its share of the files.
    Raises CheckpointError on every rank where there are checkpoints but none verifies, or where it does not fit the
    model.
    """
    complaints = []
    for folder in checkpoints.newest_first(through=through):
        found = verify_together(folder, engine=engine)
        if not found:
            return restore(folder, engine=engine)
        if engine.rank == 0:
            _pass_over(folder, why=found)
        complaints.append(found)
    if complaints:
        raise _none_verifies(checkpoints.run, complaints)
    return None


def restore(checkpoint: str | Path, *, engine: Engine) -> CheckpointState:
    """Put a checkpoint into the engine, whatever world size, stage and precision wrote it. Collective.

    Reads the elements that this rank holds. Random generators are set where the world size is the same.
    Raises CheckpointError where names or shapes of parameters are not the model's. Does not verify.
    """
    folder = locate(checkpoint)
    state = read_state(folder)
    with SavedTensors(folder) as saved:
        _check_model(folder, saved=saved.shapes, model=engine.parameter_shapes())
        scale = LossScale(**state.loss_scale) if state.config.get("precision") == "fp16" else None
        engine.restore(saved.read, steps_taken=state.steps_taken, loss_scale=scale)
        generators = saved.read_generators(engine.rank, world_size=engine.world_size)
    for name, generator in generators.items():
        if name == "cpu":
            torch.set_rng_state(generator)
        elif engine.device.type == name:
            torch.cuda.set_rng_state(generator, engine.device)
    if engine.rank == 0:
        _warn_of_changes(state, engine=engine)
    return state


def newest_verified(checkpoints: Checkpoints) -> Location | None:
    """Folder of the newest checkpoint of a run whose every byte verifies; None where there is none at all.

    Raises CheckpointError where there are some and none verifies: the run must not start again from zero.
    """
    complaints = []
    for folder in checkpoints.newest_first():
        try:
            verify(folder)
        except CheckpointError as error:
            _pass_over(folder, why=str(error))
            complaints.append(str(error))
        else:
            return folder
    if complaints:
        raise _none_verifies(checkpoints.run, complaints)
    return None


def verify_together(folder: Location, *, engine: Engine) -> str:
    """What is wrong with a checkpoint; empty where nothing is. CheckpointError, on all ranks, where a store fails."""
    damage = failure = ""
    try:
        verify(folder, rank=engine.rank, world_size=engine.world_size)
    except CheckpointError as error:
        damage = str(error)
    except OSError as error:  # says nothing of the checkpoint: an older one must not take its place
        failure = str(error)
    answers: list[tuple[str, str]] = [("", "")] * engine.world_size
    dist.all_gather_object(answers, (damage, failure))
    for _, failure in answers:
        if failure:
            raise CheckpointError(f"{folder}: cannot be read: {failure}")
    return next((damage for damage, _ in answers if damage), "")


def _tell_all(value: Any) -> Any:
    """Rank 0's value. Collective."""
    told = [value]
    dist.broadcast_object_list(told, src=0)
    return told[0]


def _pass_over(folder: Location, *, why: str) -> None:
    logger.warning("checkpoint %s is passed over: %s", step_name(step_of(folder)), why)


def _none_verifies(run_dir: str | Path, complaints: Sequence[str]) -> CheckpointError:
    return CheckpointError(
        f"{checkpoints_folder(run_dir)}: none of its {len(complaints)} checkpoints verifies "
        f"({'; '.join(complaints)}); bring one back, or start anew with another output"
    )


def read_weights(checkpoint: str | Path) -> dict[str, Tensor]:
    """Parameter name -> fp32 tensor of its full shape, on the CPU. Verifies first; needs no DeepSpeed."""
    folder = locate(checkpoint)
    verify(folder)
    weights = {}
    with SavedTensors(folder) as saved:
        for name, shape in saved.shapes.items():
            numel = int(torch.Size(shape).numel())
            weights[name] = saved.read(name, 0, numel, kinds=("parameter",))["parameter"].view(shape)
    return weights


def _check_model(
    folder: Location, *, saved: Mapping[str, tuple[int, ...]], model: Mapping[str, tuple[int, ...]]
) -> None:
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
