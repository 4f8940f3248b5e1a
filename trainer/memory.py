"""Memory of a GPU in training, estimated before anything starts; and the largest micro-batch that a card holds.

N parameters of e bytes (2 in bf16 and fp16, otherwise 4), W workers among which a ZeRO stage shares states out,
micro-batches of T tokens, L layers of width h:

    weights      e N             (stage 3: e N / W, and the gathered e N while they are used)
    masters      4 N / W         (stage 0: none, the weights are fp32)
    moments      8 N / W         (stage 0: 8 N)
    gradients    e N / W, or 4 N / W if several micro-batches are summed, and then 4 N more in stage 1 if W > 1
                 (stage 0: 4 N)
    buckets      2 x 2^25 e      of gradients that are reduced together
    activations  L T (16 e h + 4 heads + 16), and what the ends of the model keep: autograd saves 16 tensors of width h
                 a layer (norm, query, key, value, context, two branches, norm; GELU's input and output of 4 h each)
    loss         a chunk of logits in e bytes, and the word table's gradient in fp32

When backward begins, all activations and the loss are there; at its end, all parameters have a gradient of e N: the
larger counts. Held against BERT-Large, bf16, 32,768 tokens, ZeRO-1 on one H200: 32 GB by torch's count. Left out: the
CUDA context, NCCL, and what the allocator cannot use, for which a tenth of a card is left free.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from pipeline.manifest import Manifest
from trainer.cards import Card, find_card
from trainer.config import ModelConfig, TrainerConfig
from trainer.engine_setup import LARGEST_BUCKET
from trainer.model.bert import VOCABULARY_MULTIPLE
from trainer.model.cross_entropy import GPU_CHUNK_BYTES
from trainer.phases import OpenPhase, Phase
from trainer.shapes import GREATEST_DERIVED_SLOT
from trainer.slots import SlotShape

USABLE_SHARE = 0.9
"""Of a card's memory: what an estimate may take."""
SLOT_STEP = 1024
"""Derived limits of a slot are multiples of so many tokens, so that cards of about the same memory have the same."""
_GB = 1e9


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one GPU at the peak of a step, by what they hold."""

    parts: dict[str, float]

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self.parts.values())

    def describe(self) -> str:
        """`32.1 GB (weights 0.7, ..., activations and loss 26.4)`"""
        parts = ", ".join(f"{name} {size / _GB:.1f}" for name, size in self.parts.items())
        return f"{self.total / _GB:.1f} GB ({parts})"


def estimate_memory(
    config: TrainerConfig, *, vocabulary_size: int, slot: SlotShape, micro_batches: int, workers: int
) -> Memory:
    """Memory of one of `workers` GPUs that takes `micro_batches` slots of a shape a step."""
    model, stage = config.model, config.zero_stage
    width, rows = model.width, -(-vocabulary_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    numel, size = count_parameters(model, vocabulary_size=vocabulary_size), 4 if config.precision == "fp32" else 2
    shared = numel / workers if stage else numel
    several = micro_batches > 1
    whole = 4 * numel if several and stage == 1 and workers > 1 else 0
    activations = _activations(config, slot=slot, size=size)
    chunk = min(slot.masked, max(1, GPU_CHUNK_BYTES // (size * rows))) * rows
    loss = chunk * size + rows * width * 4
    ends = size * numel + 2 * activations / model.num_layers  # of backward: all gradients, and one layer's activations
    return Memory(
        {
            "weights": size * (numel + (shared if stage == 3 else 0)),
            "masters": 4 * shared if stage else 0,
            "moments": 8 * shared,
            "gradients": (4 if several or not stage else size) * shared + whole,
            "buckets": 2 * size * min(LARGEST_BUCKET, numel) if stage else 4 * numel,
            "activations and loss": max(activations + loss, ends),
        }
    )


def settle_slot(
    config: TrainerConfig, *, saved: TrainerConfig | None, phases: Sequence[Phase], manifests: Sequence[Manifest]
) -> tuple[TrainerConfig, Card | None, list[str]]:
    """`batch.greatest_slot` by the smallest GPU; as in `saved`, the config that the plan is of, if there is one.

    Also that GPU (not looked for on a cluster if nothing is to be settled), and lines for the user.
    """
    batch, on_cluster = config.batch, config.launcher == "ray" and bool(os.environ.get("RAY_ADDRESS"))
    derived = any(phase.config.batch.tokens_per_slot is None for phase in phases)
    if saved is not None or batch.greatest_slot is not None or not derived or config.device == "cpu":
        if saved is not None and batch.greatest_slot is None:
            config = with_greatest_slot(config, saved.batch.greatest_slot)
        return config, None if on_cluster else find_card(config), []
    card = find_card(config)
    if card is None:
        unknown = config.device == "cuda" or on_cluster or torch.cuda.device_count() > 0
        line = f"memory: that of the GPUs is not known; slots of at most {GREATEST_DERIVED_SLOT:,} tokens"
        return config, None, [line] if unknown else []
    limits = [
        largest_slot(
            config,
            vocabulary_size=manifest.vocabulary_size,
            longest=manifest.max_seq_length,
            card_bytes=card.num_bytes,
            most=GREATEST_DERIVED_SLOT,
        )
        for manifest in manifests
    ]
    greatest = min(limit if limit is not None else SLOT_STEP for limit in limits)
    if greatest >= GREATEST_DERIVED_SLOT:
        return config, card, []
    line = f"memory: slots of at most {greatest:,} tokens fit {card.describe()}; kept as batch.greatest_slot"
    return with_greatest_slot(config, greatest), card, [line]


def too_tight(memory: Memory, card: Card) -> str:
    """What to add where an estimate takes more of a card than it should; empty where it does not."""
    if memory.total <= USABLE_SHARE * card.num_bytes:
        return ""
    return (
        f"; WARNING: more than {USABLE_SHARE:.0%} of it: lower batch.tokens_per_slot in a new output, or raise "
        f"zero_stage with several workers"
    )


def with_greatest_slot(config: TrainerConfig, greatest: int | None) -> TrainerConfig:
    """The config with this `batch.greatest_slot`."""
    return config.model_copy(update={"batch": config.batch.model_copy(update={"greatest_slot": greatest})})


def largest_memory(config: TrainerConfig, *, phases: Iterable[OpenPhase]) -> Memory:
    """Of the phase that needs most, with the fewest workers that the run goes on with."""
    workers = config.min_workers or config.workers
    estimates = [
        estimate_memory(
            config,
            vocabulary_size=each.manifest.vocabulary_size,
            slot=each.shape.slot,
            micro_batches=-(-each.shape.lanes // workers),
            workers=workers,
        )
        for each in phases
    ]
    return max(estimates, key=lambda memory: memory.total)


def largest_slot(
    config: TrainerConfig, *, vocabulary_size: int, longest: int, card_bytes: float, most: int
) -> int | None:
    """Tokens of the largest slot, up to `most`, that fits a card if nothing is shared out among workers, or None.

    As of one worker, whatever their number: the plan must not depend on it. `longest`: the data set's longest row.
    """
    for tokens in range(most, 0, -SLOT_STEP):
        if tokens < longest:
            return None
        slot = SlotShape(tokens=tokens, pairs=-(-tokens // 16), masked=-(-tokens // 5), max_seq_length=longest)
        needed = estimate_memory(config, vocabulary_size=vocabulary_size, slot=slot, micro_batches=2, workers=1)
        if needed.total <= USABLE_SHARE * card_bytes:
            return tokens
    return None


def count_parameters(model: ModelConfig, *, vocabulary_size: int) -> int:
    """Weights of BERT with both heads; the masked-LM head's matrix is the embedding's."""
    width, inner = model.width, 4 * model.width
    rows = -(-vocabulary_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    embeddings = (rows + model.max_positions + 2 + 2) * width
    attention = 4 * (width * width + width)
    layer = attention + (width * inner + inner) + (inner * width + width) + 4 * width
    heads = 2 * (width * width + width) + 2 * width + vocabulary_size + 2 * width + 2
    return embeddings + model.num_layers * layer + heads


def _activations(config: TrainerConfig, *, slot: SlotShape, size: int) -> float:
    """What autograd saves in forward."""
    model, width = config.model, config.model.width
    compiled = config.compile if config.compile is not None else config.zero_stage < 3
    kernels = config.precision != "fp32"
    layer: float = 16 * size * width + 4 * model.num_heads + 16
    if not compiled and not (kernels and model.norm == "post" and config.zero_stage < 3) and model.dropout:
        layer += 2 * width  # masks of bytes
    if not kernels:  # attention over padded rows: query, key, value and context once more
        layer += 4 * size * width * slot.sequences * slot.max_seq_length / slot.tokens
    ends = 3 * size * width + 32  # embeddings, and the batch itself
    heads = size * width * (6 * slot.masked + 4 * slot.pairs)
    return slot.tokens * (model.num_layers * layer + ends) + heads
