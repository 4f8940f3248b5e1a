"""Reads models that Cloze exported, or that transformers saved as `bert` or `megatron-bert`.

Invariant: all heads of a model that was read give the same logits as the model in the folder. A folder whose model
cannot be reproduced (a missing head, another activation or LayerNorm) is refused. Reading BERT-Large takes a second and
1.3 GB of memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file
from torch import Tensor

from pipeline import storage
from pipeline.json_text import parse_json
from pipeline.storage import Location, locate
from trainer.config import MODEL_SHAPES, ModelConfig
from trainer.hf.vocabulary_check import check_same_vocabulary
from trainer.hf.weight_names import (
    MASKED_ARCHITECTURES,
    MODEL_TYPES,
    PAIR_HEADS,
    POSITION_TABLE,
    WORD_TABLE,
    from_transformers,
    transformers_names,
)
from trainer.model import FEED_FORWARD_FACTOR, LAYER_NORM_EPSILON, NUM_SEGMENTS, BertForPretraining

CONFIG_FILE = "config.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_CHECKPOINT_FILE = "state.json"
"""A file in every checkpoint of a run (trainer/checkpoint/format.py). No model folder has this file."""

_TANH_NAMES = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_python_tanh", "gelu_accurate")
_EXACT_NAMES = ("gelu", "gelu_python")
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_IGNORED = ("bert.embeddings.position_ids",)
_SHAPE = ("size", "max_positions", "activation", "norm")
"""Model settings that must match the weights."""
_SHOWN = 4
_COUNTS = {"vocab_size": (1, 1 << 24), "max_position_embeddings": (8, 65_535)}
"""The least and the greatest value of the numbers in config.json by which memory is allocated. The other numbers must
be those of a known size."""
_SHARES = ("hidden_dropout_prob", "attention_probs_dropout_prob")


class PretrainedError(ValueError):
    """Raised if a folder's weights cannot initialize a model."""


def initialize_from(model: BertForPretraining, *, folder: str | Path, data_tokenizer: str | Path) -> bool:
    """Overwrite a model's weights with those in `folder`. Call this before building the Engine.

    `folder` is an export of Cloze, or of transformers' save_pretrained for BertForPreTraining, BertForMaskedLM or their
    Megatron forms. The vocabulary in `folder` must equal the vocabulary in `data_tokenizer` (DATA/tokenizer). Returns
    whether the folder has pooler and next-sentence head. If the folder lacks both (ForMaskedLM), the weights of the
    model's own pooler and head stay as they are. If the folder does not fit, raises ValueError that names the folder,
    the difference and the remedy, and leaves the model unchanged.
    """
    source = locate(folder)
    settings = read_config(source)
    check_config(model.config, settings=settings, folder=source)
    check_same_vocabulary(source, data_tokenizer=data_tokenizer)
    return load_weights(model, folder=source)


def load_model(folder: str | Path) -> BertForPretraining:
    """Return the model in `folder`, in evaluation mode, fp32, on the CPU. Raises ValueError if it cannot be read."""
    return read_model(folder)[0]


def read_model(folder: str | Path) -> tuple[BertForPretraining, bool]:
    """Return the model in `folder`, and whether the folder has pooler and next-sentence head.

    The model is in evaluation mode, fp32, on the CPU. Raises ValueError if it cannot be read.
    """
    source = locate(folder)
    settings = read_config(source)
    config = model_config(settings, folder=source)
    model = BertForPretraining(config, vocabulary_size=settings.get("vocab_size", 30_522))
    pair_heads = load_weights(model, folder=source)
    return model.eval(), pair_heads


def fit_model(config: ModelConfig, *, folder: str | Path) -> ModelConfig:
    """Return a copy of `config` that fits the model in `folder`.

    Size, positions, activation and norm are those of the folder's model, unless `config` sets them. Raises
    PretrainedError if the folder's model is not supported.
    """
    source = locate(folder)
    return take_shape(config, model_config(read_config(source), folder=source))


def take_shape(config: ModelConfig, other: ModelConfig) -> ModelConfig:
    """Return a copy of `config` in which size, positions, activation and norm are those of `other`, unless `config`
    sets them."""
    shape = {key: getattr(other, key) for key in _SHAPE if key not in config.model_fields_set}
    return config.model_copy(update=shape)


@torch.no_grad()
def load_weights(model: BertForPretraining, *, folder: Location) -> bool:
    """Check all weights in `folder`, then copy them into `model`, whose config must be that of the folder's model.

    Returns whether the folder has pooler and next-sentence head. Raises PretrainedError if a name or shape does not
    fit.
    """
    tensors = _rename(read_tensors(folder), folder=folder)
    norm = model.config.norm
    masked_only = MASKED_ARCHITECTURES[norm] in (read_config(folder).get("architectures") or ())
    pair_heads = not masked_only or any(name.startswith(("bert.pooler.", "cls.seq_")) for name in tensors)
    parameters = {
        name: parameter for name, parameter in model.named_parameters() if pair_heads or not name.startswith(PAIR_HEADS)
    }
    _check_names(tensors, names=list(parameters), norm=norm, folder=folder)
    values: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        value = _join(tensors, name=name, norm=norm, folder=folder)
        expected = list(parameter.shape)
        if name == WORD_TABLE:
            expected[0] = model.vocabulary_size
        cut = name in (WORD_TABLE, POSITION_TABLE, "mlm_head.bias") and value.shape[0] > expected[0]
        value = value[: expected[0]] if cut else value
        if list(value.shape) != expected:
            there = " + ".join(transformers_names(name, norm=norm))
            raise PretrainedError(
                f"{folder}: {there} has shape {list(value.shape)}, this model needs {expected}; "
                f"{_remedy_of_shape(name, found=value.shape[0])}"
            )
        values[name] = value
    for name, parameter in parameters.items():
        value = values[name]
        parameter[: value.shape[0]] = value
    return pair_heads


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
    shape = tuple(
        settings.get(key, default)
        for key, default in (("num_hidden_layers", 12), ("num_attention_heads", 12), ("hidden_size", 768))
    )
    sizes = [size for size, known in MODEL_SHAPES.items() if known == shape]
    if not sizes:
        raise PretrainedError(
            f"{locate(folder, CONFIG_FILE)}: {shape[0]} layers, {shape[1]} heads, width {shape[2]} is not one of the "
            f"sizes {', '.join(MODEL_SHAPES)}"
        )
    config = ModelConfig(
        size=sizes[0],
        max_positions=settings.get("max_position_embeddings", 512),
        activation="gelu" if settings.get("hidden_act", "gelu") in _EXACT_NAMES else "gelu_tanh",
        norm="post" if settings["model_type"] == MODEL_TYPES["post"] else "pre",
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
    heads = f"model.size={config.size} has"
    accepted = _EXACT_NAMES if config.activation == "gelu" else _TANH_NAMES
    checks: Sequence[tuple[str, Any, Sequence[Any], str]] = (
        ("model_type", None, (MODEL_TYPES[config.norm],), f"model.norm={config.norm} means"),
        ("num_hidden_layers", 12, (config.num_layers,), heads),
        ("num_attention_heads", 12, (config.num_heads,), heads),
        ("hidden_size", 768, (config.width,), heads),
        ("intermediate_size", 3072, (FEED_FORWARD_FACTOR * config.width,), heads),
        ("hidden_act", "gelu", accepted, f"model.activation={config.activation} means"),
        ("layer_norm_eps", 1e-12, (LAYER_NORM_EPSILON,), "every model here has"),
        ("type_vocab_size", 2, (NUM_SEGMENTS,), "every model here has"),
        ("position_embedding_type", "absolute", ("absolute", None), "every model here has"),
        ("is_decoder", False, (False,), "every model here has"),
        ("tie_word_embeddings", True, (True,), "every model here has"),
    )
    file = locate(folder, CONFIG_FILE)
    for key, default, allowed, reason in checks:
        found = settings.get(key, default)
        if found not in allowed:
            raise PretrainedError(
                f"{file}: {key} is {found!r}, but {reason} {allowed[0]!r}; change the model section to "
                f"match the folder, or start from another model"
            )


def read_tensors(folder: Location) -> dict[str, Tensor]:
    """Return all tensors of a model folder by their stored names.

    The tensors are in model.safetensors or, if this file is missing, in the files that an index file lists. Raises
    PretrainedError if a file is missing or damaged.
    """
    index, names = locate(folder, INDEX_FILE), [WEIGHTS_FILE]
    if storage.find_file(locate(folder, WEIGHTS_FILE)) is None and storage.find_file(index) is not None:
        try:
            listed = parse_json(storage.read_bytes(index))["weight_map"].values()
            names = [Path(name).name for name in sorted(set(listed))]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise PretrainedError(
                f"{index}: does not list the files of weights ({error}); save the model again"
            ) from error
    tensors: dict[str, Tensor] = {}
    for name in names:
        file = locate(folder, name)
        if storage.find_file(file) is None:
            pickled = " (pytorch_model.bin is a pickle and is not read)" if name == WEIGHTS_FILE else ""
            raise PretrainedError(
                f"{file}: is missing{pickled}; save the model with transformers' save_pretrained, which writes it"
            )
        try:
            tensors.update(load_file(file) if isinstance(file, Path) else load(storage.read_bytes(file)))
        except SafetensorError as error:
            raise PretrainedError(f"{file}: is not a whole safetensors file ({error}); copy it again") from error
    return tensors


def _rename(tensors: Mapping[str, Tensor], *, folder: Location) -> dict[str, Tensor]:
    """Return the tensors by transformers' current names, without the second copies of tied tensors.

    Old names are replaced: LayerNorm.gamma and LayerNorm.beta (early TensorFlow conversions), and names without the
    prefix `bert.`. Raises PretrainedError if a second copy differs from the first.
    """
    renamed: dict[str, Tensor] = {}
    for old, tensor in tensors.items():
        name = old.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name.startswith(("embeddings.", "encoder.", "pooler.")):
            name = f"bert.{name}"
        renamed[name] = tensor
    for name in _IGNORED:
        renamed.pop(name, None)
    for copy, original in _TIED.items():
        tied = renamed.pop(copy, None)
        if tied is not None and not torch.equal(tied, renamed.setdefault(original, tied)):
            raise PretrainedError(
                f"{folder}: {copy} differs from {original}; models here tie them, so its logits cannot be reproduced"
            )
    return renamed


def _check_names(tensors: Mapping[str, Tensor], *, names: Sequence[str], norm: str, folder: Location) -> None:
    wanted = {target for name in names for target in transformers_names(name, norm=norm)}
    missing, unknown = sorted(wanted - tensors.keys()), sorted(tensors.keys() - wanted)
    if missing:
        heads = all(name.startswith(("cls.", "bert.pooler.")) for name in missing)
        remedy = "save it as BertForPreTraining, with both heads" if heads else "the file is incomplete: copy it again"
        raise PretrainedError(f"{folder}: lacks {_some(missing)}; {remedy}")
    if unknown:
        raise PretrainedError(
            f"{folder}: holds {_some(unknown)}, which this model does not have; give the folder of a plain "
            f"BertForPreTraining with the layers of model.size"
        )


def _join(tensors: Mapping[str, Tensor], *, name: str, norm: str, folder: Location) -> Tensor:
    try:
        return from_transformers(tensors, name=name, norm=norm).float()
    except RuntimeError as error:
        raise PretrainedError(f"{folder}: {' + '.join(transformers_names(name, norm=norm))}: {error}") from error


def _remedy_of_shape(name: str, *, found: int) -> str:
    if name == POSITION_TABLE:
        return f"set model.max_positions to at most {found}"
    if name in (WORD_TABLE, "mlm_head.bias"):
        return "its weights and its tokenizer do not belong together"
    return "set model.size to the folder's"


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest
