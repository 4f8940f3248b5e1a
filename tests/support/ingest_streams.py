"""Plans and streams of all ranks in this process, and what two of them must have in common."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from pathlib import Path

import numpy as np

from pipeline.dataset.manifest import Manifest
from trainer.data.mask_draws import MaskDraws
from trainer.data.micro_batch import MicroBatch, MicroBatchShape
from trainer.data.plan import BatchWarmup, Plan, PlanState
from trainer.data.stream import MicroBatchStream, Step

SHAPE = MicroBatchShape(tokens=300, pairs=12, masked=60, max_seq_length=64)
EXACT_SHAPE = MicroBatchShape(tokens=192, pairs=3, masked=30, max_seq_length=64)

Lanes = dict[int, MicroBatch | None]


def make_plan(
    manifest: Manifest,
    *,
    lanes: int = 4,
    exact_pairs: int | None = None,
    seed: int = 3,
    warmup: BatchWarmup | None = None,
) -> Plan:
    """A pace of `exact_pairs`, which micro-batches hold at any length, or one that they seldom hold less than."""
    shape = SHAPE if exact_pairs is None else EXACT_SHAPE
    pairs = min(7 * lanes, manifest.num_rows("train")) if exact_pairs is None else exact_pairs
    return Plan(manifest, lanes=lanes, shape=shape, seed=seed, pairs=pairs, warmup=warmup)


def run(
    plan: Plan,
    root: Path,
    *,
    world_size: int = 1,
    steps: int,
    state: PlanState | None = None,
    skip_corrupt: bool = False,
    masks: MaskDraws | None = None,
) -> list[tuple[Step, Lanes]]:
    """`steps` steps of all ranks in this process; the first rank's Step, and the micro-batches of every lane."""
    ranks = [
        MicroBatchStream(
            plan, root, rank=rank, world_size=world_size, state=state, skip_corrupt=skip_corrupt, masks=masks
        )
        for rank in range(world_size)
    ]
    made = []
    for _ in range(steps):
        counts = np.sum([stream.pack() for stream in ranks], axis=0)
        each = [stream.commit(counts) for stream in ranks]
        lanes: Lanes = {}
        for step in each:
            assert step.state == each[0].state
            assert len(step.micro_batches) == len(step.lanes) == -(-plan.lanes // world_size)
            for lane, micro_batch in zip(step.lanes, step.micro_batches, strict=True):
                assert lane >= 0 or micro_batch is None
                lanes[lane] = micro_batch
        lanes.pop(-1, None)
        assert sorted(lanes) == list(range(plan.lanes))
        made.append((each[0], lanes))
    for stream in ranks:
        stream.close()
    return made


def assert_same(found: list[tuple[Step, Lanes]], expected: list[tuple[Step, Lanes]]) -> None:
    for (step, lanes), (expected_step, expected_lanes) in zip(found, expected, strict=True):
        for name in ("num_masked", "num_labelled", "num_pairs", "num_tokens", "state"):
            assert getattr(step, name) == getattr(expected_step, name), name
        for lane in lanes:
            assert_same_micro_batch(lanes[lane], expected_lanes[lane])


def assert_same_micro_batch(micro_batch: MicroBatch | None, expected: MicroBatch | None) -> None:
    assert (micro_batch is None) == (expected is None)
    if micro_batch is not None:
        for field in fields(MicroBatch):
            assert np.array_equal(getattr(micro_batch, field.name), getattr(expected, field.name)), field.name


def rows_of(micro_batches: list[MicroBatch]) -> Counter[tuple[int, int, int]]:
    return Counter(
        (int(s), int(g), int(r))
        for micro_batch in micro_batches
        for s, g, r in zip(micro_batch.shards, micro_batch.row_groups, micro_batch.rows, strict=True)
    )


def epochs_and_rows(micro_batch: MicroBatch | None) -> list[tuple[int, ...]]:
    """(epoch, shard, row group, row) of each pair."""
    if micro_batch is None:
        return []
    columns = (micro_batch.epochs, micro_batch.shards, micro_batch.row_groups, micro_batch.rows)
    return list(zip(*(column.tolist() for column in columns), strict=True))
