"""Loads checkpoints, such as RUN/checkpoints/step-00000100/, with any number of ranks and any ZeRO stage.

A run resumes from the newest checkpoint whose every byte verifies. It never loads a damaged checkpoint. If no
checkpoint verifies, the run stops instead of starting anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
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
    read_state,
    restore_moved_aside,
    step_name,
    step_of,
    verify,
)
from trainer.checkpoint.slices import SavedTensors
from trainer.engine import Engine, LossScale

logger = logging.getLogger(__name__)


def find_together(run_dir: str | Path) -> Checkpoints:
    """List a run's checkpoints on rank 0 and return the list on every rank. Collective.

    A killed save may have left a checkpoint under a temporary name. Rank 0 first renames such checkpoints back. Raises
    CheckpointError on every rank if the checkpoints cannot be listed.
    """
    found: Checkpoints | str | None = None
    if dist.get_rank() == 0:
        try:
            restore_moved_aside(run_dir)
            found = find_checkpoints(run_dir)
        except OSError as error:
            found = str(error)
    answer: list[Any] = [found]
    dist.broadcast_object_list(answer, src=0)
    if isinstance(answer[0], str):
        raise CheckpointError(f"{checkpoints_folder(run_dir)}: cannot be read: {answer[0]}")
    checkpoints: Checkpoints = answer[0]
    return checkpoints


def resume(checkpoints: Checkpoints, *, engine: Engine, through: int | None = None) -> CheckpointState | None:
    """Load the newest undamaged checkpoint into `engine` and return its state, or None if the run has no checkpoint.

    If `through` is given, checkpoints of later steps are passed over, unless the run has no others. Collective: each
    rank verifies its share of the files. Raises CheckpointError on every rank if all checkpoints are damaged, or if the
    checkpoint's parameters are not those of the engine's model.
    """
    find_damage, level = partial(verify_together, engine=engine), logging.WARNING if engine.rank == 0 else logging.DEBUG
    folder = _find_valid(checkpoints, find_damage=find_damage, through=through, level=level)
    return None if folder is None else restore(folder, engine=engine)


def restore(checkpoint: str | Path, *, engine: Engine) -> CheckpointState:
    """Load a checkpoint into the engine and return the checkpoint's state. Collective.

    The run that wrote the checkpoint may have had another world size, ZeRO stage or precision. Each rank reads only the
    elements that it holds. Random generators are restored if the world size is the same. Raises CheckpointError if
    names or shapes of the checkpoint's parameters are not those of the engine's model. The hashes of the tensor files
    are not verified.
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
    """Return the folder of the newest undamaged checkpoint, or None if the run has no checkpoint.

    Every byte is verified. If there are checkpoints but all are damaged, raises CheckpointError, so that the run does
    not start again from zero.
    """
    return _find_valid(checkpoints, find_damage=_find_damage)


def verify_together(folder: Location, *, engine: Engine) -> str:
    """Return the damage of a checkpoint as text, or "" if every byte verifies. Collective: the ranks share the files.

    Raises CheckpointError on all ranks if a store does not answer.
    """
    damage = failure = ""
    try:
        damage = _find_damage(folder, rank=engine.rank, world_size=engine.world_size)
    except OSError as error:  # no proof of damage, so no older checkpoint may be used instead
        failure = str(error)
    answers: list[tuple[str, str]] = [("", "")] * engine.world_size
    dist.all_gather_object(answers, (damage, failure))
    for _, failure in answers:
        if failure:
            raise CheckpointError(f"{folder}: cannot be read: {failure}")
    return next((damage for damage, _ in answers if damage), "")


def _find_damage(folder: Location, *, rank: int = 0, world_size: int = 1) -> str:
    try:
        verify(folder, rank=rank, world_size=world_size)
    except CheckpointError as error:
        return str(error)
    return ""


def _find_valid(
    checkpoints: Checkpoints,
    *,
    find_damage: Callable[[Location], str],
    through: int | None = None,
    level: int = logging.WARNING,
) -> Location | None:
    """Return the newest undamaged checkpoint, or None if there are no checkpoints.

    If `through` is given, checkpoints of later steps are passed over, unless the run has no others. `find_damage`
    returns a checkpoint's damage as text, or "" if there is none. Damaged checkpoints are logged at `level`, a level of
    Python's logging. Raises CheckpointError if all checkpoints that may be used are damaged.
    """
    found: list[str] = []
    for folder in checkpoints.newest_first(through=through):
        damage = find_damage(folder)
        if not damage:
            return folder
        logger.log(level, "checkpoint %s is skipped: %s", step_name(step_of(folder)), damage)
        found.append(damage)
    if found:
        raise CheckpointError(
            f"{checkpoints_folder(checkpoints.run)}: none of its {len(found)} checkpoints verifies "
            f"({'; '.join(found)}); restore one, or start anew with another output"
        )
    return None


def read_weights(checkpoint: str | Path) -> dict[str, Tensor]:
    """Verify a checkpoint and return all parameters by name, as fp32 CPU tensors of full shape. Needs no DeepSpeed.

    Raises CheckpointError if the checkpoint is damaged.
    """
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
        saved_shape, model_shape = saved.get(name), model.get(name)
        if saved_shape != model_shape:
            raise CheckpointError(
                f"{folder}: parameter {name} has shape {saved_shape} there, but {model_shape} in this model; "
                f"the run began with another model.* or another vocabulary"
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
