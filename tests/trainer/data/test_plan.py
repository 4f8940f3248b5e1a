"""The plan: fair cuts, every row once, an order that only data set, seed and settings decide."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.dataset.manifest import Manifest, Shard
from synthetic import make_manifest, wikipedia_lengths
from trainer.data.micro_batch import MicroBatchShape
from trainer.data.plan import Plan, PlanError, PlanState, lanes_of, permutation, row_permutation

REPOSITORY = Path(__file__).resolve().parents[3]
SHAPE = MicroBatchShape(tokens=2048, pairs=64, masked=400, max_seq_length=128)


class Fake:
    """A data set of lengths only: `groups[g]` are the lengths of the rows of row group g."""

    def __init__(self, groups: Sequence[np.ndarray], *, per_shard: int = 3, longest: int = 128, **facts: Any) -> None:
        self.groups = [np.asarray(group) for group in groups]
        shards = []
        for start in range(0, len(groups), per_shard):
            part = self.groups[start : start + per_shard]
            shards.append(
                Shard(
                    path=f"data/train-{start:05d}.parquet",
                    split="train",
                    rows=sum(group.size for group in part),
                    tokens=sum(int(group.sum()) for group in part),
                    bytes=1,
                    sha256="0",
                    footer_sha256="0",
                    row_group_rows=tuple(group.size for group in part),
                    row_group_tokens=tuple(int(group.sum()) for group in part),
                    max_masked=1,
                    masked=1,
                )
            )
        self.manifest: Manifest = make_manifest(shards, max_seq_length=longest, **facts)

    @classmethod
    def drawn(cls, *, groups: int, rows: int, seed: int = 0, longest: int = 128, **facts: Any) -> Fake:
        generator = np.random.default_rng(seed)
        return cls([wikipedia_lengths(generator, rows, longest) for _ in range(groups)], longest=longest, **facts)

    def plan(
        self,
        *,
        lanes: int,
        seed: int = 7,
        shape: MicroBatchShape = SHAPE,
        pairs: Fraction | int | None = None,
        max_rows: int | None = None,
    ) -> Plan:
        return Plan(self.manifest, lanes=lanes, shape=shape, seed=seed, pairs=pairs or lanes, max_rows=max_rows)

    def rows(self, plan: Plan, epoch: int, *, lanes: Sequence[int], cursors: Sequence[int] | None = None) -> list[Any]:
        """The rows (lane, row group, row) that the lanes read, in the order of their slices."""
        cursors = [0] * len(lanes) if cursors is None else cursors
        slices = plan.slices(epoch, lanes=lanes, cursors=cursors)
        found = []
        for lane, group, start, stop in zip(slices.lane, slices.group, slices.start, slices.stop, strict=True):
            order = row_permutation(
                self.groups[group].size,
                seed=plan.seed,
                epoch=epoch,
                shard=int(plan.group_shard[group]),
                row_group=int(plan.group_index[group]),
            )
            found += [(int(lane), int(group), int(row)) for row in order[start:stop]]
        return found


@pytest.mark.parametrize(("groups", "rows"), [(1, 3000), (4, 1000), (500, 8)])
def test_every_row_is_in_one_of_64_lanes_of_equal_size(groups: int, rows: int) -> None:
    """Shards need not divide by ranks x workers (LDDL (source); academic-budget-bert#22, #26)."""
    data = Fake.drawn(groups=groups, rows=rows)
    plan = data.plan(lanes=64)
    for epoch in (0, 1):
        found = data.rows(plan, epoch, lanes=range(64))
        assert sorted((group, row) for _, group, row in found) == [(g, r) for g in range(groups) for r in range(rows)]
        sizes = np.bincount([lane for lane, _, _ in found], minlength=64)
        assert np.ptp(sizes) <= 1
        assert sizes.tolist() == plan.lane_rows(epoch).tolist()


@settings(max_examples=60)
@given(
    groups=st.integers(1, 6),
    rows=st.integers(3, 30),
    lanes=st.integers(1, 5),
    epoch=st.integers(0, 3),
    seed=st.integers(0, 2**63 - 1),
    done=st.floats(0, 1),
)
def test_lanes_are_independent_and_can_be_entered_anywhere(
    groups: int, rows: int, lanes: int, epoch: int, seed: int, done: float
) -> None:
    lanes = min(lanes, groups * rows)
    data = Fake.drawn(groups=groups, rows=rows, seed=seed % 1000)
    shape = MicroBatchShape(tokens=128 * 2, pairs=2, masked=20, max_seq_length=128)
    plan = data.plan(lanes=lanes, seed=seed, shape=shape)
    together = data.rows(plan, epoch, lanes=range(lanes))
    assert sorted(row[1:] for row in together) == [(g, r) for g in range(groups) for r in range(rows)]
    for lane in range(lanes):
        alone = data.rows(plan, epoch, lanes=[lane])
        assert alone == [row for row in together if row[0] == lane]
        cursor = round(done * (len(alone) + 2))
        assert data.rows(plan, epoch, lanes=[lane], cursors=[cursor]) == alone[cursor:]


def test_blocks_of_several_lanes_come_in_the_order_of_need() -> None:
    data = Fake([np.full(50, 10) for _ in range(40)])
    plan = data.plan(lanes=4)
    cursors = [0, 333, 77, 0]
    slices = plan.slices(0, lanes=range(4), cursors=cursors)
    left = np.array([500 - cursor for cursor in cursors])
    read = np.zeros(4, dtype=np.int64)
    for lane, start, stop in zip(slices.lane, slices.start, slices.stop, strict=True):
        # nobody waits for another lane's rows while it lacks its own
        assert (read >= np.minimum(left, read[lane])).all()
        read[lane] += stop - start
    assert read.tolist() == left.tolist()


def test_epochs_and_seeds_give_other_orders_and_the_same_call_gives_the_same() -> None:
    data = Fake.drawn(groups=5, rows=40)
    plan = data.plan(lanes=3)
    first = data.rows(plan, 0, lanes=range(3))
    assert data.rows(data.plan(lanes=3), 0, lanes=range(3)) == first
    assert data.rows(plan, 1, lanes=range(3)) != first
    assert data.rows(data.plan(lanes=3, seed=8), 0, lanes=range(3)) != first
    assert [row[1:] for row in first] != sorted(row[1:] for row in first)


def test_permutations_are_the_same_for_ever() -> None:
    """Against splitmix64 in whole numbers, and pinned: another order would break every checkpoint."""
    state = int.from_bytes(hashlib.blake2b(b'[12345,"row groups",0]', digest_size=8).digest(), "little")
    draws = []
    for index in range(1, 9):
        bits = (state + index * 0x9E3779B97F4A7C15) % 2**64
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
        draws.append(bits ^ (bits >> 31))
    found = permutation(8, key=(12_345, "row groups", 0)).tolist()
    assert found == sorted(range(8), key=draws.__getitem__)
    assert found == [5, 2, 4, 7, 6, 3, 0, 1]
    assert row_permutation(6, seed=1, epoch=2, shard=3, row_group=4).tolist() == [0, 3, 2, 4, 5, 1]
    assert permutation(0, key=(0,)).size == 0


def test_permutations_are_uniform() -> None:
    counts = np.zeros((5, 5))
    for key in range(4000):
        counts[np.arange(5), permutation(5, key=(key, "uniform"))] += 1
    assert np.abs(counts / 4000 - 0.2).max() < 0.03


def test_mask_sets_cycle_over_epochs() -> None:
    plan = Fake.drawn(groups=1, rows=8, mask_sets=3).plan(lanes=1)
    assert [plan.mask_set(epoch) for epoch in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_lanes_take_turns_at_the_odd_pairs() -> None:
    plan = Fake.drawn(groups=4, rows=25).plan(lanes=4, pairs=10)
    due = [plan.pairs_due(rounds).tolist() for rounds in range(5)]
    assert due == [[0, 0, 0, 0], [2, 2, 3, 3], [5, 5, 5, 5], [7, 7, 8, 8], [10, 10, 10, 10]]
    assert plan.lane_rows(0).tolist() == [25, 25, 25, 25]


@settings(max_examples=60)
@given(
    rows=st.integers(1, 40),
    lanes=st.integers(1, 9),
    share=st.fractions(1, 9, max_denominator=50),
    rounds=st.integers(0, 10**7),
)
def test_the_pace_is_kept_exactly_whatever_it_is(rows: int, lanes: int, share: Fraction, rounds: int) -> None:
    """All lanes together are due what the pace says, none differs by more than a pair, all end an epoch at once."""
    data = Fake.drawn(groups=9, rows=rows)
    lanes = min(lanes, 9 * rows)
    pairs = min(share * lanes, Fraction(9 * rows))
    plan = data.plan(lanes=lanes, pairs=pairs)
    now, then = plan.pairs_due(rounds), plan.pairs_due(rounds + 1)
    assert now.sum() == math.floor(rounds * pairs)
    assert np.ptp(now) <= 1
    assert ((then - now >= int(pairs / lanes)) & (then - now <= math.ceil(math.ceil(pairs) / lanes))).all()
    epoch = math.floor(rounds * pairs / plan.num_rows)
    assert (now >= plan.rows_before(epoch)).all()
    assert (now < plan.rows_before(epoch + 1)).any()
    assert plan.lane_rows(epoch).sum() == plan.num_rows


def test_the_first_rows_of_the_order_are_the_same_in_any_number_of_lanes() -> None:
    data = Fake.drawn(groups=6, rows=20)
    everything = [row[1:] for row in data.rows(data.plan(lanes=1), 0, lanes=[0])]
    for count in (7, 20, 33):
        for lanes in (1, 3, 7):
            plan = data.plan(lanes=lanes, max_rows=count)
            found = data.rows(plan, 0, lanes=range(lanes))
            assert [row[1:] for row in sorted(found, key=lambda row: row[0])] == everything[:count]
            assert plan.num_rows == count
            assert len({group for _, group, _ in found}) == -(-count // 20)


def test_ranks_share_the_lanes_and_make_equally_many_micro_steps() -> None:
    assert [lanes_of(rank, world_size=3, lanes=4) for rank in range(3)] == [[0, 3], [1, -1], [2, -1]]
    for world_size in (1, 2, 3, 4, 5, 8):
        taken = [lanes_of(rank, world_size=world_size, lanes=4) for rank in range(world_size)]
        assert {len(lanes) for lanes in taken} == {-(-4 // world_size)}
        assert sorted(lane for lanes in taken for lane in lanes if lane >= 0) == [0, 1, 2, 3]


def test_hash_covers_data_and_settings() -> None:
    data = Fake.drawn(groups=3, rows=20)
    wider = MicroBatchShape(tokens=2049, pairs=64, masked=400, max_seq_length=128)
    plans = [
        data.plan(lanes=4),
        data.plan(lanes=5),
        data.plan(lanes=4, seed=8),
        data.plan(lanes=4, shape=wider),
        data.plan(lanes=4, pairs=8),
        data.plan(lanes=4, max_rows=8),
        Fake.drawn(groups=3, rows=20, seed=1).plan(lanes=4),
    ]
    assert len({plan.hash for plan in plans}) == len(plans)
    assert data.plan(lanes=4).hash == plans[0].hash


def test_state_goes_through_json() -> None:
    state = PlanState(plan_hash="ab", step=5, epoch=1, cursors=(3, 4), rounds=7)
    assert PlanState.from_tree(json.loads(json.dumps(state.to_tree()))) == state


def test_a_state_of_another_plan_is_refused() -> None:
    data = Fake.drawn(groups=3, rows=20)
    state = data.plan(lanes=4).start()
    data.plan(lanes=4).check(state)
    message = (
        r"step 0 belongs to plan .* seed or batch settings differ.* a new output, where resume_from=RUN keeps weights"
    )
    with pytest.raises(PlanError, match=message):
        data.plan(lanes=4, seed=8).check(state)


def test_lanes_without_rows_are_refused() -> None:
    data = Fake.drawn(groups=2, rows=10)
    with pytest.raises(PlanError, match=r"batch.lanes=21 exceeds the 20 rows.*at most 20"):
        data.plan(lanes=21)
    with pytest.raises(PlanError, match=r"batch.lanes=0 must be at least 1"):
        data.plan(lanes=0)
    assert data.plan(lanes=20).lanes == 20


def test_shapes_that_cannot_hold_the_rows_are_refused() -> None:
    data = Fake.drawn(groups=2, rows=10)
    with pytest.raises(PlanError, match=r"rows of 64 tokens.*max_seq_length=128"):
        data.plan(lanes=1, shape=MicroBatchShape(tokens=2048, pairs=9, masked=99, max_seq_length=64))
    with pytest.raises(PlanError, match=r"9 masked positions.*max_predictions=10"):
        data.plan(lanes=1, shape=MicroBatchShape(tokens=2048, pairs=9, masked=9, max_seq_length=128))


def test_batches_that_cannot_be_are_refused() -> None:
    data = Fake.drawn(groups=2, rows=10)
    with pytest.raises(PlanError, match=r"a batch of 3\.5 pairs needs at least one for each of the 4 lanes"):
        data.plan(lanes=4, pairs=Fraction(7, 2))
    with pytest.raises(PlanError, match=r"no more than the 20 rows"):
        data.plan(lanes=4, pairs=21)


def test_reading_tasks_import_neither_torch_nor_ray() -> None:
    modules = "trainer.data.row_groups, trainer.data.packing, trainer.data.batch_shape"
    code = f"import sys, {modules}; print({{'torch', 'ray'}} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert found.stdout.strip() == "set()"
