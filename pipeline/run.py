"""Build a data set of masked sentence pairs: `python pipeline/run.py --config FILE key.sub=value -- --beam_option`.

Steps: list the splits (parts of the input), read or train the vocabulary, build the shards on a Beam engine, check and
publish the shards, and write the manifest last.
"""

from __future__ import annotations

import os.path
import sys

if __name__ == "__main__" and not __package__:
    # Python puts a script's own folder first on the path, where our modules would hide others of the same name.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import logging
from collections.abc import Sequence
from traceback import format_exc

from pipeline.build import build
from pipeline.config import FLAGS, KEYS, PipelineConfig
from pipeline.console import command, exit_with, fail, say_at_once
from pipeline.estimate import describe_build
from pipeline.runtime import read_config, read_price
from pipeline.settings import describe, refuse_flags, split_arguments

_USAGE = """usage: python pipeline/run.py [--config FILE] [key.sub=value ...] [--engine local|dask|ray] [--dry-run]
       [--traceback] [-- --beam_option ...]

Builds a data set of masked sentence pairs from text. Without --config it builds the sample set.
Relative paths are relative to the current directory (those of the sample config to the repository).
--dry-run reads a sample and shows the expected rows, bytes, time and disk space, and the price if --price=P gives that
of a CPU hour. It starts and writes nothing.
--engine selects where the workers run. Arguments after -- go to Apache Beam unchanged; --runner=... there selects any
other Beam engine.

Settings of the config file, each also as key.sub=value:
"""


def show_log() -> None:
    """Send log lines to stderr: those of our own modules from level INFO up, those of libraries from level WARNING
    up."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("pipeline").setLevel(logging.INFO)


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments`. Return the exit status: 0, or 2 for an error that the user can fix, or 130 or
    143 if a signal interrupted the command."""
    program = "pipeline/run.py"
    show_log()
    parsed = split_arguments(list(sys.argv[1:] if arguments is None else arguments), program=program, keys=KEYS)
    refuse_flags(parsed.flags, program=program, known=FLAGS)
    if "--help" in parsed.flags:
        print(_USAGE + describe(PipelineConfig))
        return 0
    try:
        price = read_price(parsed.flags, program=program)
        config = read_config(parsed)
        if "--dry-run" in parsed.flags:
            for line in describe_build(config, beam_options=parsed.rest, price=price):
                say_at_once(line)
            return 0
        build(config, beam_options=parsed.rest)
    except (ValueError, OSError) as error:
        if "--traceback" in parsed.flags:
            print(getattr(error, "details", "") or format_exc(), file=sys.stderr)
        return fail(error)
    return 0


if __name__ == "__main__":
    exit_with(main())
