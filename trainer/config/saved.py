"""Reads configs that a run or a checkpoint has saved, also those of an earlier version."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pipeline import storage
from pipeline.settings import ConfigError, parse_yaml, to_tree, validate
from pipeline.storage import Location, locate
from trainer.config.deepspeed_settings import drop_unknown_keys
from trainer.config.effects import find_given_idle
from trainer.config.schema import TrainerConfig

CONFIG_NAME = "config.yaml"


def read_run_config(run: Location) -> TrainerConfig | None:
    """Return the config in RUN/config.yaml, or None if the file is missing. Raises ConfigError if it is not valid."""
    path = locate(run, CONFIG_NAME)
    if storage.find_file(path) is None:
        return None
    try:
        tree = parse_yaml(storage.read_bytes(path).decode("utf-8"), origin=str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: must hold a mapping of settings, found {type(tree).__name__}")
    return validate_saved(tree, origin=str(path))


def validate_saved(tree: Mapping[str, Any], *, origin: str) -> TrainerConfig:
    """Return a saved config, given as a tree of mappings, as a TrainerConfig. `origin` names it in errors.

    An earlier version may have saved it. So `logging.tensorboard` becomes `logging.tracker`, DeepSpeed keys that are
    refused now are dropped, and settings without effect are kept.
    """
    logging = tree.get("logging")
    if isinstance(logging, Mapping) and "tensorboard" in logging:
        tracker = logging.get("tracker") or ("tensorboard" if logging["tensorboard"] else "none")
        others = {key: value for key, value in logging.items() if key != "tensorboard"}
        tree = {**tree, "logging": {**others, "tracker": tracker}}
    if isinstance(tree.get("deepspeed"), Mapping):
        tree = {**tree, "deepspeed": drop_unknown_keys(tree["deepspeed"])}
    return validate(TrainerConfig, tree, origin=origin, context={"saved": True})


def drop_idle_settings(tree: Mapping[str, Any], *, origin: str, keep: Collection[str] = ()) -> dict[str, Any]:
    """Return the tree of a saved config without the settings that have no effect. Keys in `keep`, and below them,
    stay."""
    while True:
        config = validate_saved(tree, origin=origin)
        tree = to_tree(config)
        idle = [key for key in find_given_idle(config) if not any(f"{key}.".startswith(f"{one}.") for one in keep)]
        if not idle:
            return dict(tree)
        for key in idle:
            node: Any = tree
            *parents, name = key.split(".")
            for part in parents:
                node = node[int(part)] if part.isdigit() else node[part]
            del node[name]
