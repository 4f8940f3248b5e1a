"""Which parameters are decayed, in which groups, with how many moments, and one step of AdamW by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from model_shapes import SHAPES
from toy_training import make_config
from trainer.config import OptimizerConfig
from trainer.engine.memory import count_moments
from trainer.engine.optimizers import build_optimizer, parameter_groups
from trainer.engine.update_rules import MOMENTS_OF
from trainer.model import BertForPretraining


class TiedModel(nn.Module):
    """A matrix used twice, biases and a LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.dense = nn.Linear(4, 4)
        self.LayerNorm = nn.LayerNorm(4)
        self.decoder = nn.Linear(4, 6)
        self.decoder.weight = self.embedding.weight


def test_only_matrices_decay_and_tied_ones_count_once() -> None:
    model = TiedModel()
    groups = parameter_groups(model, weight_decay=0.01)
    names = {id(p): name for name, p in model.named_parameters()}
    found = {decay: [] for decay in (0.01, 0.0)}
    for group in groups:
        found[group["weight_decay"]] += [names[id(p)] for p in group["params"]]
    assert sorted(found[0.01]) == ["dense.weight", "embedding.weight"]
    assert sorted(found[0.0]) == ["LayerNorm.bias", "LayerNorm.weight", "decoder.bias", "dense.bias"]


def test_what_follows_a_parameter_in_its_group_is_aligned() -> None:
    """All begin at a multiple of 8 elements: one of odd size stands last, the next of odd size in another group."""
    sizes = [(16,), (3,), (8,), (5,), (24,), (2, 4), (3, 3), (4, 4)]
    model = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)
    groups = parameter_groups(model, weight_decay=0.1)
    found = [[tuple(p.shape) for p in group["params"]] for group in groups]
    assert found == [[(2, 4), (4, 4), (3, 3)], [(16,), (8,), (24,), (3,)], [(5,)]]


def test_frozen_parameters_stay_out() -> None:
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    groups = parameter_groups(model, weight_decay=0.1)
    assert [len(group["params"]) for group in groups] == [1]


def test_nothing_to_train_is_refused() -> None:
    model = nn.Linear(3, 2).requires_grad_(False)
    with pytest.raises(ValueError, match="Linear has no trainable parameter"):
        parameter_groups(model, weight_decay=0.1)


def test_one_step_by_hand() -> None:
    """First step of AdamW: w - rate * (decay * w + g / (|g| + epsilon)), decay on the matrix alone."""
    model = nn.Linear(2, 1)
    config = OptimizerConfig(weight_decay=0.1, epsilon=1e-6)
    optimizer = build_optimizer(model, config=config)
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.0]
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    model.weight.grad = torch.tensor([[3.0, -0.5]])
    model.bias.grad = torch.tensor([2.0])
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), weight - 0.01 * (0.1 * weight + torch.tensor([[1.0, -1.0]])))
    torch.testing.assert_close(model.bias.detach(), bias - 0.01)


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("shape", ["TinyBERT-4", "Table 6, row 5"])
def test_moments_are_counted_in_every_shape(name: str, shape: str) -> None:
    """As the optimizer's groups give them, by their rules."""
    config = make_config(model=SHAPES[shape][0], optimizer={"name": name})
    with torch.device("meta"):
        model = BertForPretraining(config.model, vocabulary_size=512, seed=0)
    wanted = sum(
        parameter.numel() * len(MOMENTS_OF[group["rule"]])
        for group in parameter_groups(model, weight_decay=0.0, name=name)
        for parameter in group["params"]
    )
    assert count_moments(config, vocabulary_size=512) == wanted
