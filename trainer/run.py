"""Pretrain BERT: `python trainer/run.py --config FILE key.sub=value ...`, also `python -m trainer.run`.

The same command continues an interrupted run, and does nothing once all steps are done.
"""

from __future__ import annotations

import os.path
import sys

if not __package__:
    # Python puts the folder of this script, trainer/, first on the path. Put the repository there instead, because
    # Ray's workers import from the repository too (in a submitted job, from the uploaded copy).
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from collections.abc import Sequence
from pathlib import Path

from pipeline.console import command, say_at_once
from pipeline.settings import ConfigError, describe, refuse_flags, split_arguments
from pipeline.signals import stop_on_signals
from trainer.config import TrainerConfig
from trainer.launch import SAMPLE_CONFIG, WorkerError, check, dry_run, read_config, train

REPOSITORY = Path(__file__).resolve().parent.parent
PROGRAM = "trainer/run.py"
HELP = f"""usage: python {PROGRAM} [--config FILE] [--fresh] [--dry-run] [key.sub=value ...]

Pretrains BERT on a data set that pipeline/run.py built. Without --config: {SAMPLE_CONFIG}.
The same command continues an interrupted run from its last checkpoint; --fresh refuses an output that holds a run.
Ctrl-C or SIGTERM finishes the current step, writes a checkpoint and exits with status 130 or 143; Ctrl-C after that
ends the run at once.
--dry-run makes all checks and shows steps, tokens, disk space, memory and machines; it starts and writes nothing. With
--tokens-per-second=N (of one worker) or --gpu=NAME (such as H200) it also shows the time, with --price=P (of one worker
and hour) the price. If there is no data set yet, --rows=N --tokens=N state its training rows and tokens (N,N of two, in
the order of the phases); device=cuda plans for GPUs that this machine does not have.
Lost workers are restarted from the last checkpoint (max_restarts).
Ray: the cluster at RAY_ADDRESS (set inside a submitted job), otherwise a local Ray on this machine.

Settings:
"""


@command(goes_on_from="the last checkpoint")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    The status is 0 if it succeeded, 1 if it failed, 2 if it was refused, and 128 + n if signal n stopped it.
    """
    try:
        words = split_arguments(sys.argv[1:] if arguments is None else arguments, program=PROGRAM)
        refuse_flags(words.flags, program=PROGRAM, known=["--fresh", *dry_run.FLAGS])
        options = dry_run.read_options(words.flags, program=PROGRAM)
        if words.rest:
            raise ConfigError(f"{PROGRAM}: takes nothing after '--', found {' '.join(words.rest)}")
        if "--help" in words.flags:
            print(HELP + describe(TrainerConfig))
            return 0
        if words.file is None:
            print(f"no --config given: using {REPOSITORY / SAMPLE_CONFIG}", flush=True)
        config = read_config(words, repository=REPOSITORY)
        fresh = "--fresh" in words.flags
        if dry_run.FLAG in words.flags:
            checked = dry_run.check_or_plan(config, options, fresh=fresh)
            for line in (*checked.lines, *dry_run.describe_run(checked, options)):
                say_at_once(line)
            return 0
        with stop_on_signals() as stop:
            return train(check(config, fresh=fresh), stop=stop, say=say_at_once)
    except WorkerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
