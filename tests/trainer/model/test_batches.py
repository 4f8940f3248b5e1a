"""Batches: layout by hand, dummies of weight zero, constant shapes, and what a shape refuses."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from micro_batches import SPECIAL, make_micro_batch
from trainer.data.micro_batch import NO_LABEL, MicroBatchShape
from trainer.model.batch import to_batch


def test_layout_by_hand_with_constant_shapes() -> None:
    micro_batch = make_micro_batch([5, 3], masked=[2, 0])
    shape = MicroBatchShape(tokens=21, pairs=3, masked=4, max_seq_length=6)
    batch = to_batch(micro_batch, shape=shape, special=SPECIAL, constant_shapes=True)
    assert batch.input_ids.tolist() == [200, 103, 103, 203, 204, 205, 206, 207] + [0] * 13
    assert batch.segment_ids.tolist() == [0, 0, 0, 1, 1, 0, 0, 1] + [0] * 13
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 4, 0, 1, 2] + [0, 1, 2, 3, 4, 5] * 2 + [0]
    assert batch.offsets.tolist() == [0, 5, 8, 14, 20, 21, 21, 21]
    assert batch.cls_positions.tolist() == [0, 5, 0]
    assert batch.masked_positions.tolist() == [1, 2, 0, 0]
    assert batch.masked_labels.tolist() == [201, 202, NO_LABEL, NO_LABEL]
    assert batch.masked_weights.tolist() == [1, 1, 0, 0]
    assert batch.nsp_labels.tolist() == [0, 1, NO_LABEL]
    assert batch.nsp_weights.tolist() == [1, 1, 0]
    assert (batch.max_length, batch.num_tokens, batch.num_pairs, batch.num_masked) == (6, 8, 2, 2)
    assert batch.num_labelled == 2
    assert batch.offsets.dtype == torch.int32
    assert batch.input_ids.dtype == batch.masked_labels.dtype == batch.nsp_labels.dtype == torch.int64
    assert batch.masked_weights.dtype == batch.nsp_weights.dtype == torch.float32


def test_without_constant_shapes_nothing_is_padded() -> None:
    micro_batch = make_micro_batch([5, 3], masked=[2, 1])
    shape = MicroBatchShape(tokens=100, pairs=30, masked=40, max_seq_length=50)
    batch = to_batch(micro_batch, shape=shape, special=SPECIAL, constant_shapes=False)
    assert batch.input_ids.numel() == 8
    assert batch.offsets.tolist() == [0, 5, 8]
    assert batch.masked_positions.tolist() == [1, 2, 6]
    assert batch.masked_weights.tolist() == [1, 1, 1]
    assert batch.max_length == 5


@pytest.mark.parametrize("constant_shapes", [False, True])
def test_empty_micro_batch_is_a_dummy_pair_of_weight_zero(constant_shapes: bool) -> None:
    shape = MicroBatchShape(tokens=12, pairs=2, masked=3, max_seq_length=8)
    batch = to_batch(None, shape=shape, special=SPECIAL, constant_shapes=constant_shapes)
    assert batch.input_ids[:2].tolist() == [SPECIAL.cls, SPECIAL.sep]
    assert batch.masked_weights.numel() == (3 if constant_shapes else 1)
    assert batch.masked_weights.sum() == batch.nsp_weights.sum() == 0
    assert batch.nsp_weights.numel() == (2 if constant_shapes else 1)
    assert batch.offsets.tolist() == ([0, 8, 12, 12, 12] if constant_shapes else [0, 2])
    assert (batch.num_tokens, batch.num_pairs, batch.num_masked, batch.num_labelled) == (0, 0, 0, 0)


def test_a_micro_batch_without_masks_or_labels_still_runs_both_heads() -> None:
    micro_batch = make_micro_batch([4], masked=[0], labelled=False)
    shape = MicroBatchShape(tokens=12, pairs=2, masked=3, max_seq_length=8)
    batch = to_batch(micro_batch, shape=shape, special=SPECIAL, constant_shapes=False)
    assert batch.masked_positions.numel() == batch.masked_weights.numel() == 1
    assert batch.masked_weights.sum() == batch.nsp_weights.sum() == 0
    assert batch.nsp_labels.tolist() == [NO_LABEL]
    assert (batch.num_pairs, batch.num_masked, batch.num_labelled) == (1, 0, 0)


@settings(max_examples=60)
@given(lengths=st.lists(st.integers(3, 20), min_size=1, max_size=30), extra=st.integers(0, 90))
def test_constant_shapes_hold_every_pair_and_cover_every_token(lengths: list[int], extra: int) -> None:
    micro_batch = make_micro_batch(lengths)
    shape = MicroBatchShape(
        tokens=max(20, sum(lengths) + extra), pairs=len(lengths) + extra % 3, masked=40, max_seq_length=20
    )
    batch = to_batch(micro_batch, shape=shape, special=SPECIAL, constant_shapes=True)
    real = to_batch(micro_batch, shape=shape, special=SPECIAL, constant_shapes=False)
    assert batch.offsets.numel() == shape.sequences + 1
    assert batch.offsets[-1] == shape.tokens == batch.input_ids.numel()
    assert int(batch.offsets.diff().min()) >= 0
    assert int(batch.offsets.diff().max()) <= 20
    for name in ("input_ids", "segment_ids", "position_ids", "masked_positions", "masked_labels", "cls_positions"):
        part = getattr(real, name)
        assert torch.equal(getattr(batch, name)[: part.numel()], part)
    # position ids count from 0 inside every sequence, dummies included
    lengths_all = batch.offsets.diff().long()
    starts = torch.repeat_interleave(batch.offsets[:-1].long(), lengths_all)
    assert torch.equal(batch.position_ids, torch.arange(shape.tokens) - starts)


def test_shapes_that_fit_no_pair_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tokens_per_slot=100 .* max_seq_length=512.*at least 512"):
        MicroBatchShape(tokens=100, pairs=1, masked=1, max_seq_length=512)
    with pytest.raises(ValueError, match="pairs=0 must be at least 1"):
        MicroBatchShape(tokens=100, pairs=0, masked=1, max_seq_length=10)


@pytest.mark.gpu
@pytest.mark.parametrize("empty", [False, True])
def test_a_batch_on_the_gpu_is_the_batch_on_the_cpu(empty: bool) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    micro_batch = None if empty else make_micro_batch([5, 3], masked=[2, 0])
    shape = MicroBatchShape(tokens=21, pairs=3, masked=4, max_seq_length=6)
    here = to_batch(micro_batch, shape=shape, special=SPECIAL, constant_shapes=True)
    there = to_batch(micro_batch, shape=shape, special=SPECIAL, constant_shapes=True, device="cuda")
    for field in fields(here):
        mine, other = getattr(here, field.name), getattr(there, field.name)
        if isinstance(mine, torch.Tensor):
            assert other.is_cuda
            assert torch.equal(mine, other.cpu())
        else:
            assert mine == other
