"""A model that somebody else made, whose config.json has values that no BERT has: refused by name."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from trainer.config import ModelConfig
from trainer.hf.folder_config import PretrainedError, fit_model
from trainer.hf.pretrained import read_model

CONFIG: dict[str, Any] = {
    "model_type": "bert", "architectures": ["BertForPreTraining"], "hidden_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 512, "vocab_size": 100, "max_position_embeddings": 64,
    "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1, "position_embedding_type": "absolute", "tie_word_embeddings": True,
}  # fmt: skip
VALUES = (-1, 0, 3, 10**9, 10**18, 2**63, 1.5, True, None, "x", [], {}, [1], 1e308, float("nan"))


@pytest.mark.parametrize("key", CONFIG)
def test_no_value_ends_in_a_traceback(key: str, tmp_path: Path) -> None:
    """Every value is replaced by others of any type and size. The weights never fit, so reading ends by an error."""
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    for value in VALUES:
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, key: value}))
        with pytest.raises(PretrainedError) as found:
            read_model(tmp_path)
        assert str(tmp_path) in str(found.value), value
        assert "\n" not in str(found.value), value
        with suppress(PretrainedError):
            fit_model(ModelConfig(), folder=tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("vocab_size", 10**9), ("vocab_size", True), ("hidden_dropout_prob", None), ("architectures", 5)],
)
def test_the_value_is_named(key: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, key: value}))
    with pytest.raises(PretrainedError, match=rf"config\.json: {key} is .*, which no BERT has; export or save"):
        fit_model(ModelConfig(), folder=tmp_path)
