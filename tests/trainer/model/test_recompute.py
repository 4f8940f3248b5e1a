"""Activation checkpointing: the same bits, far fewer stored bytes, and nothing in evaluation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from packed import random_batch
from trainer.config import ModelConfig
from trainer.model import BertForPretraining, encoder
from trainer.model.batch import Batch

VOCABULARY = 300
LENGTHS = [40, 64, 7, 30]


def train_once(model: BertForPretraining, batch: Batch) -> tuple[list[Tensor], int]:
    """(loss and gradients of a micro-batch with dropout, bytes that the forward pass stores for backward)."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(3)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = model.train()(batch)
    loss = output.mlm_loss_sum / batch.num_masked + output.nsp_loss_sum / batch.num_pairs
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    size = sum(bytes_ for place, bytes_ in kept.items() if place not in own)
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))], size


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_same_bits_from_few_stored_bytes(norm: str) -> None:
    config = ModelConfig(layers=6, heads=4, hidden_size=128, norm=norm)
    model = BertForPretraining(config, vocabulary_size=VOCABULARY, seed=1)
    batch = random_batch(LENGTHS, vocabulary_size=VOCABULARY)
    wanted, stored = train_once(model, batch)
    model.encoder.recompute = True
    found, again = train_once(model, batch)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    layers = 6 * sum(LENGTHS) * 128 * 4  # the inputs of the layers
    assert layers < again < stored / 5


def test_evaluation_computes_each_layer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = BertForPretraining(ModelConfig(size="tiny"), vocabulary_size=VOCABULARY).eval()
    model.encoder.recompute = True
    monkeypatch.delattr(encoder, "checkpoint")
    with torch.no_grad():
        model(random_batch(LENGTHS, vocabulary_size=VOCABULARY))
