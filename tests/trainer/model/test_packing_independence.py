"""Packed pairs never see each other: to the last bit, forward and backward, in every backend."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packed import random_batch, with_tokens_of_pair_changed
from trainer.config import ModelConfig
from trainer.model import BertForPretraining
from trainer.model.attention import SequenceLayout, attend_padded
from trainer.model.attention_cpu import attend_each

VOCABULARY = 500
MODELS = {
    norm: BertForPretraining(ModelConfig(size="tiny", norm=norm), vocabulary_size=VOCABULARY).eval()
    for norm in ("post", "pre")
}

lengths_lists = st.lists(st.integers(2, 40), min_size=2, max_size=6)


@pytest.mark.parametrize("norm", ["post", "pre"])
@settings(max_examples=20)
@given(lengths=lengths_lists, data=st.data())
def test_changing_one_pair_leaves_the_others_bit_equal(norm: str, lengths: list[int], data: st.DataObject) -> None:
    model = MODELS[norm]
    pair = data.draw(st.integers(0, len(lengths) - 1))
    batch = random_batch(lengths, vocabulary_size=VOCABULARY)
    changed = with_tokens_of_pair_changed(batch, pair=pair, vocabulary_size=VOCABULARY)
    start, stop = batch.offsets[pair : pair + 2].tolist()
    with torch.no_grad():
        before, after = model.encode(batch), model.encode(changed)
        (mlm_before, nsp_before), (mlm_after, nsp_after) = model.logits(batch), model.logits(changed)
    others = torch.ones(sum(lengths), dtype=torch.bool)
    others[start:stop] = False
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[start:stop], after[start:stop])
    kept = others[batch.masked_positions]
    assert torch.equal(mlm_before[kept], mlm_after[kept])
    rows = torch.arange(len(lengths)) != pair
    assert torch.equal(nsp_before[rows], nsp_after[rows])


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_pair_in_company_is_the_pair_alone(norm: str) -> None:
    """Other sizes of the matrix products round otherwise: equal to 1e-6, not to the bit."""
    lengths = [3, 40, 17, 2, 8]
    batch = random_batch(lengths, vocabulary_size=VOCABULARY)
    model = MODELS[norm]
    with torch.no_grad():
        together = model.encode(batch).split(lengths)
        ids, segments = batch.input_ids.split(lengths), batch.segment_ids.split(lengths)
        for length, hidden, pair_ids, pair_segments in zip(lengths, together, ids, segments, strict=True):
            alone = dataclasses.replace(
                random_batch([length], vocabulary_size=VOCABULARY), input_ids=pair_ids, segment_ids=pair_segments
            )
            torch.testing.assert_close(model.encode(alone), hidden, rtol=0, atol=1e-5)


def test_the_order_of_pairs_does_not_matter() -> None:
    lengths = [3, 40, 17]
    batch = random_batch(lengths, vocabulary_size=VOCABULARY)
    order = torch.cat([torch.arange(43, 60), torch.arange(0, 3), torch.arange(3, 43)])
    moved = dataclasses.replace(
        batch,
        input_ids=batch.input_ids[order],
        segment_ids=batch.segment_ids[order],
        position_ids=batch.position_ids[order],
        offsets=torch.tensor([0, 17, 20, 60], dtype=torch.int32),
    )
    with torch.no_grad():
        there, here = MODELS["post"].encode(moved), MODELS["post"].encode(batch)
    torch.testing.assert_close(there, here[order], rtol=0, atol=1e-6)


def test_a_loss_on_one_pair_moves_no_token_of_another() -> None:
    lengths = [6, 9, 5]
    model = MODELS["post"]
    batch = random_batch(lengths, vocabulary_size=VOCABULARY)
    ids = torch.arange(sum(lengths))  # every token has a row of the word table to itself
    own = dataclasses.replace(batch, input_ids=ids, masked_positions=torch.tensor([8]))
    (gradient,) = torch.autograd.grad(model.encode(own)[8].square().sum(), model.embeddings.word.weight)
    moved = gradient[: sum(lengths)].abs().sum(1) > 0
    assert moved.tolist() == [False] * 6 + [True] * 9 + [False] * 5


@pytest.mark.parametrize("backend", ["each", "padded"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_nothing_crosses_not_even_nan(backend: str, poison: float) -> None:
    lengths = [4, 7, 3]
    layout = SequenceLayout(torch.tensor([0, 4, 11, 14], dtype=torch.int32), 7)

    def run(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        qkv = values.clone().requires_grad_()
        if backend == "each":
            output = attend_each(qkv, lengths=lengths, dropout=0.0)
        else:
            output = attend_padded(qkv, layout=layout, dropout=0.0)
        (gradient,) = torch.autograd.grad(output.sum(), qkv)
        return output.detach(), gradient

    torch.manual_seed(0)
    clean = torch.randn(14, 3, 2, 8)
    poisoned = clean.clone()
    poisoned[:4] = poison
    for before, after in zip(run(clean), run(poisoned), strict=True):
        assert torch.equal(before[4:], after[4:])


def test_dropout_of_a_pair_depends_on_lengths_alone() -> None:
    """In training too: with the same seed, other content elsewhere leaves a pair's outputs bit-equal."""
    model = BertForPretraining(ModelConfig(size="tiny"), vocabulary_size=VOCABULARY).train()
    batch = random_batch([9, 30, 12], vocabulary_size=VOCABULARY)
    changed = with_tokens_of_pair_changed(batch, pair=1, vocabulary_size=VOCABULARY)
    with torch.no_grad():
        torch.manual_seed(5)
        before = model.encode(batch)
        torch.manual_seed(5)
        after = model.encode(changed)
    assert torch.equal(before[:9], after[:9])
    assert torch.equal(before[39:], after[39:])
