"""The command `python -m trainer.checkpoint RUN [list|verify|prune]` for the checkpoints in the run directory RUN.

`prune` first verifies all checkpoints. If all are damaged, it removes nothing. Otherwise at least one undamaged
checkpoint remains.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline import storage
from pipeline.console import command
from pipeline.settings import validate
from pipeline.signals import StopRequest
from pipeline.storage import Location, hold, locate
from pipeline.units import count_of, describe_bytes
from trainer.checkpoint.format import (
    MANIFEST,
    CheckpointError,
    checkpoints_folder,
    find_checkpoints,
    read_json,
    read_manifest,
    state_file,
    step_of,
    verify,
)
from trainer.checkpoint.retention import choose_kept, rank_evaluations, remove
from trainer.config import CONFIG_NAME, CheckpointConfig, read_run_config


@dataclass(frozen=True, slots=True)
class Report:
    """What the command found out about one checkpoint.

    `written` is the local time of writing, or "?" if not known. `world_size` is the number of ranks that wrote the
    checkpoint, or None if not known.
    """

    folder: Location
    num_bytes: int
    """Total size of the files, according to the manifest."""
    written: str
    world_size: int | None
    trouble: str
    """What is wrong with the checkpoint. Empty if every byte verifies."""

    def line(self) -> str:
        """Return the report as one line of the table that the command prints. HEADER is the table's first line."""
        workers = "?" if self.world_size is None else str(self.world_size)
        return (
            f"{step_of(self.folder):>10}  {describe_bytes(self.num_bytes):>8}  {self.written:<19}  {workers:>7}  "
            f"{self.trouble or 'verified'}"
        )


HEADER = f"{'step':>10}  {'size':>8}  {'written':<19}  {'workers':>7}  state"


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    The status is 0 for success, 1 if `verify` found damage, and 2 if the command failed or was refused.
    """
    parser = argparse.ArgumentParser(
        prog="python -m trainer.checkpoint",
        description="Checkpoints of a run: list verifies every byte of each and shows the result; verify does the same "
        "and exits with 1 if one is damaged; prune removes what the run's settings, or those given here, do not keep.",
    )
    parser.add_argument("run", help="run directory, or its s3:// or gs:// URL")
    parser.add_argument("action", nargs="?", choices=("list", "verify", "prune"), default="list")
    parser.add_argument("--keep-last", type=int, help="prune: number of newest checkpoints to keep")
    parser.add_argument("--keep-every-steps", type=int, help="prune: keep those at multiples of this step")
    parser.add_argument(
        "--keep-best", type=int, help="prune: number with the lowest held-out loss to keep in each phase"
    )
    parser.add_argument("--damaged", action="store_true", help="prune: also remove damaged ones")
    options = parser.parse_args(arguments)
    run = locate(options.run)
    changes = {name: getattr(options, name) for name in ("keep_last", "keep_every_steps", "keep_best")}
    changes = {name: value for name, value in changes.items() if value is not None}
    if options.action == "prune":
        return _prune(run, changes=changes, damaged=options.damaged)
    if changes or options.damaged:
        raise CheckpointError(f"{options.action} takes no --keep-* and no --damaged; only prune does")
    reports = inspect(run)
    print(HEADER)
    for report in reports:
        print(report.line())
    return int(options.action == "verify" and any(report.trouble for report in reports))


def inspect(run: Location) -> list[Report]:
    """Verify every byte of a run's checkpoints. Return one report for each checkpoint, oldest first.

    Raises CheckpointError if the run has no checkpoint.
    """
    folders = find_checkpoints(run).folders
    if not folders:
        raise CheckpointError(f"{checkpoints_folder(run)}: holds no checkpoint; give a run directory")
    return [_inspect_one(folder) for folder in folders]


def prune(run: Location, *, config: CheckpointConfig, damaged: bool = False) -> tuple[list[Report], list[Report]]:
    """Remove the checkpoints that `config` does not keep.

    Return (reports of the kept checkpoints, reports of the removed checkpoints).

    `config` applies to undamaged checkpoints only. Damaged checkpoints are removed if `damaged` is true, and stay
    otherwise. If all checkpoints are damaged, removes nothing and raises CheckpointError.
    """
    reports = inspect(run)
    whole = {step_of(report.folder): report for report in reports if not report.trouble}
    if not whole:
        troubles = "; ".join(report.trouble for report in reports)
        raise CheckpointError(f"{checkpoints_folder(run)}: no checkpoint verifies ({troubles}); nothing is removed")
    kept = choose_kept(whole, config=config, rankings=rank_evaluations(run))
    removed = [report for step, report in whole.items() if step not in kept]
    removed += [report for report in reports if report.trouble and damaged]
    for report in removed:
        remove(report.folder)
    return [report for report in reports if report not in removed], removed


def _prune(run: Location, *, changes: dict[str, int], damaged: bool) -> int:
    config = read_run_config(run)
    if config is None:
        raise CheckpointError(f"{run}: is not a run directory (no {CONFIG_NAME})")
    keep = validate(CheckpointConfig, {**config.checkpoint.model_dump(), **changes}, origin="prune")
    with hold(run, timeout_s=config.lease_timeout_s, say=print, stop=StopRequest()):
        kept, removed = prune(run, config=keep, damaged=damaged)
    print(HEADER)
    for report in kept:
        print(report.line())
    freed = sum(report.num_bytes for report in removed)
    steps = ", ".join(str(step_of(report.folder)) for report in removed)
    count = count_of(len(removed), "checkpoint")
    print(f"removed {count}, {describe_bytes(freed)}" + (f": steps {steps}" if removed else ""))
    return 0


def _inspect_one(folder: Location) -> Report:
    num_bytes, world_size, written, trouble = 0, None, "?", ""
    try:
        found = storage.find_file(locate(folder, MANIFEST))
        if found is None:
            raise CheckpointError(f"{locate(folder, MANIFEST)}: is missing")
        written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.modified))
        num_bytes = sum(entry["bytes"] for entry in read_manifest(folder).values())
        world_size = read_json(state_file(folder))["world_size"]
        verify(folder)
    except (CheckpointError, KeyError, TypeError) as error:
        trouble = str(error)
    return Report(folder, num_bytes, written, world_size, trouble)
