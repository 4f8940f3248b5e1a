"""Where a fine-tuning stands: its settings, weights and moments, written whole after every epoch.

Draws depend on (seed, epoch or step) alone, so a run that continues from a state has the bits of one that was not
stopped.
"""

from __future__ import annotations

import io
import json
from typing import Any

import torch

from pipeline import storage
from pipeline.json_text import parse_json
from pipeline.settings import ConfigError, to_tree
from pipeline.storage import Location
from trainer.finetune.config import FinetuneConfig
from trainer.finetune.heads import TaskModel

STATE_NAME = "state.pt"
RESULT_NAME = "result.json"
_FREE = ("output", "device", "lease_timeout_s", "evaluation_batch_size", "keep_model", "launcher",
         "cpus_per_worker", "max_restarts", "tracker", "state_steps")  # fmt: skip
"""Settings that change no result."""


def settings_of(config: FinetuneConfig) -> dict[str, Any]:
    """What a result is of."""
    return {key: value for key, value in to_tree(config).items() if key not in _FREE}


def read_result(folder: Location, *, config: FinetuneConfig) -> dict[str, Any] | None:
    """What an earlier command with the same settings has found; ConfigError where it had others. ValueError if the file
    is damaged."""
    path = storage.locate(folder, RESULT_NAME)
    if storage.find_file(path) is None:
        return None
    try:
        tree: dict[str, Any] = parse_json(storage.read_bytes(path))
        found = dict(tree["config"])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: is damaged; remove it to train again") from error
    _refuse_other(found, config=config, what="the result")
    return tree


def write_result(folder: Location, *, config: FinetuneConfig, result: dict[str, Any]) -> None:
    """Write the result of a run that is done."""
    tree = {"config": settings_of(config), "result": result}
    text = json.dumps(tree, indent=1, allow_nan=False) + "\n"
    storage.write_bytes(storage.join(folder, RESULT_NAME), text.encode("ascii"))


def save_state(folder: Location, *, step: int, model: TaskModel, optimizer: torch.optim.Optimizer,
               config: FinetuneConfig) -> None:  # fmt: skip
    """Replace the state in `folder`."""
    content = io.BytesIO()
    tree = {"config": json.dumps(settings_of(config)), "step": step, "model": model.state_dict(),
            "optimizer": optimizer.state_dict()}  # fmt: skip
    torch.save(tree, content)
    storage.write_bytes(storage.join(folder, STATE_NAME), content.getvalue())


def read_step(folder: Location) -> int:
    """Return the steps of the state in `folder`, or 0 if there is no state. Costs a read of the whole state. Raises
    ValueError if it is damaged."""
    tree = _read_state(folder)
    return 0 if tree is None else int(tree["step"])


def load_state(folder: Location, *, model: TaskModel, optimizer: torch.optim.Optimizer, config: FinetuneConfig) -> int:
    """Go on from the state in `folder`, if there is one; returns the steps that were done."""
    tree = _read_state(folder)
    if tree is None:
        return 0
    _refuse_other(json.loads(tree["config"]), config=config, what="the state")
    model.load_state_dict(tree["model"])
    optimizer.load_state_dict(tree["optimizer"])
    return int(tree["step"])


def remove_state(folder: Location) -> None:
    """Remove the state of a run that is done: its weights are in the model's folder, its moments are needed no more."""
    storage.delete(storage.join(folder, STATE_NAME))


def _read_state(folder: Location) -> dict[str, Any] | None:
    path = storage.locate(folder, STATE_NAME)
    if storage.find_file(path) is None:
        return None
    content = io.BytesIO(storage.read_bytes(path))
    try:
        tree: dict[str, Any] = torch.load(content, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises errors of many kinds
        raise ValueError(f"{path}: is damaged; remove it to train from the beginning") from error
    return tree


def _refuse_other(found: dict[str, Any], *, config: FinetuneConfig, what: str) -> None:
    own = settings_of(config)
    key = next((key for key in own if found.get(key) != own[key]), None)
    if key is not None:
        raise ConfigError(
            f"output={config.output}: holds {what} of a command with {key}={found.get(key)!r}, this one has "
            f"{own[key]!r}; give another output"
        )
