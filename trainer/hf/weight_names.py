"""Converts the trainer's weights and settings to transformers' names and back.

trainer.export converts to transformers' names, and pretrained.py converts back. A post-LN model is transformers'
`bert`, and a pre-LN model is `megatron-bert`. All tensors are the same on both sides, with two exceptions: for
transformers, the word table loses the extra rows that round it up, and qkv is split into query, key and value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainer.config import ModelConfig
from trainer.model import LAYER_NORM_EPSILON, NUM_SEGMENTS

WORD_TABLE = "embeddings.word.weight"
POSITION_TABLE = "embeddings.position.weight"

MODEL_TYPES = {"post": "bert", "pre": "megatron-bert"}
ARCHITECTURES = {"post": "BertForPreTraining", "pre": "MegatronBertForPreTraining"}
MASKED_ARCHITECTURES = {"post": "BertForMaskedLM", "pre": "MegatronBertForMaskedLM"}
"""transformers' classes without pooler and next-sentence head, by model.norm."""
CAUSAL_ARCHITECTURES = {"post": "BertLMHeadModel", "pre": "MegatronBertForCausalLM"}
"""transformers' classes with causal attention, with the tensors of MASKED_ARCHITECTURES, by model.norm."""
PAIR_HEADS = ("pooler.", "nsp_head.")
"""Name prefixes of the trainer's parameters that only next-sentence prediction trains."""
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
"""Maps model.activation to transformers' hidden_act: F.gelu, exact or with the tanh approximation."""

_MODULES = {
    "embeddings.word": ("bert.embeddings.word_embeddings",),
    "embeddings.segment": ("bert.embeddings.token_type_embeddings",),
    "embeddings.position": ("bert.embeddings.position_embeddings",),
    "embeddings.norm": ("bert.embeddings.LayerNorm",),
    "encoder.norm": ("bert.encoder.ln",),
    "pooler.dense": ("bert.pooler.dense",),
    "mlm_head.dense": ("cls.predictions.transform.dense",),
    "mlm_head.norm": ("cls.predictions.transform.LayerNorm",),
    "mlm_head": ("cls.predictions",),
    "nsp_head.dense": ("cls.seq_relationship",),
}
_LAYER_MODULES = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output": ("attention.output.dense",),
    "feed_forward.up": ("intermediate.dense",),
    "feed_forward.down": ("output.dense",),
}
_LAYER_NORMS = {
    "post": {"attention_norm": ("attention.output.LayerNorm",), "feed_forward_norm": ("output.LayerNorm",)},
    "pre": {"attention_norm": ("attention.ln",), "feed_forward_norm": ("ln",)},
}
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+)")


def transformers_names(name: str, *, norm: str) -> tuple[str, ...]:
    """Return transformers' names for the trainer's parameter `name`. `norm` is the model's setting model.norm.

    A parameter of a qkv layer has three names. Concatenate the tensors of these names along dimension 0 to get the
    parameter. All other parameters have one name.
    """
    module, _, leaf = name.rpartition(".")
    layer = _LAYER.fullmatch(module)
    if layer is None:
        return tuple(f"{target}.{leaf}" for target in _MODULES[module])
    number, inner = layer.groups()
    targets = (_LAYER_MODULES | _LAYER_NORMS[norm])[inner]
    return tuple(f"bert.encoder.layer.{number}.{target}.{leaf}" for target in targets)


def to_transformers(
    parameters: Mapping[str, Tensor], *, norm: str, vocabulary_size: int, pair_heads: bool = True
) -> dict[str, Tensor]:
    """Return the tensors by name, as save_pretrained of transformers' ForPreTraining class would write them.

    `parameters` are the trainer's parameters by name. The tied decoder is left out, and the word table is cut to its
    first `vocabulary_size` rows. With pair_heads=False the tensors are those of the ForMaskedLM class.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        if name.startswith(PAIR_HEADS) and not pair_heads:
            continue
        value = parameter[:vocabulary_size] if name == WORD_TABLE else parameter
        targets = transformers_names(name, norm=norm)
        for target, part in zip(targets, value.chunk(len(targets)), strict=True):
            tensors[target] = part.contiguous()
    return tensors


def from_transformers(tensors: Mapping[str, Tensor], *, name: str, norm: str) -> Tensor:
    """Return the trainer's parameter `name`, made from transformers' `tensors`.

    The word table is returned without the extra rows that round up the trainer's own table. Raises KeyError if a tensor
    is missing.
    """
    return torch.cat([tensors[target] for target in transformers_names(name, norm=norm)])


def architecture_of(config: ModelConfig, *, pair_heads: bool) -> str:
    """Return the name of the transformers class for a model with this `config`.

    `pair_heads` says whether the model has pooler and next-sentence head.
    """
    if config.is_causal and not pair_heads:
        return CAUSAL_ARCHITECTURES[config.norm]
    return (ARCHITECTURES if pair_heads else MASKED_ARCHITECTURES)[config.norm]


def transformers_config(
    config: ModelConfig, *, vocabulary_size: int, pad: int, pair_heads: bool = True, dtype: str = "float32"
) -> dict[str, Any]:
    """Return the content of config.json for the exported weights. `pad` is the id of the padding token."""
    return {
        "architectures": [architecture_of(config, pair_heads=pair_heads)],
        "attention_probs_dropout_prob": config.attention_dropout,
        "dtype": dtype,
        "hidden_act": ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.dropout,
        "hidden_size": config.width,
        "initializer_range": 0.02,
        "intermediate_size": config.feed_forward_width,
        **({"is_decoder": True} if config.is_causal else {}),
        "layer_norm_eps": LAYER_NORM_EPSILON,
        "max_position_embeddings": config.max_positions,
        "model_type": MODEL_TYPES[config.norm],
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "pad_token_id": pad,
        "tie_word_embeddings": True,
        "type_vocab_size": NUM_SEGMENTS,
        "vocab_size": vocabulary_size,
    }
