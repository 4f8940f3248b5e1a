"""Branches: a run that starts from a checkpoint of another run, in an output of its own (`resume_from`).

Invariant: the other run is only read. What a branch starts with is its own first checkpoint before its first step; from
then on it is a run like any other, and the other run may go.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.dataset import DataSetError, Manifest, read_manifest
from pipeline.settings import ConfigError
from pipeline.storage import Location, locate
from trainer.checkpoint import (
    STATE,
    CheckpointError,
    Checkpoints,
    CheckpointState,
    CheckpointWriter,
    find_checkpoints,
    is_checkpoint,
    newest_verified,
    read_state,
    restore,
    step_of,
    verify,
    verify_together,
)
from trainer.config import CONFIG_NAME, TrainerConfig, validate_saved
from trainer.data import OpenPhase, Phase, PlanState, find_start, resolve_phases
from trainer.engine import Engine

_SAME_MODEL = ("size", "max_positions", "activation", "norm")
"""Settings of the model that its weights depend on."""
_GUARD_GOES_ON = ("skips", "losses", "phase")
"""Of the guard's state, what is about the data and the curve."""


@dataclass(frozen=True, slots=True)
class BranchStart:
    """Where a branch starts."""

    state: CheckpointState
    """Of the branch's own first checkpoint."""
    same_data: bool
    """The data go on where the other run had left them; otherwise they begin anew."""

    def describe(self, source: str) -> str:
        """A line for people."""
        data = "the data go on from there" if self.same_data else "the data begin anew (other data or batch)"
        return f"branch of {source}: weights, moments and step {self.state.step:,} are taken over, {data}"


def settle_source(config: TrainerConfig, *, saved: TrainerConfig | None) -> TrainerConfig:
    """Replace `resume_from` by the checkpoint that it means, and verify that one.

    A run directory means its newest checkpoint that verifies. If `saved`, the run's own config, names the checkpoint
    already, that one stays. ConfigError if there is none, or if it does not verify.
    """
    given = config.resume_from
    if given is None:
        return config
    if saved is not None:
        settled = saved.resume_from
        known = () if settled is None else (settled, storage.parent_of(storage.parent_of(settled)))
        return config.model_copy(update={"resume_from": settled}) if given.rstrip("/") in known else config
    source: Location | None = locate(given)
    assert source is not None
    try:
        if is_checkpoint(source):
            verify(source)
        else:
            source = newest_verified(find_checkpoints(source))
    except CheckpointError as error:
        raise ConfigError(f"resume_from={given}: {error}; give another checkpoint") from error
    if source is None:
        raise ConfigError(f"resume_from={given}: holds no checkpoint; give a checkpoint's folder or a run directory")
    return config.model_copy(update={"resume_from": str(source)})


def is_branch_to_begin(config: TrainerConfig, *, checkpoints: Checkpoints) -> bool:
    """Whether the run, which has these checkpoints, still has to start from another run's."""
    return config.resume_from is not None and not checkpoints


def source_config(config: TrainerConfig) -> TrainerConfig:
    """Settings of the run whose checkpoint `resume_from` is."""
    source = locate(_source_of(config))
    return validate_saved(read_state(source).config, origin=str(locate(source, STATE)))


def check_branch(config: TrainerConfig, *, phases: Sequence[OpenPhase]) -> BranchStart:
    """Refuse a checkpoint that the settings do not go with; reads its state alone. ConfigError names both sides."""
    source = locate(_source_of(config))
    state = read_state(source)
    before = source_config(config)
    for key in _SAME_MODEL:
        there, here = getattr(before.model, key), getattr(config.model, key)
        if there != here:
            raise ConfigError(
                f"resume_from={source}: was trained with model.{key}={there}, this run has model.{key}={here}; set "
                f"model.{key}={there}"
            )
    if state.step >= config.max_steps:
        raise ConfigError(
            f"resume_from={source}: {state.step:,} steps are done, max_steps={config.max_steps:,} counts them too; "
            f"raise max_steps, or give an earlier checkpoint"
        )
    start = find_branch_start(state, phases=phases)
    _check_vocabulary(source, state=state, before=before, phases=phases)
    find_start(phases, PlanState.from_tree(start.state.plan_state))
    return start


def find_branch_start(state: CheckpointState, *, phases: Sequence[OpenPhase]) -> BranchStart:
    """What a branch from a checkpoint of `state` starts with.

    The step count goes on. So does the place in the data if the plan is the same, with the windows that the guard
    passes over and the losses it compares with; the guard's other counts begin at zero.
    """
    there = PlanState.from_tree(state.plan_state)
    for each in phases:
        first, last = each.phase.first_step, each.phase.last_step
        if (each.plan.hash, first) == (there.plan_hash, there.step - there.phase_step) and there.step <= last:
            place = replace(there, phase=each.phase.index)
            guard = {key: value for key, value in state.guard.items() if key in _GUARD_GOES_ON}
            return BranchStart(replace(state, plan_state=place.to_tree(), guard=guard), same_data=True)
    here = next(each for each in phases if state.step < each.phase.last_step)
    place = here.plan.start(phase=here.phase.index, step=state.step)
    place = replace(place, phase_step=state.step - here.phase.first_step)
    anew = replace(state, plan_state=place.to_tree(), guard={}, data_hash=here.manifest.hash)
    return BranchStart(anew, same_data=False)


def read_trained(
    config: TrainerConfig, *, phases: Sequence[OpenPhase]
) -> tuple[list[tuple[Phase, Manifest]], list[str]]:
    """What the checkpoint `resume_from` was trained on: the phases up to its step, with their data sets.

    Those of the run that its run is a branch of come first. And, in words, what cannot be read any more. A set that is
    one of `phases`, the branch's, is read where that phase has it.
    """
    found: list[tuple[Phase, Manifest]] = []
    lost: list[str] = []
    given = config.resume_from
    while given is not None:
        source = locate(given)
        try:
            state = read_state(source)
        except CheckpointError as error:
            return found, [*lost, str(error)]
        before = validate_saved(state.config, origin=str(locate(source, STATE)))
        given = before.resume_from
        begun = 0 if given is None else step_of(locate(given))
        current = PlanState.from_tree(state.plan_state).phase
        trained = []
        for phase in resolve_phases(before):
            if max(phase.first_step, begun) >= min(phase.last_step, state.step):
                continue
            try:
                data_hash = state.data_hash if phase.index == current else ""
                trained.append(_open_trained(phase, data_hash=data_hash, phases=phases))
            except DataSetError as error:
                lost.append(str(error))
        found = [*trained, *found]
    return found, lost


def _derive_rows(config: TrainerConfig, *, phases: Sequence[OpenPhase]) -> dict[str, Any]:
    """CheckpointState.rows of an older source, which does not say them: of its data sets.

    Where one of them is gone, or the weights began as others, all that they may have seen.
    """
    trained, lost = read_trained(config, phases=phases)
    vocabulary_hash = phases[0].manifest.vocabulary_hash
    if lost or not trained or source_config(config).model.initialize_from is not None:
        longest, next_sentence = config.model.max_positions, True
    else:
        longest = max(manifest.max_seq_length for _, manifest in trained)
        next_sentence = any(manifest.next_sentence != "none" for _, manifest in trained)
    return {"longest": longest, "next_sentence": next_sentence, "vocabulary_hash": vocabulary_hash}


def _open_trained(phase: Phase, *, data_hash: str, phases: Sequence[OpenPhase]) -> tuple[Phase, Manifest]:
    """A source's phase and its data set, which has this hash unless it is empty. DataSetError where it has not."""
    for each in phases:
        if each.manifest.hash == data_hash:
            data = each.phase.config.data
            return replace(phase, config=phase.config.model_copy(update={"data": data})), each.manifest
    known = {each.phase.config.data: each.manifest for each in phases}
    manifest = known.get(phase.config.data) or read_manifest(phase.config.data)
    if data_hash and manifest.hash != data_hash:
        raise DataSetError(f"{phase.config.data}: is data set {manifest.hash[:12]}, no longer {data_hash[:12]}")
    return phase, manifest


def begin_branch(
    config: TrainerConfig, *, phases: Sequence[OpenPhase], engine: Engine, checkpoints: CheckpointWriter
) -> CheckpointState:
    """Put the other run's checkpoint into the engine and commit it as this run's first. Collective.

    CheckpointError, on all ranks, where it is not whole or does not fit the model.
    """
    source = locate(_source_of(config))
    trouble = verify_together(source, engine=engine)
    if trouble:
        raise CheckpointError(f"resume_from={source}: {trouble}; give another checkpoint")
    state = find_branch_start(restore(source, engine=engine), phases=phases).state
    if not state.rows:
        state = replace(state, rows=_derive_rows(config, phases=phases))
    checkpoints.save(
        state.step, plan_state=state.plan_state, guard=state.guard, data_hash=state.data_hash, rows=state.rows
    )
    checkpoints.finish()
    return state


def steps_done(config: TrainerConfig, *, checkpoints: Checkpoints) -> int:
    """Steps behind the run: of its newest checkpoint, or of the one that it will start from; 0 if there is none."""
    if checkpoints:
        return checkpoints.newest_step
    return 0 if config.resume_from is None else step_of(locate(config.resume_from))


def _source_of(config: TrainerConfig) -> str:
    assert config.resume_from is not None
    return config.resume_from


def _check_vocabulary(
    source: Location, *, state: CheckpointState, before: TrainerConfig, phases: Sequence[OpenPhase]
) -> None:
    """The same id must be the same token. Older checkpoints do not say: their data set does."""
    manifest = phases[0].manifest
    there: dict[str, Any] = state.rows
    if not there and state.data_hash not in [each.manifest.hash for each in phases]:
        data = resolve_phases(before)[PlanState.from_tree(state.plan_state).phase].config.data
        try:
            there = {"vocabulary_hash": read_manifest(data).vocabulary_hash}
        except DataSetError as error:
            raise ConfigError(
                f"resume_from={source}: was trained on another data set, whose vocabulary cannot be compared: {error}; "
                f"bring that set back, or begin from an export with model.initialize_from"
            ) from error
    found = there.get("vocabulary_hash", manifest.vocabulary_hash)
    if found != manifest.vocabulary_hash:
        raise ConfigError(
            f"resume_from={source}: was trained with vocabulary {found[:12]}, data={phases[0].phase.config.data} has "
            f"{manifest.vocabulary_hash[:12]}: the same id would be another token; build the data set with the run's "
            f"vocabulary (vocabulary.path of the pipeline)"
        )


def branch_command(config: TrainerConfig, *, before: int) -> str:
    """The command that goes on from the newest checkpoint before step `before`, in a new output at half the rate."""
    checkpoints = [folder for folder in find_checkpoints(config.output).folders if step_of(folder) < before]
    step = step_of(checkpoints[-1]) if checkpoints else 0
    run, key, rate = locate(config.output), "optimizer.learning_rate", config.optimizer.learning_rate
    if config.schedule.span == "phase":
        phase = sum(end < before for end in list(accumulate(config.phase_steps))[:-1])
        own = config.phases[phase].learning_rate if config.phases else None
        key, rate = (key, rate) if own is None else (f"phases.{phase}.learning_rate", own)
    settings = [
        *([f"resume_from={checkpoints[-1]}"] if checkpoints else []),
        *(["model.initialize_from=null"] if checkpoints and config.model.initialize_from is not None else []),
        f"output={run}-from-{step}",
        f"{key}={rate / 2:g}",
    ]
    file = str(locate(run, CONFIG_NAME)) if isinstance(run, Path) else "YOUR_CONFIG"
    return shlex.join(["python", "trainer/run.py", "--config", file, *settings])
