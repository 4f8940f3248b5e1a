"""Features packed one behind another, as the model takes them, with their targets. No token is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from pipeline import draws
from trainer.data import NO_LABEL
from trainer.finetune.examples import Kind
from trainer.finetune.features import Feature
from trainer.model import Batch


@dataclass(frozen=True, slots=True)
class TaskBatch:
    """Features on a device."""

    tokens: Batch
    """S sequences: the rows of all features."""
    targets: Tensor
    """classification, pair, choice: int64 [N]; regression: float32 [N]; tagging: int64 [T]; qa: int64 [N, 2]."""
    num_features: int
    """N."""


def pack(features: Sequence[Feature], *, kind: Kind, device: torch.device) -> TaskBatch:
    """Lay features out as tensors."""
    rows = [row for feature in features for row in feature.rows]
    lengths = [len(row.ids) for row in rows]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    ids = torch.tensor(list(chain.from_iterable(row.ids for row in rows)))
    segments = torch.cat([torch.arange(len(row.ids)) >= row.first_length for row in rows]).long()
    positions = torch.cat([torch.arange(length) for length in lengths])
    none, no_weights = torch.empty(0, dtype=torch.int64, device=device), torch.empty(0, device=device)
    tokens = Batch(
        input_ids=ids.to(device),
        segment_ids=segments.to(device),
        position_ids=positions.to(device),
        offsets=offsets.to(device, torch.int32),
        cls_positions=offsets[:-1].to(device),
        masked_positions=none,
        masked_labels=none,
        masked_weights=no_weights,
        nsp_labels=none,
        nsp_weights=no_weights,
        max_length=max(lengths),
        num_tokens=len(ids),
        num_pairs=len(rows),
        num_masked=0,
        num_labelled=0,
    )
    targets = [feature.target for feature in features]
    if kind == "tagging":
        values = torch.tensor([each for target in targets if isinstance(target, tuple) for each in target])
    else:
        values = torch.tensor(targets, dtype=torch.float32 if kind == "regression" else torch.int64)
    return TaskBatch(tokens, values.to(device), len(features))


def count_targets(features: Sequence[Feature], *, kind: Kind) -> int:
    """Return over how many targets the loss of these features is a mean: tagging: words with a label, else features."""
    if kind != "tagging":
        return len(features)
    return sum(each != NO_LABEL for feature in features if isinstance(feature.target, tuple) for each in feature.target)


def draw_order(num_features: int, *, seed: int, epoch: int) -> list[int]:
    """The order of an epoch (0, 1, ...): a function of these three."""
    return [int(each) for each in draws.generator(seed, "finetune", "order", epoch).permutation(num_features)]


def slice_evenly(features: Sequence[Feature], *, size: int) -> Iterator[Sequence[Feature]]:
    """One part after another of `size` features, the last what is left."""
    for start in range(0, len(features), size):
        yield features[start : start + size]
