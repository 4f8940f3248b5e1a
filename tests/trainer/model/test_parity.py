"""The same numbers as transformers: logits of both heads, losses, gradients, in both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from model_shapes import SHAPES
from packed import padded_rows, random_batch, unpad
from trainer.config import SHAPE_SETTINGS, ModelConfig
from trainer.hf.pretrained import load_model
from trainer.hf.weight_names import ARCHITECTURES, to_transformers, transformers_config, transformers_names
from trainer.model import BertForPretraining
from trainer.model.batch import Batch

transformers = pytest.importorskip("transformers")

VOCABULARY = 1_000
LENGTHS = [5, 30, 17, 2, 64]
TOLERANCE = 1e-5
VARIANTS = [(norm, activation) for norm in ("post", "pre") for activation in ("gelu", "gelu_tanh")]


def lively_model(*, norm: str, activation: str, **shape: Any) -> BertForPretraining:
    """Weights three times as large as at the start and biases off zero, so that nothing hides in linearity."""
    shape = shape or {"size": "tiny"}
    config = ModelConfig(**shape, norm=norm, activation=activation, dropout=0.0, attention_dropout=0.0)
    model = BertForPretraining(config, vocabulary_size=VOCABULARY, seed=3)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(3.0)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model


def export_weights(model: BertForPretraining, *, folder: Path) -> None:
    tensors = to_transformers(
        dict(model.named_parameters()), norm=model.config.norm, vocabulary_size=model.vocabulary_size
    )
    save_file({name: tensor.detach() for name, tensor in tensors.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})  # fmt: skip
    settings = transformers_config(model.config, vocabulary_size=model.vocabulary_size, pad=0)
    (folder / "config.json").write_text(json.dumps(settings))


def read_with_transformers(folder: Path, *, norm: str) -> Any:
    model, info = getattr(transformers, ARCHITECTURES[norm]).from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model


def assert_same_logits(model: BertForPretraining, *, other: Any, batch: Batch, rows: list[dict[str, Any]]) -> None:
    """`rows`: the batch as transformers takes it, in one padded call or in one call a pair."""
    with torch.no_grad():
        mlm_logits, nsp_logits = model.logits(batch)
        outputs = [other(**row) for row in rows]
    if len(outputs) == 1:
        mlm_expected = unpad(outputs[0].prediction_logits, batch=batch)
    else:
        mlm_expected = torch.cat([output.prediction_logits[0] for output in outputs])
    nsp_expected = torch.cat([output.seq_relationship_logits for output in outputs])
    assert mlm_expected.std() > 0.2
    assert (mlm_logits - mlm_expected[batch.masked_positions]).abs().max() < TOLERANCE
    assert (nsp_logits - nsp_expected).abs().max() < TOLERANCE


@pytest.mark.parametrize(("norm", "activation"), VARIANTS)
@pytest.mark.parametrize("padded", [True, False])
def test_exported_weights_give_our_logits(norm: str, activation: str, padded: bool, tmp_path: Path) -> None:
    """ModernBERT#209; transformers#38870, #41038: exported weights give NaN or lose the tie."""
    model = lively_model(norm=norm, activation=activation).eval()
    export_weights(model, folder=tmp_path)
    other = read_with_transformers(tmp_path, norm=norm).eval()
    batch = random_batch(LENGTHS, vocabulary_size=VOCABULARY)
    rows = padded_rows(batch)
    one_by_one = [
        {name: value[row : row + 1, :length] for name, value in rows.items()} for row, length in enumerate(LENGTHS)
    ]
    assert_same_logits(model, other=other, batch=batch, rows=[rows] if padded else one_by_one)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("shape", ["DistilBERT", "TinyBERT-4", "Table 6, row 2"])
def test_every_shape_gives_our_logits_and_comes_back(shape: str, norm: str, tmp_path: Path) -> None:
    settings = {**SHAPES[shape][0], "max_positions": 100}
    model = lively_model(norm=norm, activation="gelu", **settings).eval()
    export_weights(model, folder=tmp_path)
    other = read_with_transformers(tmp_path, norm=norm).eval()
    batch = random_batch(LENGTHS, vocabulary_size=VOCABULARY)
    assert_same_logits(model, other=other, batch=batch, rows=[padded_rows(batch)])
    assert model.num_parameters() == sum(parameter.numel() for parameter in other.parameters())
    again = load_model(tmp_path)
    assert again.config == model.config.model_copy(update=again.config.model_dump(include=set(SHAPE_SETTINGS)))
    assert again.config.shape == SHAPES[shape][1]
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name


@pytest.mark.parametrize(("norm", "activation"), VARIANTS)
def test_losses_and_gradients_are_those_of_transformers(norm: str, activation: str, tmp_path: Path) -> None:
    model = lively_model(norm=norm, activation=activation)
    export_weights(model, folder=tmp_path)
    other = read_with_transformers(tmp_path, norm=norm).train()
    batch = random_batch(LENGTHS, vocabulary_size=VOCABULARY)
    rows = padded_rows(batch)
    labels = torch.full((sum(LENGTHS),), -100)
    labels[batch.masked_positions] = batch.masked_labels
    padded_labels = torch.full_like(rows["input_ids"], -100)
    for row, part in enumerate(labels.split(LENGTHS)):
        padded_labels[row, : len(part)] = part

    expected = other(**rows, labels=padded_labels, next_sentence_label=batch.nsp_labels)
    expected.loss.backward()
    output = model(batch)
    loss = output.mlm_loss_sum / batch.num_masked + output.nsp_loss_sum / batch.num_pairs
    loss.backward()

    torch.testing.assert_close(loss, expected.loss, rtol=1e-6, atol=1e-6)
    gradients = {name: parameter.grad for name, parameter in other.named_parameters()}
    for name, parameter in model.named_parameters():
        names = transformers_names(name, norm=norm)
        wanted = torch.cat([gradients[target] for target in names])
        assert parameter.grad is not None
        found = parameter.grad[: wanted.shape[0]]
        assert (found - wanted).norm() <= 1e-5 * wanted.norm() + 1e-7, name


@pytest.mark.parametrize(("norm", "activation"), VARIANTS)
def test_a_model_made_by_transformers_gives_its_logits_here(norm: str, activation: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    settings = transformers_config(
        ModelConfig(size="mini", norm=norm, activation=activation), vocabulary_size=VOCABULARY, pad=0
    )
    name = ARCHITECTURES[norm]
    config_class = getattr(transformers, name.replace("ForPreTraining", "Config"))
    other = getattr(transformers, name)(config_class(**{**settings, "initializer_range": 0.06})).eval()
    with torch.no_grad():
        other.cls.predictions.bias.normal_(std=0.1)
    other.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert model.config == ModelConfig(size="mini", norm=norm, activation=activation)
    batch = random_batch(LENGTHS, vocabulary_size=VOCABULARY)
    assert_same_logits(model, other=other, batch=batch, rows=[padded_rows(batch)])


def test_every_parameter_of_transformers_is_one_of_ours() -> None:
    """One to one at BERT-Base's size, and the counts agree."""
    with torch.device("meta"):
        model = BertForPretraining(ModelConfig(size="base"), vocabulary_size=30_522)
        other = transformers.BertForPreTraining(transformers.BertConfig(vocab_size=30_522))
    ours = [target for name, _ in model.named_parameters() for target in transformers_names(name, norm="post")]
    assert sorted(ours) == sorted(name for name, _ in other.named_parameters())
    assert model.num_parameters() == sum(parameter.numel() for parameter in other.parameters())
    assert model.num_parameters(heads=False) == sum(parameter.numel() for parameter in other.bert.parameters())
