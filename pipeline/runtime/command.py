"""Reads the command line of a build: the config, with absolute paths, and the price of a CPU hour."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline import storage
from pipeline.config import PipelineConfig
from pipeline.console import Say, say_at_once
from pipeline.settings import Arguments, ConfigError, load_settings, validate
from pipeline.sources import check_brought
from pipeline.storage import expand_path, refuse_lost_path

_ROOT = Path(__file__).resolve().parents[2]
SAMPLE_CONFIG = _ROOT / "pipeline" / "configs" / "sample.yaml"


def read_config(arguments: Arguments, *, say: Say = say_at_once) -> PipelineConfig:
    """Return the config of a command line, with absolute paths. Without --config, return the sample config.

    Relative paths are relative to the current directory, except the paths in the sample config, which are relative to
    the repository. Raises ConfigError for faults of the config, and ValueError if the user must first fetch a source.
    """
    if arguments.file is not None:
        config = load_settings(PipelineConfig, file=arguments.file, overrides=arguments.overrides)
        config = absolute_paths(config, base_of=lambda path: Path.cwd())
        check_brought(config)
        return config
    say(f"no --config given: using {SAMPLE_CONFIG}")
    if not arguments.overrides and not (_ROOT / "data" / "sample").is_dir():
        raise ValueError(f"{_ROOT / 'data' / 'sample'}: the sample corpus is missing; fetch it with `make sample`")
    sample = load_settings(PipelineConfig, file=SAMPLE_CONFIG)
    brought = {sample.output, sample.vocabulary.path, *(path for source in sample.sources for path in source.paths)}
    config = load_settings(PipelineConfig, file=SAMPLE_CONFIG, overrides=arguments.overrides)
    return absolute_paths(config, base_of=lambda path: _ROOT if path in brought else Path.cwd())


def read_price(flags: Sequence[str], *, program: str) -> float | None:
    """Return the price of a CPU hour that the flag --price=P gives, or None if the flag is absent. Raises ValueError if
    P is not a positive number, or if --price is given without --dry-run."""
    given = [flag.partition("=")[2] for flag in flags if flag.partition("=")[0] == "--price"]
    if not given:
        return None
    if "--dry-run" not in flags:
        raise ValueError(f"{program}: --price goes with --dry-run; add it")
    try:
        price = float(given[-1])
    except ValueError:
        price = math.nan
    if not 0 < price < math.inf:
        raise ValueError(f"{program}: --price={given[-1]}: give a number above 0, as in --price=0.05")
    return price


def find_vocabulary(path: str, *, train: bool) -> str:
    """Return the path of the vocabulary's file. If `path` is a folder, return the path of its tokenizer.json or, if it
    has none, of its vocab.txt. Otherwise return `path`, even if there is no such file yet.

    Raises ConfigError if the folder has neither file. If `train` is true, the message proposes a file in the folder for
    the vocabulary to be trained.
    """
    if storage.find_file(path) is not None or not storage.exists(path):
        return path
    for name in ("tokenizer.json", "vocab.txt"):
        if storage.find_file(storage.join(path, name)) is not None:
            return storage.join(path, name)
    into = f", such as {storage.join(path, 'vocab.txt')} to train into" if train else ""
    raise ConfigError(f"vocabulary.path={path}: is a folder without tokenizer.json and vocab.txt; name a file{into}")


def absolute_paths(config: PipelineConfig, *, base_of: Callable[[str], Path]) -> PipelineConfig:
    """Return a copy of the config in which every path is absolute. `base_of` takes a relative path and returns the
    folder that the path is relative to."""

    def absolute(path: str, *, key: str) -> str:
        expanded = expand_path(path, key=key)
        if storage.is_url(expanded):
            return expanded
        refuse_lost_path(expanded, key=key)
        return str(base_of(path) / expanded)

    tree = config.model_dump(mode="json", exclude_unset=True)  # unset fields stay unset
    tree["output"] = absolute(config.output, key="output")
    if config.cleaning.keep_rejects is not None:
        tree["cleaning"]["keep_rejects"] = absolute(config.cleaning.keep_rejects, key="cleaning.keep_rejects")
    if config.vocabulary.path is not None:
        path = absolute(config.vocabulary.path, key="vocabulary.path")
        tree["vocabulary"]["path"] = find_vocabulary(path, train=config.vocabulary.train)
    if config.hold_out:
        tree["hold_out"] = [absolute(path, key="hold_out") for path in config.hold_out]
    for index, (source, entry) in enumerate(zip(config.sources, tree["sources"], strict=True)):
        entry["path"] = [absolute(path, key=f"sources.{index}.path") for path in source.paths]
        if source.clean_documents is not None:
            entry["clean_documents"] = absolute(source.clean_documents, key=f"sources.{index}.clean_documents")
    return validate(PipelineConfig, tree, origin="config")
