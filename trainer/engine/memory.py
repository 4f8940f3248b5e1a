"""Estimates, before training starts, the GPU memory that training needs and the largest micro-batch that fits a GPU.

The estimate is the sum of this table, for N parameters of e bytes (2 in bf16 and fp16, otherwise 4), W workers over
which the ZeRO stage partitions states, micro-batches of T tokens, and L layers of width h
with a feed-forward width of f.

    weights      e N             (stage 3: e N / W, plus the gathered e N while in use)
    masters      4 N / W         fp32 master weights (stage 0: none, the weights are fp32)
    moments      8 N / W         (stage 0: 8 N; sgd, and muon for hidden matrices: half)
    gradients    e N / W; 4 N / W if a step sums several micro-batches, and then 4 N more in stage 1 with W > 1
                 (stage 0: 4 N)
    buckets      2 x 2^25 e      for gradients that are reduced together (stage 0: 4 N)
    activations  L T (e (8 h + 2 f) + 4 heads + 16), plus embeddings and heads: autograd saves 8 tensors of width h per
                 layer (norm, query, key, value, context, two branches, norm), and GELU's input and output of width f
    loss         a chunk of logits of e bytes, and the word table's gradient in fp32

When backward begins, all activations and the loss exist. When backward ends, all gradients (e N) and few activations
exist. The larger of these two sums is counted for activations and loss together. With recompute=layers, only L T e h of
the layers' activations exist, and those of the layer that backward computes again. The estimate was checked against
BERT-Large, bf16, 32,768 tokens, ZeRO-1 on one H200: 32 GB by torch's count. The CUDA context, NCCL and fragmentation
are not included; a tenth of a GPU's memory stays free for them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from pipeline.settings import ConfigError
from trainer.config import ModelConfig, TrainerConfig
from trainer.data import MicroBatchShape, OpenPhase, PlanError, derive_shape
from trainer.engine.deepspeed_setup import LARGEST_BUCKET
from trainer.model import FLASH_WIDTH, GPU_CHUNK_BYTES, HEAD_WIDTHS, VOCABULARY_MULTIPLE

USABLE_SHARE = 0.9
"""Share of a GPU's memory that an estimate may take."""
MICRO_BATCH_STEP = 1024
"""Limits of micro-batches are tried in steps of this many tokens, so that GPUs of similar memory get the same limit."""
LEAST_STORED = 2048
"""With recompute=auto, a GPU must hold the activations of this many tokens. Smaller products use a GPU badly."""
_GB = 1e9


@dataclass(frozen=True, slots=True)
class Memory:
    """The estimated bytes in use on one GPU at the peak of a step.

    `parts` maps "weights", "masters", "moments", "gradients", "buckets" and "activations and loss" to their bytes (see
    the table of this module).
    """

    parts: dict[str, float]

    @property
    def total(self) -> float:
        """The sum of all parts, in bytes."""
        return sum(self.parts.values())

    def describe(self) -> str:
        """Return the total and its parts as text, like `32.1 GB (weights 0.7, ..., activations and loss 26.4)`."""
        parts = ", ".join(f"{name} {size / _GB:.1f}" for name, size in self.parts.items())
        return f"{self.total / _GB:.1f} GB ({parts})"


def estimate_memory(
    config: TrainerConfig, *, vocabulary_size: int, shape: MicroBatchShape, micro_batches: int, workers: int
) -> Memory:
    """Return the estimate of the memory that training takes on one GPU.

    Each of the `workers` workers has a GPU and processes `micro_batches` micro-batches per step. `shape` has the
    limits of a micro-batch.
    """
    model, stage = config.model, config.zero_stage
    width, rows = model.width, -(-vocabulary_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    numel, size = count_parameters(model, vocabulary_size=vocabulary_size), 4 if config.precision == "fp32" else 2
    shared = numel / workers if stage else numel
    several = micro_batches > 1
    whole = 4 * numel if several and stage == 1 and workers > 1 else 0
    activations, ends = _activations(config, shape=shape, size=size)
    chunk = min(shape.masked, max(1, GPU_CHUNK_BYTES // (size * rows))) * rows
    loss = chunk * size + rows * width * 4
    ends += size * numel
    if config.optimizer.name != "adamw":
        ends = max(ends, 12 * shared)  # fp32 gradient and update, and a number between, of every weight
    return Memory(
        {
            "weights": size * (numel + (shared if stage == 3 else 0)),
            "masters": 4 * shared if stage else 0,
            "moments": 4 * count_moments(config, vocabulary_size=vocabulary_size) * shared / numel,
            "gradients": (4 if several or not stage else size) * shared + whole,
            "buckets": 2 * size * min(LARGEST_BUCKET, numel) if stage else 4 * numel,
            "activations and loss": max(activations + loss, ends),
        }
    )


def judge_memory(config: TrainerConfig, *, phases: Sequence[OpenPhase], card: Card | None) -> str:
    """Return a line of text with the memory that a step needs and the memory of `card`.

    `card` is the smallest GPU that the run may get. It is None if the GPUs are not known, and then the line says so.
    The line is empty if no GPU is used. It is also empty if `card` is None and device=auto on a cluster, because the
    cluster's nodes may have no GPU. Raises ConfigError if the smallest GPU is too small; the message names settings
    that need less memory.
    """
    if not may_use_gpus(config) or (card is None and config.device == "auto" and _is_on_cluster(config)):
        return ""
    memory = largest_memory(config, phases=phases)
    text = f"memory: about {memory.describe()} of each GPU"
    if card is None:
        return f"{text}; the memory of the GPUs is not known"
    if memory.total > card.num_bytes:
        raise ConfigError(f"{text}, and the smallest is {card.describe()}; {name_remedies(config, phases=phases)}")
    text = f"{text}; the smallest is {card.describe()}"
    if memory.total <= USABLE_SHARE * card.num_bytes:
        return text
    return f"{text}; WARNING: more than {USABLE_SHARE:.0%} of it: {name_remedies(config, phases=phases)}"


def name_remedies(config: TrainerConfig, *, phases: Sequence[OpenPhase]) -> str:
    """Return advice for the user: which settings to change so that training needs less memory.

    `phases` (parts of the run with settings of their own) is empty if the caller could not open them.
    """
    remedies = []
    if not phases:
        remedies.append("make micro-batches smaller (batch.lanes, batch.tokens_per_slot)")
    elif smaller := _name_smaller(config, phases=phases):
        remedies.append(smaller)
    begins_anew = bool(remedies)
    if config.zero_stage < 3 and config.workers > 1:
        remedies.append(f"raise zero_stage={config.zero_stage}")
    if config.precision == "fp32":
        remedies.append("set precision=bf16")
    recompute = "" if config.recompute == "layers" else "set recompute=layers"
    if not remedies:
        recompute = f"{recompute}, " if recompute else ""
        remedies.append(
            f"no smaller micro-batches are possible: {recompute}use GPUs with more memory, or a smaller model.size"
        )
    elif recompute:
        remedies.append(recompute)
    kept = ". A run that has begun keeps its micro-batches: changing them needs another output"
    return ", or ".join(remedies) + (kept if begins_anew else "")


def _name_smaller(config: TrainerConfig, *, phases: Sequence[OpenPhase]) -> str:
    """Return advice like `a micro-batch has 128 tokens: double batch.lanes to 4`, or "" if a micro-batch
    cannot be made smaller."""
    opened = max(phases, key=lambda each: each.shape.micro_batch.tokens)
    batch, shape, longest = opened.phase.config.batch, opened.shape, opened.manifest.max_seq_length
    half, lanes = max(longest, shape.micro_batch.tokens // 2), min(2 * shape.lanes, int(shape.pairs))
    size = {"tokens_per_slot": half} if batch.tokens_per_slot is not None else {}
    ways = [{"lanes": lanes, **size}]
    if batch.lanes is None:
        ways.insert(0, {"greatest_slot" if batch.greatest_slot is not None and not size else "tokens_per_slot": half})
    for way in ways:
        with suppress(PlanError):
            masking = opened.phase.config.masking
            smaller = derive_shape(
                opened.manifest,
                batch=batch.model_copy(update=way),
                masking=masking,
                every_token=opened.phase.config.model.is_causal,
            )
            if smaller.micro_batch.tokens < shape.micro_batch.tokens:
                changes = [
                    f"{'double' if value == 2 * shape.lanes else 'raise'} {_place(config, opened, name)} to {value:,}"
                    if name == "lanes"
                    else f"lower {_place(config, opened, name)} to {value:,}"
                    for name, value in way.items()
                ]
                return f"a micro-batch has {shape.micro_batch.tokens:,} tokens: {' and '.join(changes)}"
    return ""


def _place(config: TrainerConfig, opened: OpenPhase, name: str) -> str:
    """Return the config key, like `phases.1.batch.lanes`, with which to set the batch setting `name` in a phase."""
    index = opened.phase.index
    inherited = not config.phases or getattr(config.phases[index].batch, name, None) is None
    if name == "greatest_slot" or not config.phases or (inherited and getattr(config.batch, name) is not None):
        return f"batch.{name}"
    return f"phases.{index}.batch.{name}"


def _is_on_cluster(config: TrainerConfig) -> bool:
    return config.launcher == "ray" and bool(os.environ.get("RAY_ADDRESS"))


def judge_heads(config: TrainerConfig) -> list[str]:
    """Return a list with a line that tells the user if attention's fast kernel does not take heads of this width.

    The list is empty if the kernel takes them, or if no GPU computes in bf16 or fp16. Raises ConfigError if no kernel
    takes them.
    """
    model = config.model
    if not may_use_gpus(config) or config.precision == "fp32" or model.head_width in HEAD_WIDTHS:
        return []
    divisors = [heads for heads in range(1, model.width + 1) if model.width % heads == 0]
    fast = " or ".join(str(heads) for heads in divisors if model.width // heads in HEAD_WIDTHS)
    what = f"model.heads={model.num_heads} and width {model.width} give heads of width {model.head_width}"
    if model.head_width > FLASH_WIDTH:
        least = next(heads for heads in divisors if model.width // heads <= FLASH_WIDTH)
        raise ConfigError(
            f"{what}; attention on a GPU takes at most {FLASH_WIDTH} in {config.precision}: set model.heads "
            f"to {fast or least}, or device=cpu"
        )
    faster = f"; model.heads={fast} would be faster" if fast else ""
    return [f"attention: {what}, which flash attention takes, not the faster kernel{faster}"]


def may_use_gpus(config: TrainerConfig) -> bool:
    """Return whether the workers may run on GPUs.

    The answer is True for device=auto on a cluster, because the cluster's nodes are not known yet.
    """
    if config.device != "auto":
        return config.device == "cuda"
    return _is_on_cluster(config) or torch.cuda.device_count() > 0


def with_largest_micro_batch(config: TrainerConfig, tokens: int | None) -> TrainerConfig:
    """Return `config` with batch.greatest_slot (the maximum tokens of a micro-batch) set to `tokens`."""
    return config.model_copy(update={"batch": config.batch.model_copy(update={"greatest_slot": tokens})})


def largest_memory(config: TrainerConfig, *, phases: Iterable[OpenPhase]) -> Memory:
    """Return the memory estimate for the phase (part of the run) that needs the most memory.

    The estimate is for the smallest number of workers to which the run may shrink.
    """
    workers = config.min_workers or config.workers
    estimates = [
        estimate_memory(
            config,
            vocabulary_size=each.manifest.vocabulary_size,
            shape=each.shape.micro_batch,
            micro_batches=-(-each.shape.lanes // workers),
            workers=workers,
        )
        for each in phases
    ]
    return max(estimates, key=lambda memory: memory.total)


def largest_micro_batch(
    config: TrainerConfig, *, vocabulary_size: int, longest: int, card_bytes: float, most: int
) -> int | None:
    """Return how many tokens the largest micro-batch has that fits a GPU of `card_bytes` bytes, or None if none fits.

    Tries `most` tokens, then fewer in steps of MICRO_BATCH_STEP, but never fewer than `longest`, the length of the data
    set's longest row. With recompute=auto, fewer than LEAST_STORED tokens are not tried before recompute=layers. Always
    assumes one worker, because the result must not depend on the number of workers.
    """
    if config.recompute == "auto":
        ways = (config.model_copy(update={"recompute": way}) for way in ("none", "layers"))
        none, layers = (
            largest_micro_batch(way, vocabulary_size=vocabulary_size, longest=longest, card_bytes=card_bytes, most=most)
            for way in ways
        )
        return none if none is not None and none >= LEAST_STORED else layers
    share = 0.2 if config.masking.source == "stored" else max(0.2, config.masking.greatest_rate + 0.05)
    for tokens in range(most, longest - 1, -MICRO_BATCH_STEP):
        shape = MicroBatchShape(
            tokens=tokens, pairs=-(-tokens // 16), masked=math.ceil(share * tokens), max_seq_length=longest
        )
        needed = estimate_memory(config, vocabulary_size=vocabulary_size, shape=shape, micro_batches=2, workers=1)
        if needed.total <= USABLE_SHARE * card_bytes:
            return tokens
    return None


def resolve_recompute(
    config: TrainerConfig, *, phases: Sequence[OpenPhase], card: Card | None
) -> tuple[TrainerConfig, list[str]]:
    """Replace recompute=auto: by layers if a step would otherwise not fit `card` and then takes less, else by none.

    `card` is the smallest GPU that the run may get, or None if the GPUs are not known. Returns the config, and a list
    with a line for the user if backward computes layers again.
    """
    if config.recompute != "auto":
        return config, []
    none, layers = (config.model_copy(update={"recompute": way}) for way in ("none", "layers"))
    if card is None or not may_use_gpus(config):
        return none, []
    without, with_it = (largest_memory(each, phases=phases) for each in (none, layers))
    if without.total <= USABLE_SHARE * card.num_bytes or with_it.total >= without.total:
        return none, []
    needed = f"without it, a step takes about {without.total / _GB:.1f} GB, and the smallest is {card.describe()}"
    return layers, [f"memory: recompute=layers, so backward computes layers again: {needed}"]


def count_parameters(model: ModelConfig, *, vocabulary_size: int) -> int:
    """Return the number of weights of BERT with its heads for masked-LM and next-sentence prediction. The word matrix,
    which the embedding and the masked-LM head share, counts once."""
    width, inner = model.width, model.feed_forward_width
    rows = -(-vocabulary_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    embeddings = (rows + model.max_positions + 2 + 2) * width
    attention = 4 * (width * width + width)
    layer = attention + (width * inner + inner) + (inner * width + width) + 4 * width
    heads = 2 * (width * width + width) + 2 * width + vocabulary_size + 2 * width + 2
    return embeddings + model.num_layers * layer + heads


def count_moments(config: TrainerConfig, *, vocabulary_size: int) -> int:
    """Return how many numbers the optimizer keeps beside the weights, over all ranks: two for each weight, or one where
    SGD or Muon updates it."""
    model, numel = config.model, count_parameters(config.model, vocabulary_size=vocabulary_size)
    layer = 4 * model.width**2 + 2 * model.width * model.feed_forward_width
    hidden = model.num_layers * layer + 2 * model.width**2  # of the layers, the pooler and the masked-LM head
    return 2 * numel - {"sgd": numel, "muon": hidden}.get(config.optimizer.name, 0)


def _activations(config: TrainerConfig, *, shape: MicroBatchShape, size: int) -> tuple[float, float]:
    """Return the bytes of a micro-batch's activations when backward begins and when it ends, for elements of `size`
    bytes."""
    model, width = config.model, config.model.width
    compiled = config.compile if config.compile is not None else config.zero_stage < 3
    kernels = config.precision != "fp32"
    layer: float = size * (8 * width + 2 * model.feed_forward_width) + 4 * model.num_heads + 16
    if not compiled and not (kernels and model.norm == "post" and config.zero_stage < 3) and model.dropout:
        layer += 2 * width  # dropout masks, one byte per element
    if not kernels:  # attention over padded rows saves another copy of query, key, value and context
        layer += 4 * size * width * shape.sequences * shape.max_seq_length / shape.tokens
    ends = 3 * size * width + 32  # embeddings, and the batch itself
    heads = size * width * (6 * shape.masked + 4 * shape.pairs)
    if config.recompute == "layers":
        kept = shape.tokens * (model.num_layers * size * width + layer + ends) + heads
        return kept, 2 * shape.tokens * layer
    saved = shape.tokens * (model.num_layers * layer + ends) + heads
    return saved, 2 * saved / model.num_layers


@dataclass(frozen=True, slots=True)
class Card:
    """The name and memory of the smallest GPU that a run may get."""

    num_bytes: float
    name: str
    """The GPU's name in messages."""

    def describe(self) -> str:
        """Return the name and memory as text, like `NVIDIA L4 of 24.1 GB`."""
        return f"{self.name} of {self.num_bytes / 1e9:.1f} GB"
