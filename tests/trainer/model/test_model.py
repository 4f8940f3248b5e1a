"""The model by itself: sizes, weights, losses, heads, dropout, attention, compilation."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from packed import random_batch
from trainer.config import ModelConfig
from trainer.model import BertForPretraining, PretrainingOutput, attention
from trainer.model.attention import SequenceLayout, attend_padded
from trainer.model.attention_cpu import attend_each
from trainer.model.cross_entropy import NO_LABEL
from trainer.model.dropout import Dropout, draw_seeds

VOCABULARY = 1_000
"""Not a multiple of 64: the word table has 1,024 rows."""
LENGTHS = [5, 30, 17, 2, 64]


def make_model(seed: int = 0, **changes: object) -> BertForPretraining:
    return BertForPretraining(ModelConfig(**{"size": "tiny", **changes}), vocabulary_size=VOCABULARY, seed=seed)


def without_dropout(**changes: object) -> BertForPretraining:
    return make_model(dropout=0.0, attention_dropout=0.0, **changes)


# --- sizes and weights


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(
    ("size", "encoder", "whole"), [("base", 109_482_240, 110_106_428), ("large", 335_141_888, 336_226_108)]
)
def test_parameter_counts_at_30522(size: str, encoder: int, whole: int, norm: str) -> None:
    """As transformers counts BertModel and BertForPreTraining, though the word table here has 30,528 rows."""
    with torch.device("meta"):
        model = BertForPretraining(ModelConfig(size=size, norm=norm), vocabulary_size=30_522)
    assert model.embeddings.word.weight.shape[0] == 30_528
    assert model.num_parameters(heads=False) == encoder
    assert model.num_parameters() == whole


def test_tied_weight_is_one_parameter() -> None:
    model = make_model()
    assert model.mlm_head.tied_weight is model.embeddings.word.weight
    names = [name for name, _ in model.named_parameters()]
    assert names[0] == "embeddings.word.weight"
    assert not any("tied" in name for name in names)
    for name, parameter in model.named_parameters():
        assert (parameter.ndim >= 2) == (name.endswith("weight") and "norm" not in name), name


def test_initial_weights_are_a_truncated_normal() -> None:
    model = make_model(size="mini")
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            assert torch.all(parameter == (0.0 if name.endswith("bias") else 1.0)), name
            continue
        values = parameter[:VOCABULARY]
        assert values.abs().max() <= 0.04, name
        if values.numel() < 10_000:
            continue
        # of a standard normal cut at two deviations: deviation 0.8796, share within one deviation 0.7152
        error = 5 / math.sqrt(values.numel())
        assert values.mean().abs() < 0.02 * error, name
        assert abs(values.std() / 0.02 - 0.8796) < error, name
        assert abs((values.abs() < 0.02).double().mean() - 0.7152) < error, name
        assert values.abs().max() > 0.039, name


def test_initial_weights_depend_on_seed_and_name_alone() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, other = make_model(seed=1), make_model(seed=2)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again, deeper = make_model(seed=1), make_model(seed=1, dropout=0.5, norm="pre")
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, first.get_parameter(name))
        if parameter.ndim >= 2:
            assert not torch.equal(parameter, other.get_parameter(name)), name
            assert torch.equal(parameter, deeper.get_parameter(name)), name
    layers = first.encoder.layers
    assert not torch.equal(layers[0].attention.qkv.weight, layers[1].attention.qkv.weight)


# --- padding of the vocabulary


def test_padding_words_get_no_probability_and_no_gradient() -> None:
    model = without_dropout()
    batch = random_batch(LENGTHS, vocabulary_size=VOCABULARY)
    output = model(batch)
    (output.mlm_loss_sum + output.nsp_loss_sum).backward()
    table = model.embeddings.word.weight
    assert torch.all(table[VOCABULARY:] == 0.0)
    assert table.grad is not None
    assert torch.all(table.grad[VOCABULARY:] == 0.0)
    assert table.grad[:VOCABULARY].abs().sum() > 0
    logits, nsp_logits = model.logits(batch)
    assert logits.shape == (batch.num_masked, VOCABULARY)
    assert nsp_logits.shape == (len(LENGTHS), 2)
    expected = F.cross_entropy(logits, batch.masked_labels, reduction="sum")
    torch.testing.assert_close(output.mlm_loss_sum, expected)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_padding_words_are_harmless_in_half_precision(precision: torch.dtype) -> None:
    model = without_dropout().to(precision)
    output = model(random_batch(LENGTHS, vocabulary_size=VOCABULARY))
    (output.mlm_loss_sum / 20).backward()
    assert all(torch.isfinite(value).all() for value in output)
    assert model.embeddings.word.weight.grad is not None
    assert torch.all(model.embeddings.word.weight.grad[VOCABULARY:] == 0.0)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


# --- losses


def test_losses_are_weighted_sums() -> None:
    model = without_dropout()
    batch = random_batch(LENGTHS, vocabulary_size=VOCABULARY)
    logits, nsp_logits = model.logits(batch)
    masked_weights = torch.rand(batch.num_masked)
    nsp_weights = torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0])
    output = model(dataclasses.replace(batch, masked_weights=masked_weights, nsp_weights=nsp_weights))
    losses = F.cross_entropy(logits, batch.masked_labels, reduction="none")
    nsp_losses = F.cross_entropy(nsp_logits, batch.nsp_labels, reduction="none")
    correct = (logits.argmax(-1) == batch.masked_labels).float()
    nsp_correct = (nsp_logits.argmax(-1) == batch.nsp_labels).float()
    expected = PretrainingOutput(
        (losses * masked_weights).sum(),
        (nsp_losses * nsp_weights).sum(),
        (correct * masked_weights).sum(),
        (nsp_correct * nsp_weights).sum(),
        losses * masked_weights,
    )
    for found, wanted in zip(output, expected, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, wanted)
    assert not output.mlm_correct.requires_grad
    assert not output.mlm_losses.requires_grad
    assert not output.nsp_correct.requires_grad


def test_counts_of_correct_predictions() -> None:
    model = without_dropout()
    batch = random_batch(LENGTHS, vocabulary_size=VOCABULARY)
    logits, nsp_logits = model.logits(batch)
    labels = logits.argmax(-1)
    labels[0] = (labels[0] + 1) % VOCABULARY
    nsp_labels = nsp_logits.argmax(-1)
    nsp_labels[3] = NO_LABEL
    output = model(dataclasses.replace(batch, masked_labels=labels, nsp_labels=nsp_labels))
    assert output.mlm_correct == batch.num_masked - 1
    assert output.nsp_correct == len(LENGTHS) - 1


def test_dummies_count_nothing_and_move_nothing() -> None:
    """Rows without label and weight (an empty micro-batch) give zero loss and zero, finite gradients everywhere."""
    model = without_dropout()
    batch = random_batch([2], vocabulary_size=VOCABULARY)
    empty = dataclasses.replace(
        batch,
        masked_labels=torch.full_like(batch.masked_labels, NO_LABEL),
        masked_weights=torch.zeros_like(batch.masked_weights),
        nsp_labels=torch.full_like(batch.nsp_labels, NO_LABEL),
        nsp_weights=torch.zeros_like(batch.nsp_weights),
    )
    output = model(empty)
    assert all(value == 0.0 for value in output)
    (output.mlm_loss_sum + output.nsp_loss_sum).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.all(parameter.grad == 0.0), name


def test_dummy_sequences_leave_the_real_ones_alone() -> None:
    """Constant shapes: [PAD] sequences and sequences of length zero after the pairs change no bit."""
    model = make_model().eval()
    batch = random_batch(LENGTHS, vocabulary_size=VOCABULARY)
    total = sum(LENGTHS)
    zeros = torch.zeros(20, dtype=torch.int64)
    padded = dataclasses.replace(
        batch,
        input_ids=torch.cat([batch.input_ids, zeros]),
        segment_ids=torch.cat([batch.segment_ids, zeros]),
        position_ids=torch.cat([batch.position_ids, torch.arange(20)]),
        offsets=torch.cat([batch.offsets, torch.tensor([total + 20] * 3, dtype=torch.int32)]),
    )
    torch.testing.assert_close(model.encode(padded)[:total], model.encode(batch), rtol=0, atol=1e-6)
    for found, wanted in zip(model(padded), model(batch), strict=True):
        torch.testing.assert_close(found, wanted)


def test_longer_than_the_positions_is_refused() -> None:
    model = make_model(max_positions=32)
    model(random_batch([32], vocabulary_size=VOCABULARY))
    with pytest.raises(ValueError, match=r"33 tokens exceeds the model's 32 learned positions.*max_positions"):
        model(random_batch([4, 33], vocabulary_size=VOCABULARY))


def test_evaluation_without_gradients_gives_the_same_losses() -> None:
    model = without_dropout()
    batch = random_batch(LENGTHS, vocabulary_size=VOCABULARY)
    with torch.no_grad():
        silent = model(batch)
    assert not silent.mlm_loss_sum.requires_grad
    for found, wanted in zip(silent, model(batch), strict=True):
        assert torch.equal(found, wanted)


# --- dropout


def test_dropout_scales_what_it_keeps_and_its_gradient_alike() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 300, requires_grad=True)
    layer, seeds = Dropout(0.25), draw_seeds(1, device=x.device)[0]
    y = layer(x, seeds=seeds)
    kept = y != 0
    torch.testing.assert_close(y[kept], x[kept] / 0.75)
    assert abs(kept.double().mean() - 0.75) < 0.01
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, kept.float() / 0.75)
    assert torch.equal(layer.eval()(x, seeds=seeds), x)
    assert torch.equal(Dropout(0.0)(x, seeds=seeds), x)


@pytest.mark.parametrize("changes", [{"dropout": 0.0}, {"attention_dropout": 0.0}, {}])
def test_dropout_of_the_model_is_a_function_of_the_global_seed(changes: dict[str, float]) -> None:
    model = make_model(**changes)
    batch = random_batch(LENGTHS, vocabulary_size=VOCABULARY)

    def loss(seed: int) -> float:
        torch.manual_seed(seed)
        return model(batch).mlm_loss_sum.item()

    assert loss(1) == loss(1)
    assert loss(1) != loss(2)
    model.eval()
    assert loss(1) == loss(2)
    assert without_dropout()(batch).mlm_loss_sum == loss(1)


# --- attention


def exact_attention(qkv: Tensor, *, lengths: list[int]) -> Tensor:
    """By the formula, in float64, one query at a time."""
    output = torch.zeros_like(qkv[:, 0], dtype=torch.float64)
    start = 0
    for length in lengths:
        query, key, value = qkv[start : start + length].double().unbind(1)
        for head in range(qkv.shape[2]):
            for row in range(length):
                scores = key[:, head] @ query[row, head] / math.sqrt(qkv.shape[-1])
                shares = scores.exp() / scores.exp().sum()
                output[start + row, head] = shares @ value[:, head]
        start += length
    return output


def layout_of(lengths: list[int]) -> SequenceLayout:
    return SequenceLayout(torch.tensor([0, *lengths]).cumsum(0).to(torch.int32), max(lengths))


@settings(max_examples=25)
@given(lengths=st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(any), seed=st.integers(0, 99))
def test_every_backend_is_attention(lengths: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    qkv = torch.randn(sum(lengths), 3, 2, 8)
    expected = exact_attention(qkv, lengths=lengths).float()
    for found in (
        attend_each(qkv, lengths=lengths, dropout=0.0),
        attend_padded(qkv, layout=layout_of(lengths), dropout=0.0),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_of_the_backends_agree(dropout: float) -> None:
    lengths, seed = [3, 9, 0, 1, 6], torch.tensor([-77], dtype=torch.int32)
    torch.manual_seed(0)
    qkv = torch.randn(sum(lengths), 3, 2, 8, requires_grad=True)
    upstream = torch.randn(sum(lengths), 2, 8)
    outputs = (
        attend_each(qkv, lengths=lengths, dropout=dropout, seed=seed),
        attend_padded(qkv, layout=layout_of(lengths), dropout=dropout, seed=seed),
    )
    (one,), (other,) = (torch.autograd.grad(output, qkv, upstream) for output in outputs)
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_passes_gradcheck(dropout: float) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(6, 3, 2, 4, dtype=torch.float64, requires_grad=True)

    def attend(tensor: Tensor) -> Tensor:
        return attend_each(tensor, lengths=[4, 2], dropout=dropout, seed=torch.tensor([3], dtype=torch.int32))

    assert torch.autograd.gradcheck(attend, [qkv])


def test_attention_dropout_drops_weights_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    qkv = torch.randn(8, 3, 1, 4)
    plain = attend_each(qkv, lengths=[8], dropout=0.0)
    seeds = torch.arange(4_000, dtype=torch.int32).view(-1, 1)
    draws = torch.stack([attend_each(qkv, lengths=[8], dropout=0.5, seed=seed) for seed in seeds])
    assert draws.std(0).min() > 0.05
    torch.testing.assert_close(draws.mean(0), plain, rtol=0, atol=0.08)


@pytest.mark.parametrize(("head_width", "padded_width"), [(26, 32), (64, 64)])
def test_flash_attention_gets_heads_of_widths_that_it_takes(
    head_width: int, padded_width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With torch's operator on a CPU in its place: zeros at the end of heads, but the scale of the real width."""
    seen = []

    def flash(*heads: Tensor, layout: SequenceLayout, dropout: float, scale: float) -> Tensor:
        seen.append((heads[0].shape[-1], scale))
        parts = [part.transpose(0, 1).split(layout.offsets.diff().tolist(), dim=1) for part in heads]
        outputs = [F.scaled_dot_product_attention(*each, scale=scale) for each in zip(*parts, strict=True)]
        return torch.cat(outputs, dim=1).transpose(0, 1)

    monkeypatch.setattr(attention, "_flash_forward", flash)
    torch.manual_seed(0)
    qkv = torch.randn(sum(LENGTHS), 3, 2, head_width, requires_grad=True)
    layout = SequenceLayout(torch.tensor([0, *LENGTHS]).cumsum(0).to(torch.int32), max(LENGTHS))
    found = attention.attend_flash(qkv, layout=layout, dropout=0.0)
    wanted = attend_padded(qkv, layout=layout, dropout=0.0)
    torch.testing.assert_close(found, wanted)
    gradients = [torch.autograd.grad(output.square().sum(), qkv)[0] for output in (found, wanted)]
    torch.testing.assert_close(*gradients)
    assert seen == [(padded_width, head_width**-0.5)]
