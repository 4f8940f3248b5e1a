"""The command `python -m pipeline.vocabulary --config FILE key.sub=value`, which trains the vocabulary of a config."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from pipeline import storage
from pipeline.config import KEYS, PipelineConfig
from pipeline.console import command, exit_with, say_at_once
from pipeline.engines import check_engine, open_cluster
from pipeline.runtime import read_config
from pipeline.settings import ConfigError, describe, refuse_flags, split_arguments
from pipeline.sources import list_splits
from pipeline.vocabulary.train import train_vocabulary


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Train the config's vocabulary, unless its file exists.

    The exit status is 2 for bad input, and 130 or 143 if stopped. Arguments after -- go to Apache Beam unchanged.
    """
    program = "python -m pipeline.vocabulary"
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    words = split_arguments(sys.argv[1:] if arguments is None else arguments, program=program, keys=KEYS)
    refuse_flags(words.flags, program=program)
    if "--help" in words.flags:
        usage = f"{program} [--config FILE] [key.sub=value ...] [--engine NAME] [-- --beam_option ...]"
        print(f"{usage}\n\n{main.__doc__}\n\n{describe(PipelineConfig)}")
        return 0
    if words.rest and not words.rest[0].startswith("-"):
        raise ConfigError(f"{program}: only options of Beam may follow '--', found {' '.join(words.rest)}")
    config = read_config(words)
    check_engine(config, beam_options=words.rest)
    if config.vocabulary.path is None:
        raise ConfigError("vocabulary.path is not set; name the file to train into, such as data/vocab.txt")
    path = config.vocabulary.path
    if storage.exists(path):
        print(f"{path} already exists; remove it to train it again")
        return 0
    if words.rest:
        from pipeline.engines import local

        local.note_unknown(words.rest)
    splits = list_splits(config.sources)
    with open_cluster(config, most=len(splits), say=say_at_once) as cluster:
        train_vocabulary(config, splits=splits, path=path, beam_options=words.rest, cluster=cluster)
    return 0


if __name__ == "__main__":
    exit_with(main())
