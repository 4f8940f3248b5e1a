"""`python -m trainer.push RUN OWNER/NAME [--revisions] [--dry-run]`: publishes a run on the Hugging Face Hub.

Exports go to a temporary folder, one at a time. `main` is pushed last, so its card lists only revisions that are there.
"""

from __future__ import annotations

import argparse
import errno
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pipeline.console import command, exit_with, say_at_once
from pipeline.hub import PushFile, Repository, Revision, push
from pipeline.storage import Location, expand_path, locate
from trainer.checkpoint import CheckpointError, find_checkpoints, is_checkpoint, rank_evaluations, step_of, verify
from trainer.export import (
    DTYPES,
    ExportError,
    TaskReport,
    check_tasks,
    export,
    find_checkpoint,
    read_task_report,
)


@command(goes_on_from="what the hub has received")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 if the hub has the model, 2 if the request was refused."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.push", description="Publish a run's model on the Hugging Face Hub."
    )
    parser.add_argument("run", help="run directory or URL, or one checkpoint folder")
    parser.add_argument("repository", help="model repository, OWNER/NAME; made if it does not exist")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, help="publish the checkpoint of this step")
    which.add_argument("--best", action="store_true", help="publish the kept checkpoint with the lowest held-out loss")
    parser.add_argument("--revisions", action="store_true", help="also each kept checkpoint as a branch step-NNNNNNN")
    parser.add_argument("--dry-run", action="store_true", help="export, show what would be sent, and send nothing")
    parser.add_argument("--public", action="store_true", help="a new repository is public (default: private)")
    parser.add_argument("--replace", action="store_true", help="replace files there that others wrote")
    parser.add_argument("--tasks", help="output of `python -m trainer.finetune` on an export, for the card")
    parser.add_argument("--data", help="the run's data set, if it was moved")
    parser.add_argument(
        "--dtype", choices=tuple(DTYPES), default="fp32", help="number format of the weights (default: fp32)"
    )
    options = parser.parse_args(arguments)
    repository = Repository(options.repository, kind="model")
    tasks = read_task_report(options.tasks) if options.tasks is not None else None
    run = locate(expand_path(options.run, key="RUN"))
    checkpoint = _choose(run, step=options.step, best=options.best)
    if tasks is not None:
        check_tasks(tasks, checkpoint=checkpoint)
    others = _list_valid(run) if options.revisions else []
    how = {"data": options.data, "dtype": options.dtype, "repository": repository.name}
    with closing(_list_revisions(checkpoint, others=others, tasks=tasks, how=how)) as revisions:
        push(
            repository,
            revisions,
            public=options.public,
            replace=options.replace,
            dry_run=options.dry_run,
            say=say_at_once,
        )
    return 0


def _choose(run: Location, *, step: int | None, best: bool) -> Location:
    """Return the checkpoint for `main`. If neither `step` nor `best` is given: of the kept ones that were evaluated the
    best, or else the newest."""
    if step is None and not best and not is_checkpoint(run):
        losses = (rank_evaluations(run) or [{}])[-1]
        best = any(step_of(folder) in losses for folder in find_checkpoints(run).folders)
    return find_checkpoint(run, step=step, best=best)


def _list_valid(run: Location) -> list[Location]:
    """Return the run's undamaged checkpoints, oldest first, and show what is wrong with the others."""
    if is_checkpoint(run):
        raise ExportError(f"{run}: is one checkpoint; --revisions needs the run directory")
    valid = []
    for folder in find_checkpoints(run).folders:
        try:
            verify(folder)
            valid.append(folder)
        except CheckpointError as error:
            say_at_once(f"left out: step {step_of(folder):,} is damaged: {error}")
    return valid


def _list_revisions(
    checkpoint: Location, *, others: Sequence[Location], tasks: TaskReport | None, how: dict[str, Any]
) -> Generator[Revision, None, None]:
    """Yield a revision for each of `others`, then `main` for `checkpoint`. Its files are there until the next is asked
    for. `how` has arguments of export."""
    for folder in others:
        own = tasks if tasks is not None and tasks.step == step_of(folder) else None
        with _exported(folder, tasks=own, **how) as files:
            yield Revision(_branch_of(folder), f"step {step_of(folder):,}", files)
    with _exported(checkpoint, tasks=tasks, revisions=[_branch_of(folder) for folder in others], **how) as files:
        yield Revision("main", f"step {step_of(checkpoint):,}", files)


def _branch_of(checkpoint: Location) -> str:
    return f"step-{step_of(checkpoint):07d}"


@contextmanager
def _exported(checkpoint: Location, *, repository: str, **how: Any) -> Iterator[tuple[PushFile, ...]]:
    """Export a checkpoint to a temporary folder, and yield its files."""
    with tempfile.TemporaryDirectory(prefix="cloze-push-", ignore_cleanup_errors=True) as folder:
        try:
            done = export(checkpoint, out=Path(folder) / "model", repository=repository, **how)
        except ExportError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ENOSPC:
                raise ExportError(
                    f"{repository}: the disk is full while step {step_of(checkpoint):,} is exported to {folder}; free "
                    f"space, or set TMPDIR to a folder on a larger disk"
                ) from error
            raise
        yield tuple(PushFile(path.name, path) for path in sorted(done.folder.iterdir()))


if __name__ == "__main__":
    exit_with(main())
