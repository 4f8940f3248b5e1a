"""Random packed batches for the model's tests, and the same pairs as padded rows for transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.model.attention_gpu import attention_column_keys, attention_row_keys, keep_products
from trainer.model.batch import Batch


def random_batch(lengths: Sequence[int], *, vocabulary_size: int, masked_share: float = 0.2, seed: int = 0) -> Batch:
    """Pairs of the given lengths (each at least 2) with random ids, segments, masked positions and labels."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    masked = max(1, round(total * masked_share))
    starts = torch.tensor([0, *lengths]).cumsum(0)

    def ids(count: int, below: int) -> Tensor:
        return torch.randint(0, below, (count,), generator=generator)

    return Batch(
        input_ids=ids(total, vocabulary_size),
        segment_ids=ids(total, 2),
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        offsets=starts.to(torch.int32),
        cls_positions=starts[:-1],
        masked_positions=torch.randperm(total, generator=generator)[:masked].sort().values,
        masked_labels=ids(masked, vocabulary_size),
        masked_weights=torch.ones(masked),
        nsp_labels=ids(len(lengths), 2),
        nsp_weights=torch.ones(len(lengths)),
        max_length=max(lengths),
        num_tokens=total,
        num_pairs=len(lengths),
        num_masked=masked,
        num_labelled=len(lengths),
    )


def on_device(batch: Batch, device: torch.device) -> Batch:
    """The same batch on another device."""
    tensors = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    moved = {name: value.to(device) for name, value in tensors.items() if isinstance(value, Tensor)}
    return dataclasses.replace(batch, **moved)


def padded_rows(batch: Batch, *, pad: int = 0) -> dict[str, Tensor]:
    """input_ids, token_type_ids, attention_mask: [pairs, longest] as transformers takes them."""
    lengths = batch.offsets.diff().tolist()
    rows = {name: torch.zeros(len(lengths), max(lengths), dtype=torch.int64) for name in ("types", "mask")}
    ids = torch.full((len(lengths), max(lengths)), pad)
    for row, (start, length) in enumerate(zip(batch.offsets.tolist(), lengths, strict=False)):
        ids[row, :length] = batch.input_ids[start : start + length]
        rows["types"][row, :length] = batch.segment_ids[start : start + length]
        rows["mask"][row, :length] = 1
    return {"input_ids": ids, "token_type_ids": rows["types"], "attention_mask": rows["mask"]}


def unpad(values: Tensor, *, batch: Batch) -> Tensor:
    """[pairs, longest, ...] -> [T, ...]."""
    lengths = batch.offsets.diff().tolist()
    return torch.cat([values[row, :length] for row, length in enumerate(lengths)])


def with_tokens_of_pair_changed(batch: Batch, *, pair: int, vocabulary_size: int) -> Batch:
    """The same batch with every token and segment of one pair replaced by another."""
    start, stop = batch.offsets[pair : pair + 2].tolist()
    ids, segments = batch.input_ids.clone(), batch.segment_ids.clone()
    ids[start:stop] = (ids[start:stop] + 1) % vocabulary_size
    segments[start:stop] = 1 - segments[start:stop]
    return dataclasses.replace(batch, input_ids=ids, segment_ids=segments)


def keep_mask(seed: Tensor | int, *, head: int, tokens: Tensor, columns: Tensor, threshold: int) -> Tensor:
    """What dropout in attention keeps, bool [tokens, columns]: `tokens` are places in the packed batch; int32 both."""
    rows = attention_row_keys(tokens, head=head, seed=seed)
    return keep_products(rows, attention_column_keys(columns), threshold=threshold)
