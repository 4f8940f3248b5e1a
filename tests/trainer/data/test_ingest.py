"""The stream: the same steps for any world size, from any step on, each row once an epoch."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingest_streams import SHAPE, assert_same, epochs_and_rows, make_plan, rows_of, run
from pipeline.dataset.manifest import Manifest
from synthetic import write_data_set
from trainer.data.micro_batch import NO_LABEL, MicroBatch, MicroBatchShape
from trainer.data.plan import Plan, PlanError, PlanState
from trainer.data.readers import _chunks
from trainer.data.row_groups import make_slices, read_slice
from trainer.data.stream import MicroBatchStream, validation_plan


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    root = tmp_path_factory.mktemp("ingest")
    return root, write_data_set(root, shards=3, row_groups=3, rows=21, mask_sets=3)


@pytest.mark.parametrize("exact_pairs", [None, 10])
def test_the_steps_are_the_same_for_any_world_size(data: tuple[Path, Manifest], exact_pairs: int | None) -> None:
    root, manifest = data
    plan = make_plan(manifest, exact_pairs=exact_pairs)
    expected = run(plan, root, steps=70)
    assert expected[-1][0].state.epoch >= 2
    for world_size in (2, 3, 4, 5, 8):
        assert_same(run(plan, root, world_size=world_size, steps=70), expected)


@pytest.mark.parametrize("exact_pairs", [None, 10])
def test_every_epoch_holds_every_row_once_with_its_mask_set(
    data: tuple[Path, Manifest], exact_pairs: int | None
) -> None:
    """7/8 of the shards skipped by a wrong rank, unequal batches (academic-budget-bert#22, #26)."""
    root, manifest = data
    plan = make_plan(manifest, exact_pairs=exact_pairs)
    tables = [[pq.ParquetFile(root / path).read_row_group(group).to_pylist() for group in range(3)]
              for path in plan.shard_paths]  # fmt: skip
    steps = run(plan, root, steps=120)
    for lane in range(4):
        per_epoch = plan.lane_rows(0)[lane]
        taken, epoch = 0, 0
        for _, lanes in steps:
            micro_batch = lanes[lane]
            if micro_batch is None:
                continue
            masks = np.split(
                np.arange(micro_batch.num_masked), np.searchsorted(micro_batch.masked_positions, micro_batch.starts[1:])
            )
            for i, (shard, group, row) in enumerate(
                zip(micro_batch.shards, micro_batch.row_groups, micro_batch.rows, strict=True)
            ):
                if taken == per_epoch:
                    taken, epoch = 0, epoch + 1
                    per_epoch = plan.lane_rows(epoch)[lane]
                taken += 1
                assert micro_batch.epochs[i] == epoch
                stored = tables[shard][group][row]
                begin = micro_batch.starts[i]
                ids = micro_batch.input_ids[begin : begin + micro_batch.lengths[i]].copy()
                assert (micro_batch.masked_positions[masks[i]] - begin).tolist() == stored["masked_positions"][
                    epoch % 3
                ]
                assert ids[stored["masked_positions"][epoch % 3]].tolist() == stored["masked_inputs"][epoch % 3]
                ids[stored["masked_positions"][epoch % 3]] = micro_batch.masked_labels[masks[i]]
                assert ids.tolist() == stored["input_ids"]
                assert micro_batch.first_lengths[i] == stored["first_length"]
                assert micro_batch.nsp_labels[i] == stored["next_sentence_label"]
        assert epoch >= 3

    taken_rows = Counter(
        key for _, lanes in steps for micro_batch in lanes.values() for key in epochs_and_rows(micro_batch)
    )
    for epoch in range(3):
        expected = {(epoch, s, g, r) for s in range(3) for g in range(3) for r in range(21)}
        assert {key for key in taken_rows if key[0] == epoch} == expected
    assert set(taken_rows.values()) == {1}


def test_no_step_is_short_at_the_end_of_an_epoch(data: tuple[Path, Manifest]) -> None:
    """189 rows at a pace of 28 are 6.75 steps; micro-batches of 300 tokens hold 4 pairs of up to 64 at least."""
    root, manifest = data
    steps = run(make_plan(manifest), root, steps=200)
    counts = [step.num_pairs for step, _ in steps]
    assert steps[-1][0].state.epoch >= 28
    assert min(counts) >= 16
    assert np.mean(counts) == pytest.approx(28, rel=0.01)
    both = [
        micro_batch
        for _, lanes in steps
        for micro_batch in lanes.values()
        if micro_batch and np.unique(micro_batch.epochs).size == 2
    ]
    assert len(both) >= 60, "micro-batches run on into the next epoch"


def test_exact_steps_all_hold_the_stated_pairs_across_epochs(data: tuple[Path, Manifest]) -> None:
    root, manifest = data
    steps = run(make_plan(manifest, exact_pairs=10), root, steps=189)
    assert {step.num_pairs for step, _ in steps} == {10}
    micro_batches = [micro_batch for _, lanes in steps for micro_batch in lanes.values() if micro_batch]
    assert set(rows_of(micro_batches).values()) == {10}  # 189 steps of 10 are the 189 rows ten times
    assert steps[-1][0].state.cursors == (0, 0, 0, 0)
    border = {
        tuple(np.unique(micro_batch.epochs)) for micro_batch in micro_batches if np.unique(micro_batch.epochs).size > 1
    }
    assert border <= {(epoch, epoch + 1) for epoch in range(9)}
    assert border


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stop=st.integers(1, 60), first=st.sampled_from([1, 3, 4]), second=st.sampled_from([1, 2, 5]), exact=st.booleans()
)
def test_resuming_anywhere_at_another_world_size_continues_the_stream(
    data: tuple[Path, Manifest], stop: int, first: int, second: int, exact: bool
) -> None:
    root, manifest = data
    plan = make_plan(manifest, exact_pairs=10 if exact else None)
    expected = run(plan, root, steps=64)
    state = run(plan, root, steps=stop, world_size=first)[-1][0].state
    assert state.step == stop
    fresh = make_plan(manifest, exact_pairs=10 if exact else None)
    resumed = run(fresh, root, steps=64 - stop, world_size=second, state=PlanState.from_tree(state.to_tree()))
    assert_same(resumed, expected[stop:])


def read_an_epoch(plan: Plan, root: Path, *, world_size: int) -> list[MicroBatch]:
    """The micro-batches of all ranks, up to the step that begins another epoch."""
    ranks = [MicroBatchStream(plan, root, rank=rank, world_size=world_size) for rank in range(world_size)]
    micro_batches: list[MicroBatch] = []
    while ranks[0].state.epoch == 0:
        counts = np.sum([stream.pack() for stream in ranks], axis=0)
        micro_batches += [
            micro_batch
            for stream in ranks
            for micro_batch in stream.commit(counts).micro_batches
            if micro_batch is not None
        ]
    for stream in ranks:
        stream.close()
    return micro_batches


@pytest.mark.parametrize(("shards", "row_groups", "rows"), [(1, 1, 130), (2, 2, 33), (5, 20, 1)])
def test_64_lanes_over_few_or_many_row_groups(tmp_path: Path, shards: int, row_groups: int, rows: int) -> None:
    manifest = write_data_set(tmp_path, shards=shards, row_groups=row_groups, rows=rows, validation_shards=0)
    plan = make_plan(manifest, lanes=64)
    reference: list[Counter[tuple[int, int, int]]] = []
    for world_size in (1, 3):
        micro_batches = read_an_epoch(plan, tmp_path, world_size=world_size)
        taken = [key for micro_batch in micro_batches for key in epochs_and_rows(micro_batch)]
        reference.append(Counter((s, g, r) for epoch, s, g, r in taken if epoch == 0))
    everything = Counter({(s, g, r): 1 for s in range(shards) for g in range(row_groups) for r in range(rows)})
    assert reference == [everything] * 2


def test_seeking_reads_one_row_group_a_lane(data: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch) -> None:
    """ray#37633, #48224, #50399: the place is lost on failure, or found by replaying."""
    root, manifest = data
    plan = make_plan(manifest)
    steps = run(plan, root, steps=20)
    read: list[tuple[int, int]] = []

    def counting(ref, *, root):  # type: ignore[no-untyped-def]
        read.append((ref.lane, ref.start))
        return read_slice(ref, root=root)

    monkeypatch.setattr("trainer.data.readers.read_slice", counting)
    state = steps[3][0].state
    stream = MicroBatchStream(plan, root, state=state, read_ahead_blocks=1)
    stream.next_step()
    stream.close()
    first_lanes = [lane for lane, _ in read[:4]]
    assert sorted(first_lanes) == [0, 1, 2, 3]
    assert len(read) <= 4 + 1 + 1 + 2 + 2  # a slice a lane; the queue, the thread and the pool hold some more


def test_reading_ahead_is_bounded_and_ends_with_the_stream(data: tuple[Path, Manifest]) -> None:
    root, manifest = data
    others = set(threading.enumerate())  # of tests before, whose streams nobody has closed
    stream = MicroBatchStream(make_plan(manifest), root, read_ahead_blocks=2)
    stream.next_step()
    assert any(thread.name.startswith("read-") for thread in set(threading.enumerate()) - others)
    deadline = time.monotonic() + 300
    while stream._read_ahead._queue.qsize() < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.2)
    assert stream._read_ahead._queue.qsize() == 2
    stream.close()
    stream.close()
    assert not [t.name for t in set(threading.enumerate()) - others if t.name.startswith("read-")]


def test_wait_is_measured(data: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch) -> None:
    """ray#26630, #50128: GPUs wait for ingest, and nobody sees it."""
    root, manifest = data

    def slow(ref, *, root):  # type: ignore[no-untyped-def]
        time.sleep(0.05)
        return read_slice(ref, root=root)

    monkeypatch.setattr("trainer.data.readers.read_slice", slow)
    stream = MicroBatchStream(make_plan(manifest), root)
    first, second = stream.next_step(), stream.next_step()
    stream.close()
    assert 0.05 < first.wait_s < 5
    assert second.wait_s < first.wait_s


def test_rows_without_second_segment_have_no_label(tmp_path: Path) -> None:
    manifest = write_data_set(tmp_path, shards=1, row_groups=1, rows=20, next_sentence="none")
    stream = MicroBatchStream(make_plan(manifest, lanes=1), tmp_path)
    step = stream.next_step()
    stream.close()
    (micro_batch,) = step.micro_batches
    assert micro_batch is not None
    assert set(micro_batch.nsp_labels.tolist()) == {NO_LABEL}
    assert (micro_batch.first_lengths == micro_batch.lengths).all()
    assert step.num_labelled == 0 < step.num_pairs


def test_large_vocabularies_read_alike(tmp_path: Path) -> None:
    manifest = write_data_set(tmp_path, shards=1, row_groups=1, rows=100, vocabulary_size=70_000)
    stream = MicroBatchStream(make_plan(manifest, lanes=1), tmp_path)
    micro_batches = [
        micro_batch for step in stream.one_epoch() for micro_batch in step.micro_batches if micro_batch is not None
    ]
    stream.close()
    assert {micro_batch.input_ids.dtype for micro_batch in micro_batches} == {np.dtype(np.int32)}
    assert max(micro_batch.input_ids.max() for micro_batch in micro_batches) > 65_535


def test_evaluation_reads_each_held_out_row_once_on_any_number_of_ranks(data: tuple[Path, Manifest]) -> None:
    root, manifest = data
    plan = validation_plan(manifest, shape=SHAPE, lanes=4)
    stream = MicroBatchStream(plan, root)
    micro_batches = [micro_batch for step in stream.one_epoch() for micro_batch in step.micro_batches if micro_batch]
    stream.close()
    assert rows_of(micro_batches) == Counter({(0, g, r): 1 for g in range(3) for r in range(21)})
    assert validation_plan(manifest, shape=SHAPE, lanes=10_000).lanes == 63


def test_the_held_out_rows_that_are_evaluated_depend_on_the_data_set_alone(
    data: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, manifest = data
    read: list[int] = []

    def counting(ref, *, root):  # type: ignore[no-untyped-def]
        read.append(ref.row_group)
        return read_slice(ref, root=root)

    monkeypatch.setattr("trainer.data.readers.read_slice", counting)
    found = []
    for lanes, tokens, world_size in ((1, 300, 1), (4, 300, 2), (4, 128, 3), (7, 2000, 3), (100, 64, 3)):
        shape = MicroBatchShape(tokens=tokens, pairs=99, masked=200, max_seq_length=64)
        plan = validation_plan(manifest, shape=shape, lanes=lanes, max_pairs=20)
        micro_batches = read_an_epoch(plan, root, world_size=world_size)
        found.append(rows_of(micro_batches))
    assert found[0].total() == len(found[0]) == 20
    assert found == [found[0]] * 5
    assert len(set(read)) == 1, "20 rows of a row group of 21: no other is read"


def test_evaluation_without_held_out_rows_is_refused(tmp_path: Path) -> None:
    manifest = write_data_set(tmp_path, shards=1, row_groups=1, rows=8, validation_shards=0)
    with pytest.raises(PlanError, match=r"no validation rows.*validation_fraction above 0"):
        validation_plan(manifest, shape=SHAPE, lanes=4)


def test_a_stream_refuses_the_state_of_another_plan(data: tuple[Path, Manifest]) -> None:
    root, manifest = data
    with pytest.raises(PlanError, match="belongs to plan"):
        MicroBatchStream(make_plan(manifest), root, state=make_plan(manifest, seed=9).start())


def test_ray_data_sets_are_neither_tiny_nor_huge(data: tuple[Path, Manifest]) -> None:
    plan = make_plan(data[1], lanes=1)
    refs = [
        ref for epoch in range(60) for ref in make_slices(plan, plan.slices(epoch, lanes=[0], cursors=[0]), epoch=epoch)
    ]
    chunks = list(_chunks(refs))
    assert [ref for chunk in chunks for ref in chunk] == refs
    assert {len(chunk) for chunk in chunks} == {18}
    assert [len(chunk) for chunk in _chunks(refs[:1] * 600)] == [256, 256, 88]
