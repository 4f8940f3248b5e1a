"""Reads configs that a run or a checkpoint has saved, including those that an earlier version wrote."""

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
    """Return the config in config.yaml of the run directory `run`, or None if this file is missing. Raises ConfigError
    if the config is not valid."""
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
    """Return `tree`, the nested mappings of a saved config, as a TrainerConfig. `origin` names the config in errors.

    Because an earlier version may have saved the config, `logging.tensorboard` becomes `logging.tracker`, DeepSpeed
    keys that are refused now are dropped, and settings without effect are kept. Raises ConfigError if the config is not
    valid.
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
    """Return `tree`, the nested mappings of a saved config, without the settings that have no effect.

    `keep` holds the dotted keys of settings and of whole sections that stay in any case. `origin` names the config in
    errors.
    """
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
