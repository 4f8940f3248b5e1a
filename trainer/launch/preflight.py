"""Check the command line, its paths, the data set and the plan (the order of the data) before anything starts.

Invariant: if a run is refused, nothing has been written. If a run passes the checks, it fails only if something changes
afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.dataset import TOKENIZER_FOLDER, DataSetError, Manifest, open_data_set, verify_shards
from pipeline.settings import Arguments, ConfigError, load_tree, validate
from pipeline.storage import expand_path, locate, refuse_if_alive, refuse_lost_path
from pipeline.units import count_of
from trainer.checkpoint import (
    CheckpointError,
    Checkpoints,
    CheckpointState,
    find_checkpoints,
    newest_verified,
    read_state,
    step_of,
)
from trainer.config import TrainerConfig, drop_idle_settings, read_run_config, refuse_idle_settings
from trainer.data import OpenPhase, Phase, PlanState, check_held_out, find_start, open_phases, resolve_phases
from trainer.engine import judge_heads, judge_memory, resolve_recompute, with_largest_micro_batch
from trainer.hf import compare_folder, fit_model, take_shape
from trainer.launch.cards import resolve_micro_batch, stated_card
from trainer.launch.run_directory import check_fresh, check_run_directory, is_run_config
from trainer.telemetry import EVALUATIONS_NAME, read_last_lines
from trainer.train import (
    check_branch,
    find_branch_start,
    is_branch_to_begin,
    read_trained,
    resolve_source,
    source_config,
)

SAMPLE_CONFIG = Path("trainer") / "configs" / "sample.yaml"
PATH_KEYS = ("data", "output", "resume_from", "working_folder", "model.initialize_from")


def read_config(arguments: Arguments, *, repository: Path) -> TrainerConfig:
    """Return the config that a command line asks for, with absolute paths. Raises ConfigError if the config is not
    valid.

    Without --config, the sample config in `repository` is read, and the paths in this file are relative to
    `repository`. All other relative paths are relative to the current directory. If --config names the config.yaml of a
    run, settings without effect are dropped, because earlier versions wrote such settings.
    """
    file = arguments.file if arguments.file is not None else repository / SAMPLE_CONFIG
    overridden = {override.partition("=")[0] for override in arguments.overrides}
    tree = load_tree(file, overrides=arguments.overrides)
    if is_run_config(file):
        tree = drop_idle_settings(tree, origin=str(file), keep=overridden)
    config = validate(TrainerConfig, tree, origin=str(file), overrides=arguments.overrides)

    def base_of(key: str) -> Path:
        return repository if arguments.file is None and key not in overridden else Path.cwd()

    return resolve_paths(config, base_of=base_of)


def resolve_paths(config: TrainerConfig, *, base_of: Callable[[str], Path]) -> TrainerConfig:
    """Return the config with absolute paths. A relative path of the setting `key` is below `base_of(key)`. Raises
    ConfigError if a value is no path."""
    for key in (*PATH_KEYS, *(f"phases.{index}.data" for index in range(len(config.phases)))):
        value = _get(config, key)
        if value is None:
            continue
        value = expand_path(value, key=key, local_only=key == "working_folder")
        if not (os.path.isabs(value) or storage.is_url(value)):
            refuse_lost_path(value, key=key)
            value = os.path.normpath(base_of(key) / value)
        config = _replace(config, key.split("."), value)
    return config


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What `check` found out about a run."""

    lines: tuple[str, ...]
    """Lines that tell the user the data set, the batch, warnings, and the settings changed since the run began."""
    done: bool
    """Whether there is nothing to launch: all steps are done and evaluated, and the last checkpoint verifies."""
    config: TrainerConfig
    """The config, with the values filled in that are fixed when a run begins, such as resume_from and
    batch.greatest_slot."""
    phases: tuple[OpenPhase, ...]
    """The phases of `config`, with their verified data sets."""
    checkpoints: Checkpoints
    """The checkpoints in the run directory."""


def check(config: TrainerConfig, *, fresh: bool = False, gpu: str | None = None) -> CheckResult:
    """Check that data set, model, plan and run directory fit together. Return what was found, and write nothing.

    If `fresh`, an output that already holds a run is refused. `gpu` names the GPU whose memory a step must fit (None:
    the smallest GPU that is found). Raises ValueError if a check fails.
    """
    checkpoints = find_checkpoints(config.output)
    if fresh:
        check_fresh(config, checkpoints=checkpoints)
    saved = read_run_config(locate(config.output))
    config = resolve_model(resolve_source(config, saved=saved), saved=saved)
    phases = resolve_phases(config)
    full = config.ingest.verify == "full"
    opened_sets = {
        data: open_data_set(data, full=full) for data in dict.fromkeys(phase.config.data for phase in phases)
    }
    manifests = [opened_sets[phase.config.data] for phase in phases]
    starts = [
        check_model(phase.config, manifest=manifest, begun=bool(checkpoints))
        for phase, manifest in zip(phases, manifests, strict=True)
    ]
    plan_config = saved
    branches = is_branch_to_begin(config, checkpoints=checkpoints)
    if saved is None and branches:
        plan_config = _source_with_plan(config, phases=phases, manifests=manifests)
    config, card, lines = resolve_micro_batch(
        config, plan_config=plan_config, phases=phases, manifests=manifests, card=stated_card(gpu)
    )
    opened = open_phases(resolve_phases(config), manifests=manifests)
    config, recomputes = resolve_recompute(config, phases=opened, card=card)
    refuse_idle_workers(config, phases=opened)
    refuse_idle_settings(config, held_out=[manifest.num_rows("validation") for manifest in manifests])
    warnings = _check_branch_held_out(config, phases=opened) if branches else check_held_out(opened)
    changes = check_run_directory(config, saved=saved, checkpoints=checkpoints)
    refuse_if_alive(config.output)
    state = check_checkpoints(config, phases=opened, checkpoints=checkpoints)
    step = None if state is None else state.step
    evaluations = read_last_lines(locate(config.output, EVALUATIONS_NAME))
    evaluated = not manifests[-1].num_rows("validation") or (bool(evaluations) and evaluations[-1]["step"] == step)
    done = state is not None and config.is_done(step=state.step, seconds=state.seconds) and evaluated
    done = done and newest_verified(checkpoints) == checkpoints.folders[-1]
    if not done and (memory := judge_memory(config, phases=opened, card=card)):
        lines += [*recomputes, memory]
    if branches:
        lines.append(check_branch(config, phases=opened).describe(str(config.resume_from)))
    lines = [*starts[0], *lines, *describe_phases(config, phases=opened), *warnings, *changes]
    return CheckResult(tuple(lines), done=done, config=config, phases=opened, checkpoints=checkpoints)


def refuse_idle_workers(config: TrainerConfig, *, phases: Sequence[OpenPhase]) -> None:
    """Raise ConfigError if there are more workers than lanes. Lanes are the equal parts of a phase's rows that workers
    share."""
    for each in phases:
        if config.workers > each.plan.lanes:
            key = f"phases.{each.phase.index}.batch.lanes" if config.phases else "batch.lanes"
            raise ConfigError(
                f"workers={config.workers} exceeds the {count_of(each.plan.lanes, 'lane')} of the plan: some workers "
                f"would have no work; lower workers or set {key}={config.workers}"
            )


def describe_phases(config: TrainerConfig, *, phases: Sequence[OpenPhase]) -> list[str]:
    """Return lines that tell the user the data set and the batch of each phase."""
    lines: list[str] = []
    for each in phases:
        lines += [each.describe_place(len(phases))] if config.phases else []
        lines += each.describe()
    return lines


def resolve_model(config: TrainerConfig, *, saved: TrainerConfig | None) -> TrainerConfig:
    """Return the config with the model's shape, positions, activation and norm filled in.

    Only a config with model.initialize_from is changed. A value that this config does not state is taken from the model
    in the folder model.initialize_from. If the run has begun, this folder may be gone, so the value is taken from
    `saved`, the config that the run stored. `saved` is None if the run has not begun.
    """
    folder = config.model.initialize_from
    if folder is None:
        return config
    begun = saved is not None and saved.model.initialize_from == folder
    model = take_shape(config.model, saved.model) if begun and saved else fit_model(config.model, folder=folder)
    return config.model_copy(update={"model": model})


def _source_with_plan(
    config: TrainerConfig, *, phases: Sequence[Phase], manifests: Sequence[Manifest]
) -> TrainerConfig | None:
    """Return the config of the source, which is the run from whose checkpoint this run starts.

    Return None if this run does not continue the source's plan (the order of the data). `config` is the config of this
    run.
    """
    source, state = source_config(config), read_state(locate(str(config.resume_from)))
    if config.batch.greatest_slot is None:
        phases = resolve_phases(with_largest_micro_batch(config, source.batch.greatest_slot))
    try:
        opened = open_phases(phases, manifests=manifests)
    except ValueError:  # raised again, and reported, when the final phases are opened
        return None
    continues_plan = state.step < config.max_steps and find_branch_start(state, phases=opened).same_data
    return source if continues_plan else None


def _check_branch_held_out(config: TrainerConfig, *, phases: Sequence[OpenPhase]) -> list[str]:
    """Check that neither a branch nor the run before it trained on the branch's held-out documents.

    A branch is a run that starts from another run's checkpoint. `config` is the config of the branch. Returns warnings
    about what cannot be checked. Raises ConfigError if a held-out document was trained on.
    """
    verified = {each.phase.config.data for each in phases}
    trained, lost = read_trained(config, phases=phases)
    before = []
    for phase, manifest in trained:
        try:
            if phase.config.data not in verified:
                verify_shards(phase.config.data, manifest.shards)
            before.append((phase, manifest))
        except DataSetError as error:
            lost.append(str(error))
    unread = [
        f"WARNING: resume_from={config.resume_from}: cannot check whether it was trained on rows that are held out "
        f"here: {trouble}; restore that data set to have it checked"
        for trouble in lost
    ]
    assert config.resume_from is not None
    return [*unread, *check_held_out(phases, before=before, step=step_of(locate(config.resume_from)))]


def check_model(config: TrainerConfig, *, manifest: Manifest, begun: bool) -> list[str]:
    """Raise ValueError if the data set or the model in the folder model.initialize_from does not fit the config.

    The rows of the data set must not have more tokens than the model has positions. The model in the folder must also
    have the data set's vocabulary, unless model.new_tokens is set. If `begun`, the run has checkpoints and no longer
    reads this folder. So the folder may be gone and is not checked. Returns lines for the user: about heads that
    attention's fast kernel does not take, and about what is not copied as it is from the folder.
    """
    if manifest.max_seq_length > config.model.max_positions:
        raise ConfigError(
            f"data={config.data}: max_seq_length={manifest.max_seq_length} exceeds model.max_positions="
            f"{config.model.max_positions}; raise model.max_positions, or build the data set with shorter rows"
        )
    lines = judge_heads(config)
    if config.model.initialize_from is not None and not begun:
        folder = locate(config.model.initialize_from)
        data_tokenizer = storage.join(config.data, TOKENIZER_FOLDER)
        _, notes = compare_folder(config.model, folder=folder, data_tokenizer=data_tokenizer)
        lines += [f"model.initialize_from={folder}: {'; '.join(notes)}"] if notes else []
    return lines


def check_checkpoints(
    config: TrainerConfig, *, phases: Sequence[OpenPhase], checkpoints: Checkpoints
) -> CheckpointState | None:
    """Check that the newest readable checkpoint fits the run. Return its state, or None if no checkpoint is readable.

    Only the checkpoint's manifest and state are read. The workers verify all other files when they resume. Raises
    ValueError if the checkpoint has other phases, data or plans than `phases`.
    """
    for folder in checkpoints.newest_first():
        try:
            state = read_state(folder)
        except CheckpointError:
            continue
        plan_state = PlanState.from_tree(state.plan_state)
        opened = phases[min(plan_state.phase, len(phases) - 1)]
        if state.data_hash and state.data_hash != opened.manifest.hash:
            place = f"phases.{opened.phase.index}." if config.phases else ""
            raise ConfigError(
                f"{place}data={opened.phase.config.data}: is data set {opened.manifest.hash[:12]}, but the checkpoint "
                f"at step {state.step} was trained on {state.data_hash[:12]}; give the run's data set, or a new output"
            )
        find_start(phases, plan_state)
        return state
    return None


def _get(config: TrainerConfig, key: str) -> str | None:
    node: Any = config
    for part in key.split("."):
        node = node[int(part)] if part.isdigit() else getattr(node, part)
    assert node is None or isinstance(node, str)
    return node


def _replace(node: Any, parts: Sequence[str], value: str) -> Any:
    """Return a copy of `node` (settings, or a tuple of settings) in which one field is `value`.

    `parts` is the path to this field, for example ("phases", "1", "data").
    """
    if not parts:
        return value
    head, rest = parts[0], parts[1:]
    if head.isdigit():
        index = int(head)
        return (*node[:index], _replace(node[index], rest, value), *node[index + 1 :])
    return node.model_copy(update={head: _replace(getattr(node, head), rest, value)})
