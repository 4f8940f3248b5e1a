"""The run directory: which run it belongs to, and which settings may change when that run continues.

Invariant: a directory holds one run. Its config.yaml fixes every setting that shapes the weights, and a command with
another value of such a setting is refused.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.settings import ConfigError, dump_yaml, to_tree
from pipeline.storage import LEASE_FOLDER, Location, find_existing, locate, make_durable_folder, replaced_by
from trainer.checkpoint import CHECKPOINTS_FOLDER, Checkpoints, checkpoints_folder
from trainer.config import CONFIG_NAME, TrainerConfig, find_idle_settings
from trainer.engine import learning_rate
from trainer.telemetry import flatten

MAY_CHANGE = (
    "data",
    "output",
    "working_folder",
    "max_steps",
    "max_hours",
    "workers",
    "min_workers",
    "device",
    "compile",
    "cuda_graphs",
    "self_check",
    "deterministic",
    "launcher",
    "zero_stage",
    "precision",
    "communication_data_type",
    "recompute",
    "checkpoint",
    "guard",
    "evaluation",
    "logging",
    "ingest",
    "threads_per_worker",
    "cpus_per_worker",
    "collective_timeout_s",
    "start_timeout_s",
    "max_restarts",
    "resize_interval_s",
    "lease_timeout_s",
)
"""Settings that may change when a run continues.

They say where the run trains, what it reports, where its files are, and how long it trains. A checkpoint fits any
number of workers, ZeRO stage and precision. A data set may move, but its hash must stay. The learning rate is a
function of step and config, so it follows a new max_steps from the resumed step on.
"""

MAY_CHANGE_IN_A_PHASE = ("data", "max_steps", "share", "evaluation")
"""Settings of a phase that may change after the phase has begun. Before that, all settings of the phase may change. A
phase's new length must fit the position in the data that the newest checkpoint holds."""


def check_run_directory(config: TrainerConfig, *, saved: TrainerConfig | None, checkpoints: Checkpoints) -> list[str]:
    """Check, without writing anything, that the output folder can be written and belongs to this run.

    `saved` is the config in the output's config.yaml (None: no such file), and `checkpoints` lists the checkpoints
    there. Returns lines that tell the user which settings changed since the run began. Raises ConfigError if the output
    cannot be written, if it has files but is not a run directory, or if a setting that must not change differs from its
    value in `saved`.
    """
    folder = locate(config.output)
    if isinstance(folder, Path):
        existing = find_existing(folder)
        if not existing.is_dir():
            raise ConfigError(f"output={folder}: {existing} is a file; give a folder")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise ConfigError(f"output={folder}: no permission to write in {existing}; give another output")
        if existing != folder or (not checkpoints and all(map(_is_leftover, folder.iterdir()))):
            return []
    if saved is None:
        ours = (f"{LEASE_FOLDER}/", *(() if checkpoints else (f"{CHECKPOINTS_FOLDER}/",)))
        if not isinstance(folder, Path) and all(file.name.startswith(ours) for file in storage.list_files(folder)):
            return []  # left by a command that was killed at its beginning, or whose folder was deleted under it
        raise ConfigError(
            f"output={folder}: is not empty and not a run directory (no {CONFIG_NAME}); give a new or empty folder"
        )
    before, now = _flatten(to_tree(saved)), _flatten(to_tree(config))
    idle = {each.key for each in find_idle_settings(saved)} & {each.key for each in find_idle_settings(config)}
    changes = {
        key: f"{key}: {before.get(key)} -> {now.get(key)}"
        for key in {**before, **now}
        if before.get(key) != now.get(key) and key not in idle
    }
    begun = phases_begun(config, done=checkpoints.newest_step)
    refused = [text for key, text in changes.items() if not may_change(key, phases_begun=begun)]
    if refused:
        raise ConfigError(
            f"output={folder}: holds a run with other settings ({'; '.join(refused)}); run it with the same settings "
            f"to continue it, or give another output"
        )
    told = [text for key, text in changes.items() if key.split(".")[-1] not in ("data", "output", "working_folder")]
    lines = [f"changed since this run began: {'; '.join(told)}"] if told else []
    if saved.max_steps != config.max_steps and config.masking.final_rate is not None:
        lines.append(f"max_steps {saved.max_steps:,} -> {config.max_steps:,} moves masking.final_rate to another step")
    return lines + _describe_rate(saved, config, checkpoints=checkpoints)


def _describe_rate(before: TrainerConfig, now: TrainerConfig, *, checkpoints: Checkpoints) -> list[str]:
    """Return a list with one line for the user if a new max_steps changes the learning rate at the step where the run
    continues. Otherwise return an empty list.

    `before` is the config that the run stored, and `now` is the config that continues the run.
    """
    done = checkpoints.newest_step
    timed = (before.max_hours, now.max_hours) != (None, None)
    if timed or before.max_steps == now.max_steps or not 0 < done < now.max_steps:
        return []
    last, following = learning_rate(done, before), learning_rate(done + 1, now)
    if following == (learning_rate(done + 1, before) if done < before.max_steps else last):
        return []
    return [
        f"max_steps {before.max_steps:,} -> {now.max_steps:,} stretches the schedule over other steps: the learning "
        f"rate goes from {last:.3g} at step {done:,} to {following:.3g} at step {done + 1:,}"
    ]


def check_fresh(config: TrainerConfig, *, checkpoints: Checkpoints) -> None:
    """Raise ConfigError if the output already holds a run, which --fresh forbids."""
    folder = locate(config.output)
    if checkpoints or storage.find_file(locate(folder, CONFIG_NAME)) is not None:
        newest = f"newest checkpoint: step {checkpoints.newest_step}" if checkpoints else "no checkpoint yet"
        raise ConfigError(
            f"output={folder}: already holds a run ({newest}), and --fresh begins a new one; give another output, or "
            f"leave --fresh out to continue that run"
        )


def phases_begun(config: TrainerConfig, *, done: int) -> int:
    """Return how many phases (parts) of a run have begun once `done` steps are done. The first phase always counts as
    begun."""
    ends = accumulate(config.phase_steps)
    return 1 + sum(end < done for end in ends)


def may_change(key: str, *, phases_begun: int) -> bool:
    """Whether a run may continue with another value of `key`, such as `batch.pairs` or `phases.1.batch.pairs`.

    `phases_begun` is the number of phases that the run has begun.
    """
    parts = key.split(".")
    if parts[0] == "phases":
        return int(parts[1]) >= phases_begun or parts[2] in MAY_CHANGE_IN_A_PHASE
    return parts[0] in MAY_CHANGE


def is_run_config(file: str | Path) -> bool:
    """Whether `file` is a config.yaml with a folder of checkpoints beside it, as in a run directory."""
    path = Path(file)
    return path.name == CONFIG_NAME and Path(checkpoints_folder(path.absolute().parent)).is_dir()


def write_config(config: TrainerConfig) -> Location:
    """Make the run directory, write config.yaml and return that file's path.

    If this fails, raises ConfigError and leaves no new folder.
    """
    folder = locate(config.output)
    path = locate(folder, CONFIG_NAME)
    made = isinstance(folder, Path) and not folder.exists()
    try:
        if isinstance(folder, Path):
            make_durable_folder(folder)
        storage.write_bytes(path, dump_yaml(config).encode("utf-8"))
    except OSError as error:
        if made and isinstance(folder, Path):
            with suppress(OSError):
                folder.rmdir()
        raise ConfigError(f"output={folder}: cannot be written: {error}; give another output") from error
    return path


def _is_leftover(path: Path) -> bool:
    """Whether a command may have left this file or folder, if it was killed while it started, or if its output was
    deleted while it ran: it may then have begun a checkpoint."""
    if path.name == CHECKPOINTS_FOLDER and path.is_dir():
        return all(each.name.startswith(".") for each in path.iterdir())
    return path.name == LEASE_FOLDER or replaced_by(path.name) == CONFIG_NAME


def _flatten(tree: dict[str, Any]) -> dict[str, Any]:
    phases = {str(index): phase for index, phase in enumerate(tree["phases"])}
    flat = flatten({**tree, "phases": phases})
    return flat if phases else {key: value for key, value in flat.items() if key != "phases"}
