"""Branches: runs with a new output that start from another run's checkpoint (the setting `resume_from`).

The other run, called the source, is only read. Before its first step, a branch commits its starting state as its own
first checkpoint. From then on the branch does not need the source, which may be deleted.
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
from trainer.config import CONFIG_NAME, SHAPE_SETTINGS, ModelConfig, TrainerConfig, validate_saved
from trainer.data import OpenPhase, Phase, PlanState, find_start, resolve_phases
from trainer.engine import Engine

_SAME_MOMENTS = ("adamw", "lamb", "radam")
"""Optimizers that keep the same moments, so that a branch may change from one to another."""
_GUARD_KEPT = ("skips", "losses", "phase")
"""Entries of the divergence guard's state that a branch keeps if its data continue, because they describe the data and
the loss curve."""


@dataclass(frozen=True, slots=True)
class BranchStart:
    """The starting state of a branch (a run that starts from another run's checkpoint)."""

    state: CheckpointState
    """The state that the branch commits as its own first checkpoint."""
    same_data: bool
    """Whether the branch continues in the data where the checkpoint stopped. If false, the data start over."""

    def describe(self, source: str) -> str:
        """Return a line that tells the user what the branch takes over from its source, the checkpoint `source`."""
        data = "the data continue from there" if self.same_data else "the data start over (other data or batch)"
        return f"branch of {source}: takes over weights, moments and step {self.state.step:,}; {data}"


def resolve_source(config: TrainerConfig, *, saved: TrainerConfig | None) -> TrainerConfig:
    """Return the config with `resume_from` set to the folder of one verified checkpoint.

    If `resume_from` names a run directory, the newest checkpoint there that verifies is used. Raises ConfigError if
    there is no checkpoint or it does not verify.

    `saved` is the config that this run stored when it began (None: the run has not begun). If the run has begun, and
    `resume_from` names the checkpoint in `saved` or the run directory with this checkpoint, this checkpoint is used
    without verifying it again. If `resume_from` names anything else, the config is returned unchanged.
    """
    given = config.resume_from
    if given is None:
        return config
    if saved is not None:
        fixed = saved.resume_from
        known = () if fixed is None else (fixed, storage.parent_of(storage.parent_of(fixed)))
        return config.model_copy(update={"resume_from": fixed}) if given.rstrip("/") in known else config
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
    """Return whether the run starts from another run's checkpoint and has no checkpoint of its own yet."""
    return config.resume_from is not None and not checkpoints


def source_config(config: TrainerConfig) -> TrainerConfig:
    """Return the config of the run that wrote the checkpoint `config.resume_from`, as the checkpoint stores it."""
    source = locate(str(config.resume_from))
    return validate_saved(read_state(source).config, origin=str(locate(source, STATE)))


def check_branch(config: TrainerConfig, *, phases: Sequence[OpenPhase]) -> BranchStart:
    """Check that the settings fit the checkpoint `resume_from`. Return the state with which the branch starts.

    Reads only the checkpoint's state, not its weights. Raises ConfigError if the settings do not fit.
    """
    source = locate(str(config.resume_from))
    state = read_state(source)
    before = source_config(config)
    wanted, own = _facts_of_weights(before.model), _facts_of_weights(config.model)
    same_shape = before.model.shape == config.model.shape
    for key, source_value in wanted.items():
        own_value = own[key]
        if source_value != own_value and not (key == "size" and same_shape):
            raise ConfigError(
                f"resume_from={source}: was trained with model.{key}={source_value}, but this run has "
                f"model.{key}={own_value}; set model.{key}={source_value}"
            )
    if config.is_done(step=0, seconds=state.seconds):
        raise ConfigError(
            f"resume_from={source}: {state.seconds / 3600:,.2f} hours are used, and max_hours={config.max_hours} "
            f"includes them; raise max_hours, or give an earlier checkpoint"
        )
    names = before.optimizer.name, config.optimizer.name
    if names[0] != names[1] and not set(names) <= set(_SAME_MOMENTS):
        raise ConfigError(
            f"resume_from={source}: was trained with optimizer.name={names[0]}, whose moments "
            f"optimizer.name={names[1]} cannot continue; set optimizer.name={names[0]}, or export the run and start "
            f"with model.initialize_from, without moments"
        )
    if state.step >= config.max_steps:
        raise ConfigError(
            f"resume_from={source}: {state.step:,} steps are done, and max_steps={config.max_steps:,} includes them; "
            f"raise max_steps, or give an earlier checkpoint"
        )
    start = find_branch_start(state, phases=phases)
    _check_vocabulary(source, state=state, before=before, phases=phases)
    find_start(phases, PlanState.from_tree(start.state.plan_state))
    return start


def _facts_of_weights(model: ModelConfig) -> dict[str, Any]:
    """Return the values of the model settings that must match a checkpoint's weights, with the numbers of `size` for
    settings that are null."""
    facts = {key: getattr(model, key) for key in ("size", "max_positions", "activation", "norm")}
    return {**facts, **dict(zip(SHAPE_SETTINGS, model.shape, strict=True))}


def find_branch_start(state: CheckpointState, *, phases: Sequence[OpenPhase]) -> BranchStart:
    """Return what a branch (a run that starts from another run's checkpoint) takes over from the checkpoint's `state`.

    `phases` are the phases (parts) of the branch. The step count continues. If one of these phases reads the data in
    the same order as the checkpoint's run did, the branch continues at that run's position in the data. In this case
    the divergence guard also keeps its recent losses and its list of steps to skip. Otherwise the data and the guard
    start over.
    """
    source_state = PlanState.from_tree(state.plan_state)
    begun = source_state.step - source_state.phase_step
    for each in phases:
        first, last = each.phase.first_step, each.phase.last_step
        if (each.plan.hash, first) == (source_state.plan_hash, begun) and source_state.step <= last:
            place = replace(source_state, phase=each.phase.index)
            guard = {key: value for key, value in state.guard.items() if key in _GUARD_KEPT}
            return BranchStart(replace(state, plan_state=place.to_tree(), guard=guard), same_data=True)
    opened = next(each for each in phases if state.step < each.phase.last_step)
    place = opened.plan.start(phase=opened.phase.index, step=state.step)
    place = replace(place, phase_step=state.step - opened.phase.first_step)
    anew = replace(state, plan_state=place.to_tree(), guard={}, data_hash=opened.manifest.hash)
    return BranchStart(anew, same_data=False)


def read_trained(
    config: TrainerConfig, *, phases: Sequence[OpenPhase]
) -> tuple[list[tuple[Phase, Manifest]], list[str]]:
    """Return what the checkpoint `resume_from` was trained on, as two lists.

    The first list holds the phases (parts of a run), each with the manifest of its data set. If the run that wrote the
    checkpoint itself started from a checkpoint, the phases that this earlier checkpoint was trained on come first.
    `phases` are the phases of the new run. If the new run uses the same data set as one of the listed phases, the new
    run's path is used, because the data set may have moved. The second list holds a message for each data set or
    checkpoint that is lost.
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
    """Return facts about the rows that the checkpoint `resume_from` was trained on, in the form of
    CheckpointState.rows. Checkpoints of earlier versions do not record these facts.

    The facts are "longest" (the most tokens that a row may have), "next_sentence" (whether rows have next-sentence
    labels) and "vocabulary_hash". The first two facts come from the data sets that the checkpoint was trained on, and
    the hash comes from the data set of the branch. If one of these data sets is lost, or if the weights came from
    model.initialize_from, "longest" is the number of the model's positions, and "next_sentence" is true.
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
    """Return `phase`, a phase (part) of the run from which a branch starts, and the manifest of the phase's data set.

    The data set may have moved. So if one of `phases` (the phases of the branch) uses the same data set, the branch's
    path replaces the path in `phase`. Raises DataSetError if the data set's hash is not `data_hash`. An empty
    `data_hash` allows any data set.
    """
    for each in phases:
        if each.manifest.hash == data_hash:
            data = each.phase.config.data
            return replace(phase, config=phase.config.model_copy(update={"data": data})), each.manifest
    known = {each.phase.config.data: each.manifest for each in phases}
    manifest = known.get(phase.config.data) or read_manifest(phase.config.data)
    if data_hash and manifest.hash != data_hash:
        raise DataSetError(f"{phase.config.data}: is now data set {manifest.hash[:12]}, not {data_hash[:12]}")
    return phase, manifest


def begin_branch(
    config: TrainerConfig, *, phases: Sequence[OpenPhase], engine: Engine, checkpoints: CheckpointWriter
) -> CheckpointState:
    """Load the checkpoint `resume_from` into the engine. Commit the state with which the branch starts as this run's
    first checkpoint, and return this state.

    All ranks must call this together (collective). Raises CheckpointError, on all ranks, if the checkpoint is damaged
    or does not fit the model.
    """
    source = locate(str(config.resume_from))
    trouble = verify_together(source, engine=engine)
    if trouble:
        raise CheckpointError(f"resume_from={source}: {trouble}; give another checkpoint")
    state = find_branch_start(restore(source, engine=engine), phases=phases).state
    if not state.rows:
        state = replace(state, rows=_derive_rows(config, phases=phases))
    checkpoints.save(
        state.step,
        plan_state=state.plan_state,
        guard=state.guard,
        data_hash=state.data_hash,
        rows=state.rows,
        seconds=state.seconds,
    )
    checkpoints.finish()
    return state


def steps_done(config: TrainerConfig, *, checkpoints: Checkpoints) -> int:
    """Return the step of the run's newest checkpoint. If the run has no checkpoint, return the step of the checkpoint
    `config.resume_from`, or 0 if `resume_from` is not set."""
    if checkpoints:
        return checkpoints.newest_step
    return 0 if config.resume_from is None else step_of(locate(config.resume_from))


def _check_vocabulary(
    source: Location, *, state: CheckpointState, before: TrainerConfig, phases: Sequence[OpenPhase]
) -> None:
    """Raise ConfigError if the vocabulary of the checkpoint `source` is not that of the data sets of `phases` (parts of
    a run).

    A checkpoint of an earlier version does not record its vocabulary. So the vocabulary is read from the data set that
    the checkpoint was trained on. If this data set cannot be read, ConfigError is raised too. `state` is the
    checkpoint's state, and `before` is the config of the run that wrote the checkpoint.
    """
    manifest = phases[0].manifest
    trained: dict[str, Any] = state.rows
    if not trained and state.data_hash not in [each.manifest.hash for each in phases]:
        data = resolve_phases(before)[PlanState.from_tree(state.plan_state).phase].config.data
        try:
            trained = {"vocabulary_hash": read_manifest(data).vocabulary_hash}
        except DataSetError as error:
            raise ConfigError(
                f"resume_from={source}: was trained on another data set, whose vocabulary cannot be compared: {error}; "
                f"restore that data set, or start from an export with model.initialize_from"
            ) from error
    found = trained.get("vocabulary_hash", manifest.vocabulary_hash)
    if found != manifest.vocabulary_hash:
        raise ConfigError(
            f"resume_from={source}: was trained with vocabulary {found[:12]}, but data={phases[0].phase.config.data} "
            f"has {manifest.vocabulary_hash[:12]}: the same ids mean other tokens; build the data set with the run's "
            f"vocabulary (vocabulary.path of the pipeline)"
        )


def branch_command(config: TrainerConfig, *, before: int) -> str:
    """Return a shell command that continues this run as a new run, with half the learning rate.

    The new run starts from the newest checkpoint before step `before`, or from step 0 if there is no such checkpoint.
    """
    checkpoints = [folder for folder in find_checkpoints(config.output).folders if step_of(folder) < before]
    step = step_of(checkpoints[-1]) if checkpoints else 0
    run, key, rate = locate(config.output), "optimizer.learning_rate", config.optimizer.learning_rate
    if config.schedule.span == "phase":
        phase = sum(end < before for end in list(accumulate(config.phase_steps))[:-1])
        own = config.phases[phase].learning_rate if config.phases else None
        key, rate = (key, rate) if own is None else (f"phases.{phase}.learning_rate", own)
    settings = [
        *([f"resume_from={checkpoints[-1]}"] if checkpoints else []),
        *(_forget_start(config.model) if checkpoints and config.model.initialize_from is not None else []),
        f"output={run}-from-{step}",
        f"{key}={rate / 2:g}",
    ]
    file = str(locate(run, CONFIG_NAME)) if isinstance(run, Path) else "YOUR_CONFIG"
    return shlex.join(["python", "trainer/run.py", "--config", file, *settings])


def _forget_start(model: ModelConfig) -> list[str]:
    """Return overrides that replace the settings of `model` about the weights of another model by their defaults."""
    settings = ["model.initialize_from=null"]
    settings += ["model.initialize_layers=all"] if model.initialize_layers != "all" else []
    return settings + (["model.new_tokens=refuse"] if model.new_tokens != "refuse" else [])
