"""Reads models that Cloze exported, or that transformers saved as `bert` or `megatron-bert`.

Invariant: all heads of a model that was read give the same logits as the model in the folder. A folder whose model
cannot be reproduced (another activation or LayerNorm, a missing tensor) is refused. Only initialize_from may take fewer
layers, another vocabulary, or a model without some of the heads. Reading BERT-Large takes a second and 1.3 GB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file
from torch import Tensor

from pipeline import storage
from pipeline.json_text import parse_json
from pipeline.storage import Location, locate
from trainer.config import ModelConfig
from trainer.hf.folder_config import (
    CONFIG_FILE,
    PretrainedError,
    check_config,
    choose_layers,
    describe_layers,
    model_config,
    read_config,
)
from trainer.hf.token_rows import TokenRows, match_tokens
from trainer.hf.vocabulary_check import check_same_vocabulary, read_vocabulary
from trainer.hf.weight_names import (
    PAIR_HEADS,
    POSITION_TABLE,
    WORD_TABLE,
    from_transformers,
    transformers_names,
)
from trainer.model import BertForPretraining

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_IGNORED = ("bert.embeddings.position_ids",)
_LACKED = (
    ("ForMaskedLM", ("pooler.", "nsp_head.")),
    ("LMHeadModel", ("pooler.", "nsp_head.")),
    ("ForCausalLM", ("pooler.", "nsp_head.")),
    ("ForNextSentencePrediction", ("mlm_head.",)),
    ("Model", ("pooler.", "nsp_head.", "mlm_head.")),
)
"""Prefixes of the parameters that a folder may lack, by the end of the name of its class (architectures)."""
_HEADS = {
    "pooler.": ("bert.pooler.", "pooler"),
    "nsp_head.": ("cls.seq_relationship.", "next-sentence head"),
    "mlm_head.": ("cls.predictions.", "masked-LM head"),
}
"""Maps such a prefix to the prefix of transformers' names and to the head's name in messages."""
_LAYER = re.compile(r"bert\.encoder\.layer\.(\d+)\.(.+)")
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class GivenWeights:
    """What initialize_from took from a folder."""

    pair_heads: bool
    """Whether the folder has pooler and next-sentence head."""
    notes: tuple[str, ...]
    """Texts that tell the user what was not copied as it is: chosen layers, rows of the word table, drawn heads."""


def initialize_from(model: BertForPretraining, *, folder: str | Path, data_tokenizer: str | Path) -> GivenWeights:
    """Overwrite a model's weights with those in `folder`. Call this before building the Engine.

    `folder` is an export of Cloze, or of transformers' save_pretrained for BertForPreTraining, BertForMaskedLM,
    BertForNextSentencePrediction, BertModel or their Megatron forms. If it lacks pooler or heads, the model keeps its
    own. The vocabulary in `folder` must equal the vocabulary in `data_tokenizer` (DATA/tokenizer), unless
    model.new_tokens says how to start the rows of the word table. If the folder does not fit, raises ValueError that
    names the folder, the difference and the remedy, and leaves the model unchanged.
    """
    source = locate(folder)
    rows, notes = compare_folder(model.config, folder=source, data_tokenizer=data_tokenizer)
    lacked = load_weights(model, folder=source, rows=rows, may_lack_heads=True)
    if lacked:
        notes.append(f"drawn: {', '.join(_HEADS[prefix][1] for prefix in lacked)}")
    return GivenWeights(not set(PAIR_HEADS) & set(lacked), tuple(notes))


def compare_folder(
    config: ModelConfig, *, folder: Location, data_tokenizer: str | Path
) -> tuple[TokenRows | None, list[str]]:
    """Check that a model with this `config` can start from the model in `folder`, without reading the weights.

    Returns from which rows of the folder's word table the data set's tokens start (None: the vocabularies are equal),
    and texts that tell the user what is not copied as it is. Raises ValueError if shape or vocabulary do not fit.
    """
    settings = read_config(folder)
    check_config(config, settings=settings, folder=folder)
    _check_size(config, count=settings.get("num_hidden_layers", 12), folder=folder)
    rows = _find_token_rows(config, folder=folder, data_tokenizer=data_tokenizer)
    notes = [describe_layers(config, settings=settings), "" if rows is None else rows.describe()]
    return rows, [note for note in notes if note]


def _check_size(config: ModelConfig, *, count: int, folder: Location) -> None:
    """Raise PretrainedError if the file of weights is too short for `count` layers of the shape of `config`, before
    these take memory."""
    path = locate(folder, WEIGHTS_FILE)
    file, shape = storage.find_file(path), config.shape
    least = count * (4 * shape.width**2 + 2 * shape.width * shape.feed_forward)  # a byte for each weight
    if file is not None and file.size < least:
        raise PretrainedError(
            f"{path}: has {file.size:,} bytes, too few for the {count} layers of width {shape.width} in {CONFIG_FILE}; "
            f"copy both again"
        )


def _find_token_rows(config: ModelConfig, *, folder: Location, data_tokenizer: str | Path) -> TokenRows | None:
    if config.new_tokens == "refuse":
        remedy = ", or set model.new_tokens=pieces, which finds rows by the texts of tokens"
        check_same_vocabulary(folder, data_tokenizer=data_tokenizer, remedy=remedy)
        return None
    if read_vocabulary(folder).tokens == read_vocabulary(data_tokenizer).tokens:
        return None
    return match_tokens(folder, data_tokenizer=data_tokenizer, with_pieces=config.new_tokens == "pieces")


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
    _check_size(config, count=config.num_layers, folder=source)
    model = BertForPretraining(config, vocabulary_size=settings.get("vocab_size", 30_522))
    lacked = load_weights(model, folder=source)
    return model.eval(), not lacked


@torch.no_grad()
def load_weights(
    model: BertForPretraining, *, folder: Location, rows: TokenRows | None = None, may_lack_heads: bool = False
) -> tuple[str, ...]:
    """Check all weights in `folder`, then copy them into `model`, whose config must fit the folder's model.

    `rows` says from which rows of the folder's word table the rows of the model start (None: from the rows of the same
    ids). Returns the prefixes of the parameters that the folder lacks, which stay as they are: those of pooler and
    next-sentence head in a ForMaskedLM folder, with `may_lack_heads` also those of other classes. Raises
    PretrainedError if a name or shape does not fit, or if a number is not finite.
    """
    settings = read_config(folder)
    norm = model.config.norm
    tensors = _rename(read_tensors(folder), folder=folder)
    if model.config.initialize_layers != "all":
        count = settings.get("num_hidden_layers", 12)
        layers = choose_layers(model.config, count=count, folder=folder)
        tensors = _take_layers(tensors, layers=layers, count=count)
    lacked = _find_lacked(tensors, settings=settings, norm=norm, may_lack_heads=may_lack_heads)
    parameters = {name: one for name, one in model.named_parameters() if not name.startswith(lacked)}
    _check_names(tensors, names=list(parameters), norm=norm, folder=folder)
    values: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        value = _join(tensors, name=name, norm=norm, folder=folder)
        there = " + ".join(transformers_names(name, norm=norm))
        if not value.isfinite().all():
            raise PretrainedError(f"{folder}: {there} has numbers that are not finite; export an earlier checkpoint")
        expected, by_token = list(parameter.shape), name in (WORD_TABLE, "mlm_head.bias")
        if name == WORD_TABLE:
            expected[0] = model.vocabulary_size
        if by_token and rows is not None and value.shape[0] >= rows.num_rows and list(value.shape[1:]) == expected[1:]:
            value = rows.take(value, drawn=parameter)
        elif (by_token or name == POSITION_TABLE) and value.shape[0] > expected[0]:
            value = value[: expected[0]]
        if list(value.shape) != expected:
            raise PretrainedError(
                f"{folder}: {there} has shape {list(value.shape)}, this model needs {expected}; "
                f"{_remedy_of_shape(name, found=value.shape[0])}"
            )
        values[name] = value
    for name, parameter in parameters.items():
        value = values[name]
        parameter[: value.shape[0]] = value
    return lacked


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


def _take_layers(tensors: Mapping[str, Tensor], *, layers: Sequence[int], count: int) -> dict[str, Tensor]:
    """Return the tensors with layer `layers[i]` of the folder's model as layer i, and without the others of its `count`
    layers."""
    numbered = {name: _LAYER.fullmatch(name) for name in tensors}
    taken = {name: tensors[name] for name, found in numbered.items() if found is None or int(found[1]) >= count}
    for own, layer in enumerate(layers):
        for name, found in numbered.items():
            if found is not None and int(found[1]) == layer:
                taken[f"bert.encoder.layer.{own}.{found[2]}"] = tensors[name]
    return taken


def _find_lacked(
    tensors: Mapping[str, Tensor], *, settings: Mapping[str, Any], norm: str, may_lack_heads: bool
) -> tuple[str, ...]:
    """Return the prefixes of the parameters that the folder's class does not have, and of which no tensor is there."""
    names = settings.get("architectures") or ()
    lacked = next((prefixes for end, prefixes in _LACKED if any(str(name).endswith(end) for name in names)), ())
    if not may_lack_heads and "mlm_head." in lacked:
        return ()
    return tuple(prefix for prefix in lacked if not any(name.startswith(_HEADS[prefix][0]) for name in tensors))


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
    return "set model.size, or the widths that replace its own, to the folder's"


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest
