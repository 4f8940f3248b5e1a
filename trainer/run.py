"""Pretrain BERT: `python trainer/run.py --config FILE key.sub=value ...`, also `python -m trainer.run`.

The same command continues an interrupted run, and says so when all is done.
"""

from __future__ import annotations

import os.path
import sys

if not __package__:
    # Run as a script, Python puts trainer/ first on the path. The repository belongs there: it is also what
    # Ray's workers import from, in a submitted job the uploaded copy.
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
The same command continues an interrupted run from its last checkpoint; with --fresh an output that holds a run is
refused. Ctrl-C or SIGTERM: the step in hand is
finished, a checkpoint written, and the exit status is 130 or 143; a second signal ends the run at once.
--dry-run makes all checks, shows steps, tokens, room, memory and machines, and with --tokens-per-second=N or --gpu=NAME
(such as H200) and --price=P (of one worker, and of its hour) time and price; it starts and writes nothing. Before there
is a data set, --rows=N --tokens=N state its training rows and tokens; device=cuda plans for GPUs that are elsewhere.
Workers that are lost are started again from the last checkpoint (max_restarts).
Ray: the cluster that RAY_ADDRESS names (set inside a submitted job), otherwise one of its own on this machine.

Settings:
"""


@command(goes_on_from="the last checkpoint")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 done, 2 refused, 1 failed, 128 + n stopped by signal n."""
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
