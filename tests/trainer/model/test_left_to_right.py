"""Causal attention and the left-to-right model, against references in double precision that share no code with it."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from packed import padded_rows, random_batch, unpad
from trainer.config import ModelConfig
from trainer.hf import to_transformers, transformers_config
from trainer.model import BertForPretraining
from trainer.model.attention import SequenceLayout, attend_padded
from trainer.model.attention_cpu import attend_each

LENGTHS = [5, 2, 17, 9]


def causal_layout(lengths: list[int]) -> SequenceLayout:
    return SequenceLayout(torch.tensor([0, *lengths]).cumsum(0).to(torch.int32), max(lengths), causal=True)


def exact_causal_attention(qkv: Tensor, *, lengths: list[int]) -> Tensor:
    """One query after another in float64."""
    output, start = torch.zeros_like(qkv[:, 0], dtype=torch.float64), 0
    for length in lengths:
        query, key, value = qkv[start : start + length].double().unbind(1)
        for row in range(length):
            for head in range(qkv.shape[2]):
                scores = key[: row + 1, head] @ query[row, head] / math.sqrt(qkv.shape[-1])
                output[start + row, head] = (scores.exp() / scores.exp().sum()) @ value[: row + 1, head]
        start += length
    return output


def test_packed_and_padded_causal_attention_equal_the_reference() -> None:
    torch.manual_seed(0)
    lengths = [3, 0, 9, 1, 6]
    qkv = torch.randn(sum(lengths), 3, 2, 8)
    expected = exact_causal_attention(qkv, lengths=lengths).float()
    packed = attend_each(qkv, lengths=lengths, dropout=0.0, causal=True)
    torch.testing.assert_close(packed, expected, rtol=1e-5, atol=1e-6)
    padded = attend_padded(qkv, layout=causal_layout(lengths), dropout=0.0)
    torch.testing.assert_close(padded, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_of_causal_attention(dropout: float) -> None:
    seed = torch.tensor([3], dtype=torch.int32)
    torch.manual_seed(0)
    exact = torch.randn(6, 3, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda qkv: attend_each(qkv, lengths=[4, 2], dropout=dropout, seed=seed, causal=True), [exact]
    )
    outputs = (
        attend_each(exact, lengths=[4, 2], dropout=dropout, seed=seed, causal=True),
        attend_padded(exact, layout=causal_layout([4, 2]), dropout=dropout, seed=seed),
    )
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_later_tokens_change_no_earlier_logit(norm: str) -> None:
    config = ModelConfig.model_validate({"size": "tiny", "norm": norm, "objective": "left_to_right"})
    model = BertForPretraining(config, vocabulary_size=300, seed=1).eval()
    batch = every_position(random_batch([12], vocabulary_size=300))
    before, _ = model.logits(batch)
    for place in range(1, 12):
        ids = batch.input_ids.clone()
        ids[place:] = (ids[place:] + 7) % 300
        after, _ = model.logits(dataclasses.replace(batch, input_ids=ids))
        assert torch.equal(after[:place], before[:place])
        assert not torch.allclose(after[place:], before[place:])


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_loss_and_gradients_equal_those_of_transformers_in_double_precision(norm: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = ModelConfig.model_validate(
        {"size": "tiny", "norm": norm, "objective": "left_to_right", "dropout": 0.0, "attention_dropout": 0.0}
    )
    model = BertForPretraining(config, vocabulary_size=300, seed=1).double()
    options = {"vocabulary_size": 300, "pair_heads": False}
    settings = transformers_config(config, pad=0, **options)  # type: ignore[arg-type]
    assert settings["is_decoder"] is True
    name = settings.pop("architectures")[0]
    kind = transformers.BertConfig if norm == "post" else transformers.MegatronBertConfig
    settings.pop("dtype")
    other = getattr(transformers, name)(kind(**settings, attn_implementation="eager")).double()
    tensors = to_transformers(dict(model.named_parameters()), norm=norm, **options)  # type: ignore[arg-type]
    missing, unexpected = other.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert all("decoder" in key or "position_ids" in key for key in missing)

    batch = random_batch(LENGTHS, vocabulary_size=300)
    logits = unpad(other(**padded_rows(batch)).logits, batch=batch)
    last = batch.offsets[1:].long() - 1
    places = torch.tensor([place for place in range(batch.num_tokens) if place not in last.tolist()])
    wanted = F.cross_entropy(logits[places], batch.input_ids[places + 1], reduction="sum")
    batch = dataclasses.replace(
        batch,
        masked_positions=places,
        masked_labels=batch.input_ids[places + 1],
        masked_weights=torch.ones(len(places), dtype=torch.float64),
    )
    found = model(batch).mlm_loss_sum
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)
    found.backward()
    wanted.backward()
    own, same = model.embeddings.word.weight.grad, other.get_input_embeddings().weight.grad
    assert own is not None
    torch.testing.assert_close(own[:300], same, rtol=1e-4, atol=1e-6)


def every_position(batch):  # type: ignore[no-untyped-def]
    places = torch.arange(batch.num_tokens)
    return dataclasses.replace(
        batch, masked_positions=places, masked_labels=batch.input_ids, masked_weights=torch.ones(batch.num_tokens)
    )
