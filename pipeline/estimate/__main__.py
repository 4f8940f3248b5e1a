"""`python -m pipeline.estimate --config FILE key.sub=value`: estimates the cost of a build from a sample."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from pipeline.config import KEYS, PipelineConfig
from pipeline.console import command, exit_with, say_at_once
from pipeline.engines import choose_workers
from pipeline.estimate.cost import estimate, format_estimate
from pipeline.runtime import read_config
from pipeline.settings import ConfigError, describe, refuse_flags, split_arguments
from pipeline.sources import list_splits


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Print what a build will cost, as text or (with --json) as JSON. Return the exit status: 0, or 2 for bad input."""
    program = "python -m pipeline.estimate"
    words = split_arguments(list(sys.argv[1:] if arguments is None else arguments), program=program, keys=KEYS)
    refuse_flags(words.flags, program=program, known=("--json",))
    if "--help" in words.flags:
        print(f"{program} [--config FILE] [key.sub=value ...] [--json]\n\n{main.__doc__}\n")
        print(describe(PipelineConfig))
        return 0
    if words.rest:
        raise ConfigError(f"{program}: nothing may follow '--', found {' '.join(words.rest)}")
    quiet = "--json" in words.flags
    config = read_config(words, say=(lambda line: None) if quiet else say_at_once)
    workers = choose_workers(config, say=lambda line: None)
    found = estimate(config, splits=list_splits(config.sources), workers=workers)
    print(json.dumps(asdict(found), indent=1) if quiet else "\n".join(format_estimate(found)))
    return 0


if __name__ == "__main__":
    exit_with(main())
