"""Find the memory of the run's GPUs before anything starts, from nvidia-smi or a Ray cluster's resources.

No CUDA context is created, because it would occupy half a GB of a GPU for the whole run.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial

from pipeline.dataset import Manifest
from trainer.config import TrainerConfig
from trainer.data import LARGEST_DERIVED_MICRO_BATCH, Phase
from trainer.engine import MICRO_BATCH_STEP, Card, largest_micro_batch, may_use_gpus, with_largest_micro_batch

GPU_TYPE_PREFIX = "accelerator_type:"
"""Prefix of the Ray resource that states a node's GPU type, for example accelerator_type:H100."""
CARD_GB = {
    "B200": 180,
    "GH200": 96,
    "H200": 141,
    "H100": 80,
    "A100": 40,
    "A100-40G": 40,
    "A100-80G": 80,
    "L40S": 48,
    "L40": 48,
    "L4": 24,
    "A10": 24,
    "A10G": 24,
    "V100": 16,
    "T4": 16,
    "P100": 16,
}
"""Maps Ray's name of a GPU to its memory in 10^9 bytes. If a GPU is sold with different memories, the smallest is
listed."""
TIMEOUT_S = 20


def find_card(config: TrainerConfig) -> Card | None:
    """Return the GPU with the least memory, of this machine or of the Ray cluster at RAY_ADDRESS.

    Return None if device=cpu, if there is no GPU, or if the memory of the GPUs is unknown.
    """
    if config.device == "cpu":
        return None
    address = os.environ.get("RAY_ADDRESS", "") if config.launcher == "ray" else ""
    return find_local_card() if not address else find_cluster_card(_list_resources(config, address=address))


def find_local_card() -> Card | None:
    """Return this machine's GPU with the least memory, according to nvidia-smi.

    If CUDA_VISIBLE_DEVICES is set, only the GPUs listed there count. Return None if no GPU counts, or if nvidia-smi
    fails.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen == "":
        return None
    command = ["nvidia-smi", "--query-gpu=memory.total,name", "--format=csv,noheader,nounits"]
    command += [f"--id={chosen}"] if chosen else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        lines = [line.split(",", 1) for line in done.stdout.splitlines()]
        cards = [Card(float(memory) * 2**20, name.strip()) for memory, name in lines]
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return min(cards, key=lambda card: card.num_bytes, default=None)


def find_cluster_card(resources: Mapping[str, float]) -> Card | None:
    """Return the GPU with the least memory in a cluster that has the logical resources `resources`.

    Return None if the cluster has no GPU or states no GPU type, or if the memory of one of its GPU types is unknown
    (not in CARD_GB).
    """
    kinds = [name.removeprefix(GPU_TYPE_PREFIX) for name in resources if name.startswith(GPU_TYPE_PREFIX)]
    if not resources.get("GPU") or not kinds or any(kind not in CARD_GB for kind in kinds):
        return None
    kind = min(kinds, key=lambda kind: CARD_GB[kind])
    return Card(CARD_GB[kind] * 1e9, kind)


def _list_resources(config: TrainerConfig, *, address: str) -> Mapping[str, float]:
    from trainer.launch import ray_dashboard, ray_train  # Ray is not installed everywhere

    if not address.startswith(("http://", "https://")):
        ray_train.join_cluster(config)  # the run itself uses this connection too
        return ray_train.cluster_resources()
    try:
        return ray_dashboard.list_resources(address)
    except ConnectionError:
        return {}


def stated_card(gpu: str | None) -> Card | None:
    """Return the GPU that the user has named, or None if none is named or its memory is unknown."""
    return Card(CARD_GB[gpu] * 1e9, gpu) if gpu in CARD_GB else None


def resolve_micro_batch(
    config: TrainerConfig,
    *,
    plan_config: TrainerConfig | None,
    phases: Sequence[Phase],
    manifests: Sequence[Manifest],
    card: Card | None = None,
) -> tuple[TrainerConfig, Card | None, list[str]]:
    """Choose `batch.greatest_slot`, the largest number of tokens of a micro-batch, so that it fits the smallest GPU.

    A value that the config states is kept. Otherwise, if the run's data plan (order of rows) has begun, the value is
    copied from `plan_config`, the config with which the plan began. If the plan has not begun, `plan_config` is None.
    The value stays null if no GPU is used, if the memory of the smallest GPU is unknown, or if this memory can hold a
    micro-batch of LARGEST_DERIVED_MICRO_BATCH tokens. `card` is the GPU that the user has named, if any, which counts
    instead of the smallest one that is found. `manifests` holds the manifest of each phase's data set. Returns
    the config, the smallest GPU (None if unknown), and lines for the user.
    """
    batch = config.batch
    derived = [
        manifest
        for phase, manifest in zip(phases, manifests, strict=True)
        if phase.config.batch.tokens_per_slot is None is phase.config.batch.lanes
    ]
    if plan_config is not None or batch.greatest_slot is not None or not derived or not may_use_gpus(config):
        if plan_config is not None and batch.greatest_slot is None:
            config = with_largest_micro_batch(config, plan_config.batch.greatest_slot)
        return config, (card or find_card(config)) if may_use_gpus(config) else None, []
    card = card or find_card(config)
    if card is None:
        most = f"{LARGEST_DERIVED_MICRO_BATCH:,} tokens"
        return config, None, [f"memory: the GPUs' memory is unknown; micro-batches have at most {most}"]
    largest = partial(largest_micro_batch, config, card_bytes=card.num_bytes, most=LARGEST_DERIVED_MICRO_BATCH)
    limits = [largest(vocabulary_size=each.vocabulary_size, longest=each.max_seq_length) for each in derived]
    max_tokens = min(limit if limit is not None else MICRO_BATCH_STEP for limit in limits)
    if max_tokens >= LARGEST_DERIVED_MICRO_BATCH:
        return config, card, []
    line = f"memory: micro-batches of at most {max_tokens:,} tokens fit {card.describe()}; saved as batch.greatest_slot"
    if None in limits:
        line = f"memory: no micro-batch fits {card.describe()} alone; saved batch.greatest_slot={max_tokens}"
    return with_largest_micro_batch(config, max_tokens), card, [line]
