"""`python -m trainer.export RUN OUT [--best | --step N] [--data DIR]`: exports a run as a transformers model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pipeline.console import command, exit_with
from trainer.export.folder import DTYPES, export
from trainer.export.task_scores import read_task_report


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 if the export was written, 2 if the request was refused."""
    parser = argparse.ArgumentParser(prog="python -m trainer.export", description="Export a run to transformers.")
    parser.add_argument(
        "run", help="run directory or URL (exports its newest valid checkpoint), or one checkpoint folder"
    )
    parser.add_argument("out", help="folder to write; replaces an earlier export there")
    parser.add_argument("--data", help="the run's data set, if it was moved")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, help="export the checkpoint of this step")
    which.add_argument("--best", action="store_true", help="export the kept checkpoint with the lowest held-out loss")
    parser.add_argument(
        "--dtype", choices=tuple(DTYPES), default="fp32", help="number format of the weights (default: fp32)"
    )
    parser.add_argument("--tasks", help="output of `python -m trainer.finetune` on this export, for the card")
    options = parser.parse_args(arguments)
    done = export(
        options.run,
        out=options.out,
        data=options.data,
        step=options.step,
        best=options.best,
        dtype=options.dtype,
        tasks=read_task_report(options.tasks) if options.tasks is not None else None,
    )
    print(
        f"exported step {done.step:,} ({done.checkpoint}) to {done.folder}: {done.model_type}, "
        f"{done.num_parameters:,} parameters"
    )
    return 0


if __name__ == "__main__":
    exit_with(main())
