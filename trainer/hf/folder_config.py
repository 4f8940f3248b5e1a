"""Reads the config.json of transformers' model folders, and compares it with a run's model settings.

Invariant: a folder is refused if no settings of the trainer give its model, so weights never get another meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.json_text import parse_json
from pipeline.storage import Location, locate
from trainer.config import SHAPE_SETTINGS, ModelConfig, ModelShape, check_heads, shape_settings
from trainer.hf.weight_names import MODEL_TYPES
from trainer.model import LAYER_NORM_EPSILON, NUM_SEGMENTS

CONFIG_FILE = "config.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
_CHECKPOINT_FILE = "state.json"
"""A file in every checkpoint of a run (trainer/checkpoint/format.py). No model folder has this file."""

_TANH_NAMES = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_python_tanh", "gelu_accurate")
_EXACT_NAMES = ("gelu", "gelu_python")
_KIND = ("max_positions", "activation", "norm", "objective")
"""Model settings that must match the weights, as must the shape."""
_COUNTS = {
    "vocab_size": (1, 1 << 24),
    "max_position_embeddings": (8, 65_535),
    "num_hidden_layers": (1, 1023),
    "num_attention_heads": (1, 1023),
    "hidden_size": (1, 65_535),
    "intermediate_size": (1, (1 << 18) - 1),
}
"""The least and the greatest value of the numbers in config.json by which memory is allocated."""
_SHARES = ("hidden_dropout_prob", "attention_probs_dropout_prob")


class PretrainedError(ValueError):
    """Raised if a folder's weights cannot initialize a model."""


def fit_model(config: ModelConfig, *, folder: str | Path) -> ModelConfig:
    """Return a copy of `config` that fits the model in `folder`.

    Shape, positions, activation and norm are those of the folder's model, with the layers that `config` chooses, unless
    `config` sets them. Raises PretrainedError if the folder's model is not supported, or has fewer positions.
    """
    source = locate(folder)
    other = model_config(read_config(source), folder=source)
    chosen = choose_layers(config, count=other.num_layers, folder=source)
    shape = shape_settings(other.shape._replace(layers=len(chosen)))
    fitted = take_shape(config, other.model_copy(update=shape))
    if fitted.max_positions > other.max_positions:
        raise PretrainedError(
            f"{locate(source, CONFIG_FILE)}: max_position_embeddings is {other.max_positions}, but model.max_positions "
            f"is {fitted.max_positions}; set model.max_positions to at most {other.max_positions}"
        )
    return fitted


def take_shape(config: ModelConfig, other: ModelConfig) -> ModelConfig:
    """Return a copy of `config` in which shape, positions, activation and norm are those of `other`, unless `config`
    sets them. If it sets `size`, the shape is its own."""
    keys = _KIND if "size" in config.model_fields_set else ("size", *SHAPE_SETTINGS, *_KIND)
    shape = {key: getattr(other, key) for key in keys if key not in config.model_fields_set}
    return config.model_copy(update=shape)


def choose_layers(config: ModelConfig, *, count: int, folder: Location) -> tuple[int, ...]:
    """Return which of the `count` layers of the folder's model are taken, in the order of the model's own layers."""
    wanted = config.initialize_layers
    if wanted == "all":
        return tuple(range(count))
    chosen = tuple(range(0, count, 2)) if wanted == "every_other" else wanted
    absent = [layer for layer in chosen if layer >= count]
    if absent:
        raise PretrainedError(
            f"model.initialize_layers={list(chosen)}: {folder} has the layers 0 to {count - 1}, not "
            f"{', '.join(map(str, absent))}; list layers that it has"
        )
    return chosen


def describe_layers(config: ModelConfig, *, settings: Mapping[str, Any]) -> str:
    """Return a text such as `layers 0, 2, 4 of 6`, or "" if all layers are taken. `settings` is the content of the
    folder's config.json."""
    count = settings.get("num_hidden_layers", 12)
    chosen = choose_layers(config, count=count, folder=Path())
    return "" if chosen == tuple(range(count)) else f"layers {', '.join(map(str, chosen))} of {count}"


def read_config(folder: Location) -> dict[str, Any]:
    """Return the content of a model folder's config.json, with transformers' keys.

    Raises PretrainedError if the file is missing, or if its model type is not supported.
    """
    path = locate(folder, CONFIG_FILE)
    if storage.exists(locate(folder, "checkpoints")):
        raise PretrainedError(
            f"{folder}: is a run directory, not a model; export it first: python -m trainer.export {folder} OUT"
        )
    if storage.find_file(path) is None and storage.find_file(locate(folder, _CHECKPOINT_FILE)) is not None:
        raise PretrainedError(
            f"{folder}: is a checkpoint of a run, not a model; export it first: python -m trainer.export {folder} OUT, "
            f"or set resume_from to it, which also takes its moments and steps"
        )
    if storage.find_file(path) is None:
        raise PretrainedError(
            f"{folder}: has no {CONFIG_FILE}; give the folder of an export, or of a BERT saved by transformers"
        )
    try:
        settings = parse_json(storage.read_bytes(path))
    except ValueError as error:
        raise PretrainedError(f"{path}: is not valid JSON ({error}); export or save the model again") from error
    if not isinstance(settings, dict) or settings.get("model_type") not in MODEL_TYPES.values():
        found = settings.get("model_type") if isinstance(settings, dict) else None
        raise PretrainedError(f"{path}: model_type is {found!r}; only {' and '.join(MODEL_TYPES.values())} can be read")
    wrong = _find_wrong_value(settings)
    if wrong:
        raise PretrainedError(
            f"{path}: {wrong} is {str(settings[wrong])[:80]!r}, which no BERT has; export or save the model again"
        )
    return settings


def _find_wrong_value(settings: Mapping[str, Any]) -> str:
    """Return the first key of a config.json whose value has another type than it needs or is out of range, or ""."""
    for key, value in settings.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        least, most = _COUNTS.get(key, (0, 0))
        if most and not (type(value) is int and least <= value <= most):
            return key
        if key in _SHARES and not (is_number and 0 <= value < 1):
            return key
        if key == "architectures" and not isinstance(value, list | None):
            return key
    return ""


def read_longest(folder: Location) -> int:
    """Return how many tokens a row of input may have: the tokenizer's limit, but at most the model's number of
    positions."""
    positions: int = read_config(folder).get("max_position_embeddings", 512)
    path = locate(folder, TOKENIZER_CONFIG_FILE)
    if storage.find_file(path) is None:
        return positions
    try:
        found = parse_json(storage.read_bytes(path)).get("model_max_length")
    except (ValueError, AttributeError) as error:
        raise PretrainedError(f"{path}: is not a JSON object ({error}); save the tokenizer again") from error
    # transformers writes 1e30 if it knows no limit
    return int(min(found, positions)) if isinstance(found, (int, float)) and found >= 1 else positions


def model_config(settings: Mapping[str, Any], *, folder: Location) -> ModelConfig:
    """Return the trainer's model settings for `settings`, the content of a folder's config.json.

    Raises PretrainedError if no settings of the trainer give this model.
    """
    keys = (("num_hidden_layers", 12), ("num_attention_heads", 12), ("hidden_size", 768), ("intermediate_size", 3072))
    try:
        shape = ModelShape(*(settings.get(key, default) for key, default in keys))
        check_heads(shape)
    except ValueError as error:
        raise PretrainedError(f"{locate(folder, CONFIG_FILE)}: {error}") from error
    config = ModelConfig(
        **shape_settings(shape),
        max_positions=settings.get("max_position_embeddings", 512),
        activation="gelu" if settings.get("hidden_act", "gelu") in _EXACT_NAMES else "gelu_tanh",
        norm="post" if settings["model_type"] == MODEL_TYPES["post"] else "pre",
        objective="left_to_right" if settings.get("is_decoder") is True else "masked_next_sentence",
        dropout=float(settings.get("hidden_dropout_prob", 0.1)),
        attention_dropout=float(settings.get("attention_probs_dropout_prob", 0.1)),
    )
    check_config(config, settings=settings, folder=folder)
    return config


def check_config(config: ModelConfig, *, settings: Mapping[str, Any], folder: Location) -> None:
    """Raise PretrainedError if `config` does not describe the model in `folder`.

    Without this check, the trainer's model could give other logits than transformers with the same weights. `settings`
    is the content of the folder's config.json.
    """
    accepted = _EXACT_NAMES if config.activation == "gelu" else _TANH_NAMES
    count = settings.get("num_hidden_layers", 12)
    chosen = choose_layers(config, count=count, folder=folder)
    if config.initialize_layers != "all" and len(chosen) != config.num_layers:
        raise PretrainedError(
            f"model.initialize_layers takes {len(chosen)} of the {count} layers of {folder}, but "
            f"{_reason(config, 'layers')} {config.num_layers}; set model.layers={len(chosen)}"
        )
    num_layers = config.num_layers if config.initialize_layers == "all" else count
    checks: Sequence[tuple[str, Any, Sequence[Any], str]] = (
        ("model_type", None, (MODEL_TYPES[config.norm],), f"model.norm={config.norm} means"),
        ("num_hidden_layers", 12, (num_layers,), _reason(config, "layers")),
        ("num_attention_heads", 12, (config.num_heads,), _reason(config, "heads")),
        ("hidden_size", 768, (config.width,), _reason(config, "hidden_size")),
        ("intermediate_size", 3072, (config.feed_forward_width,), _reason(config, "feed_forward_size")),
        ("hidden_act", "gelu", accepted, f"model.activation={config.activation} means"),
        ("layer_norm_eps", 1e-12, (LAYER_NORM_EPSILON,), "every model here has"),
        ("type_vocab_size", 2, (NUM_SEGMENTS,), "every model here has"),
        ("position_embedding_type", "absolute", ("absolute", None), "every model here has"),
        ("is_decoder", False, (config.is_causal,), f"model.objective={config.objective} means"),
        ("tie_word_embeddings", True, (True,), "every model here has"),
    )
    file = locate(folder, CONFIG_FILE)
    for key, default, allowed, reason in checks:
        found = settings.get(key, default)
        if found not in allowed:
            layers = ", choose layers with model.initialize_layers" if key == "num_hidden_layers" else ""
            raise PretrainedError(
                f"{file}: {key} is {found!r}, but {reason} {allowed[0]!r}; change the model section to "
                f"match the folder{layers}, or start from another model"
            )


def _reason(config: ModelConfig, key: str) -> str:
    """Return the setting that gives the model's own value of `key`, one of SHAPE_SETTINGS, as a subject and a verb."""
    own = getattr(config, key)
    return f"model.size={config.size} has" if own is None else f"model.{key} is"
