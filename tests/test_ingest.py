"""The stream: the same steps for any world size, from any step on, read by threads or by Ray; faults have names."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import SPECIAL, write_data_set

from pipeline.manifest import DataSetError, Manifest
from trainer.blocks import BlockError, LengthReader, make_refs, read_block
from trainer.feed import Feed
from trainer.ingest import SlotStream, Step, validation_plan
from trainer.plan import Plan, PlanError, PlanState
from trainer.readers import ReadAhead, _chunks
from trainer.slots import NO_LABEL, Slot, SlotShape

SHAPE = SlotShape(tokens=300, pairs=12, masked=60, max_seq_length=64)
EXACT_SHAPE = SlotShape(tokens=192, pairs=3, masked=30, max_seq_length=64)

Lanes = dict[int, Slot | None]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    root = tmp_path_factory.mktemp("ingest")
    return root, write_data_set(root, shards=3, row_groups=3, rows=21, mask_sets=3)


def make_plan(manifest: Manifest, *, lanes: int = 4, exact_pairs: int | None = None, seed: int = 3) -> Plan:
    shape = SHAPE if exact_pairs is None else EXACT_SHAPE
    return Plan.from_manifest(manifest, lanes=lanes, shape=shape, seed=seed, exact_pairs=exact_pairs)


def run(
    plan: Plan,
    root: Path,
    *,
    world_size: int = 1,
    steps: int,
    state: PlanState | None = None,
    skip_corrupt: bool = False,
) -> list[tuple[Step, Lanes]]:
    """`steps` steps of all ranks in this process; the first rank's Step, and the slots of every lane."""
    ranks = [
        SlotStream(plan, root, rank=rank, world_size=world_size, state=state, skip_corrupt=skip_corrupt)
        for rank in range(world_size)
    ]
    made = []
    for _ in range(steps):
        counts = np.sum([stream.cut() for stream in ranks], axis=0)
        each = [stream.commit(counts) for stream in ranks]
        lanes: Lanes = {}
        for step in each:
            assert step.state == each[0].state
            assert len(step.slots) == len(step.lanes) == -(-plan.lanes // world_size)
            for lane, slot in zip(step.lanes, step.slots, strict=True):
                assert lane >= 0 or slot is None
                lanes[lane] = slot
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
            assert_same_slot(lanes[lane], expected_lanes[lane])


def assert_same_slot(slot: Slot | None, expected: Slot | None) -> None:
    assert (slot is None) == (expected is None)
    if slot is not None:
        for field in fields(Slot):
            assert np.array_equal(getattr(slot, field.name), getattr(expected, field.name)), field.name


def rows_of(slots: list[Slot]) -> Counter[tuple[int, int, int]]:
    return Counter(
        (int(s), int(g), int(r))
        for slot in slots
        for s, g, r in zip(slot.shards, slot.row_groups, slot.rows, strict=True)
    )


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
        per_epoch = np.diff(plan.cuts(0, read_lengths=LengthReader(plan, root=root)).rows)[lane]
        taken, epoch = 0, 0
        for _, lanes in steps:
            slot = lanes[lane]
            if slot is None:
                continue
            masks = np.split(np.arange(slot.num_masked), np.searchsorted(slot.masked_positions, slot.starts[1:]))
            for i, (shard, group, row) in enumerate(zip(slot.shards, slot.row_groups, slot.rows, strict=True)):
                if taken == per_epoch:
                    taken, epoch = 0, epoch + 1
                    cuts = plan.cuts(epoch, read_lengths=LengthReader(plan, root=root))
                    per_epoch = np.diff(cuts.rows)[lane]
                taken += 1
                stored = tables[shard][group][row]
                begin = slot.starts[i]
                ids = slot.input_ids[begin : begin + slot.lengths[i]].copy()
                assert (slot.masked_positions[masks[i]] - begin).tolist() == stored["masked_positions"][epoch % 3]
                assert ids[stored["masked_positions"][epoch % 3]].tolist() == stored["masked_inputs"][epoch % 3]
                ids[stored["masked_positions"][epoch % 3]] = slot.masked_labels[masks[i]]
                assert ids.tolist() == stored["input_ids"]
                assert slot.first_lengths[i] == stored["first_length"]
                assert slot.nsp_labels[i] == stored["next_sentence_label"]
        assert epoch >= 3

    if exact_pairs is None:
        for epoch in range(3):
            before = [0, *(step.state.epoch for step, _ in steps)]
            slots = [
                slot for at, (_, lanes) in enumerate(steps) if before[at] == epoch for slot in lanes.values() if slot
            ]
            assert rows_of(slots) == Counter({(s, g, r): 1 for s in range(3) for g in range(3) for r in range(21)})


def test_exact_steps_all_hold_the_stated_pairs_across_epochs(data: tuple[Path, Manifest]) -> None:
    root, manifest = data
    steps = run(make_plan(manifest, exact_pairs=10), root, steps=189)
    assert {step.num_pairs for step, _ in steps} == {10}
    slots = [slot for _, lanes in steps for slot in lanes.values() if slot]
    assert set(rows_of(slots).values()) == {10}  # 189 steps of 10 are the 189 rows ten times
    assert steps[-1][0].state.cursors == (0, 0, 0, 0)
    assert any(max(step.state.cursors) > 0 == min(step.state.cursors) for step, _ in steps)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stop=st.integers(1, 60),
    first=st.sampled_from([1, 3, 4]),
    second=st.sampled_from([1, 2, 5]),
    exact=st.booleans(),
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


@pytest.mark.parametrize(("shards", "row_groups", "rows"), [(1, 1, 130), (2, 2, 33), (5, 20, 1)])
def test_64_lanes_over_few_or_many_row_groups(tmp_path: Path, shards: int, row_groups: int, rows: int) -> None:
    manifest = write_data_set(tmp_path, shards=shards, row_groups=row_groups, rows=rows, validation_shards=0)
    plan = make_plan(manifest, lanes=64)
    reference: list[Counter[tuple[int, int, int]]] = []
    for world_size in (1, 3):
        ranks = [SlotStream(plan, tmp_path, rank=rank, world_size=world_size) for rank in range(world_size)]
        slots: list[Slot] = []
        while ranks[0].state.epoch == 0:
            counts = np.sum([stream.cut() for stream in ranks], axis=0)
            slots += [slot for stream in ranks for slot in stream.commit(counts).slots if slot is not None]
        for stream in ranks:
            stream.close()
        reference.append(rows_of(slots))
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
        return read_block(ref, root=root)

    monkeypatch.setattr("trainer.readers.read_block", counting)
    state = steps[3][0].state
    stream = SlotStream(plan, root, state=state, read_ahead_blocks=1)
    stream.next_step()
    stream.close()
    first_lanes = [lane for lane, _ in read[:4]]
    assert sorted(first_lanes) == [0, 1, 2, 3]
    assert len(read) <= 4 + 1 + 1 + 2 + 2  # a block a lane; the queue, the thread and the pool hold some more


def test_reading_ahead_is_bounded_and_ends_with_the_stream(data: tuple[Path, Manifest]) -> None:
    root, manifest = data
    stream = SlotStream(make_plan(manifest), root, read_ahead_blocks=2)
    stream.next_step()
    time.sleep(0.2)
    assert stream._blocks._queue.qsize() == 2
    stream.close()
    stream.close()
    assert not any(thread.name.startswith("read-") for thread in threading.enumerate())


def test_wait_is_measured(data: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch) -> None:
    """ray#26630, #50128: GPUs wait for ingest, and nobody sees it."""
    root, manifest = data

    def slow(ref, *, root):  # type: ignore[no-untyped-def]
        time.sleep(0.05)
        return read_block(ref, root=root)

    monkeypatch.setattr("trainer.readers.read_block", slow)
    stream = SlotStream(make_plan(manifest), root)
    first, second = stream.next_step(), stream.next_step()
    stream.close()
    assert 0.05 < first.wait_s < 5
    assert second.wait_s < first.wait_s


def test_rows_without_second_segment_have_no_label(tmp_path: Path) -> None:
    manifest = write_data_set(tmp_path, shards=1, row_groups=1, rows=20, next_sentence="none")
    stream = SlotStream(make_plan(manifest, lanes=1), tmp_path)
    step = stream.next_step()
    stream.close()
    (slot,) = step.slots
    assert slot is not None
    assert set(slot.nsp_labels.tolist()) == {NO_LABEL}
    assert (slot.first_lengths == slot.lengths).all()
    assert step.num_labelled == 0 < step.num_pairs


def test_large_vocabularies_read_alike(tmp_path: Path) -> None:
    manifest = write_data_set(tmp_path, shards=1, row_groups=1, rows=100, vocabulary_size=70_000)
    stream = SlotStream(make_plan(manifest, lanes=1), tmp_path)
    slots = [slot for step in stream.one_epoch() for slot in step.slots if slot is not None]
    stream.close()
    assert {slot.input_ids.dtype for slot in slots} == {np.dtype(np.int32)}
    assert max(slot.input_ids.max() for slot in slots) > 65_535


def test_evaluation_reads_each_held_out_row_once_on_any_number_of_ranks(data: tuple[Path, Manifest]) -> None:
    root, manifest = data
    plan = validation_plan(manifest, shape=SHAPE, lanes=4)
    stream = SlotStream(plan, root, last_epoch=0)
    slots = [slot for step in stream.one_epoch() for slot in step.slots if slot]
    stream.close()
    assert rows_of(slots) == Counter({(0, g, r): 1 for g in range(3) for r in range(21)})
    stream = SlotStream(plan, root, last_epoch=0)
    some = [step.num_pairs for step in stream.one_epoch(max_pairs=50)]
    stream.close()
    assert 50 <= sum(some) < 50 + 4 * 12
    assert validation_plan(manifest, shape=SHAPE, lanes=10_000).lanes == 63


def test_evaluation_without_held_out_rows_is_refused(tmp_path: Path) -> None:
    manifest = write_data_set(tmp_path, shards=1, row_groups=1, rows=8, validation_shards=0)
    with pytest.raises(PlanError, match=r"no validation rows.*validation_fraction above 0"):
        validation_plan(manifest, shape=SHAPE, lanes=4)


def test_a_stream_refuses_the_state_of_another_plan(data: tuple[Path, Manifest]) -> None:
    root, manifest = data
    with pytest.raises(PlanError, match="belongs to plan"):
        SlotStream(make_plan(manifest), root, state=make_plan(manifest, seed=9).start())


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, Manifest, Path]:
    manifest = write_data_set(tmp_path, shards=2, row_groups=2, rows=21, validation_shards=0)
    return tmp_path, manifest, tmp_path / manifest.shards[1].path


def flip_a_bit(path: Path, *, row_group: int) -> None:
    column = pq.ParquetFile(path).metadata.row_group(row_group).column(0)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(content)


def test_a_flipped_bit_stops_with_shard_and_row_group(damaged: tuple[Path, Manifest, Path]) -> None:
    root, manifest, path = damaged
    flip_a_bit(path, row_group=1)
    stream = SlotStream(make_plan(manifest), root)
    message = rf"{path.name}, row group 1: cannot be read \(.*CRC checksum.*restore it, or build the set again"
    with pytest.raises(DataSetError, match=message):
        list(stream.one_epoch())
    stream.close()


def test_a_row_group_that_cannot_be_read_is_passed_over_where_the_config_says_so(
    damaged: tuple[Path, Manifest, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Its rows and no others are missing, and counted; the same for any number of ranks, and from any step on."""
    root, manifest, path = damaged
    flip_a_bit(path, row_group=1)
    plan = make_plan(manifest)
    steps = run(plan, root, steps=40, skip_corrupt=True)
    whole = {(s, g, r) for s in range(2) for g in range(2) for r in range(21)} - {(1, 1, r) for r in range(21)}
    taken = rows_of([slot for _, lanes in steps for slot in lanes.values() if slot])
    assert set(taken) == whole
    epochs = steps[-1][0].state.epoch
    assert epochs >= 3
    assert set(taken.values()) <= {epochs, epochs + 1}
    assert epochs * 21 <= sum(step.num_lost for step, _ in steps) <= (epochs + 1) * 21
    assert f"rows are passed over (ingest.skip_corrupt): {path}, row group 1: cannot be read" in caplog.text
    for world_size in (3, 4):
        assert_same(run(plan, root, steps=40, world_size=world_size, skip_corrupt=True), steps)
    for stop in (1, 7, 13):
        resumed = run(plan, root, steps=40 - stop, world_size=2, state=steps[stop - 1][0].state, skip_corrupt=True)
        assert_same(resumed, steps[stop:])


def test_a_step_whose_rows_are_all_lost_is_no_step(damaged: tuple[Path, Manifest, Path]) -> None:
    root, manifest, _ = damaged
    whole = run(make_plan(manifest, lanes=1), root, steps=1)
    for shard in manifest.shards:
        for group in (0, 1):
            flip_a_bit(root / shard.path, row_group=group)
    ((lost, _),) = run(make_plan(manifest, lanes=1), root, steps=1, skip_corrupt=True)
    assert (whole[0][0].state.step, whole[0][0].num_lost) == (1, 0)
    assert (lost.num_pairs, lost.num_lost, lost.state.step, lost.state.epoch) == (0, 84, 0, 1)


def test_a_feed_gives_up_where_no_row_can_be_read(
    damaged: tuple[Path, Manifest, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, manifest, path = damaged
    plan, done = make_plan(manifest, lanes=1), SimpleNamespace(wait=lambda: None)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda counts, async_op: done)

    def open_feed() -> Feed:
        stream = SlotStream(plan, root, skip_corrupt=True)
        return Feed(stream, shape=SHAPE, special=SPECIAL, device=torch.device("cpu"))

    flip_a_bit(path, row_group=0)
    feed = open_feed()
    steps = [feed.next_step() for _ in range(20)]
    feed.close()
    assert [step.state.step for step in steps] == list(range(1, 21))
    assert all(step.num_pairs for step in steps)
    assert sum(step.num_lost for step in steps) >= 21
    for shard, group in ((0, 0), (0, 1), (1, 1)):
        flip_a_bit(root / manifest.shards[shard].path, row_group=group)
    feed = open_feed()
    with pytest.raises(BlockError, match="none of the 168 rows after epoch 0 can be read"):
        feed.next_step()
    feed.close()


def test_a_missing_shard_stops_with_its_name(damaged: tuple[Path, Manifest, Path]) -> None:
    root, manifest, path = damaged
    path.unlink()
    with pytest.raises(BlockError, match=rf"{path.name}, row group \d: cannot be read \(.*No such file"):
        SlotStream(make_plan(manifest), root).next_step()


def test_a_shard_of_another_build_is_refused(damaged: tuple[Path, Manifest, Path]) -> None:
    root, manifest, path = damaged
    write_data_set(root / "other", shards=2, row_groups=2, rows=22, validation_shards=0, seed=1)
    shutil.copy(root / "other" / manifest.shards[1].path, path)
    plan = make_plan(manifest, lanes=1)
    blocks = plan.blocks(0, lanes=[0], cursors=[0], read_lengths=LengthReader(plan, root=root))
    ref = next(ref for ref in make_refs(plan, blocks, epoch=0) if ref.shard == 1)
    with pytest.raises(BlockError, match=rf"{path.name}, row group {ref.row_group}: holds 22 rows, .* lists 21, "):
        read_block(ref, root=root)
    with pytest.raises(BlockError, match=rf"{path.name}, row group 1: holds 22 rows and .* lists 21 and "):
        LengthReader(plan, root=root)([0, 3])


def test_an_error_of_the_reading_thread_comes_out_every_time() -> None:
    def items() -> Iterator[tuple[object, pa.Table]]:
        yield 1, pa.table({})
        raise BlockError("broken")

    reader = ReadAhead(items(), depth=2)  # type: ignore[arg-type]
    assert next(reader)[0] == 1  # type: ignore[comparison-overlap]
    for _ in range(2):
        with pytest.raises(BlockError, match="broken"):
            next(reader)
    reader.close()


def test_ray_data_sets_are_neither_tiny_nor_huge(data: tuple[Path, Manifest]) -> None:
    root, manifest = data
    plan = make_plan(manifest, lanes=1)
    reader = LengthReader(plan, root=root)
    refs = [
        ref
        for epoch in range(60)
        for ref in make_refs(plan, plan.blocks(epoch, lanes=[0], cursors=[0], read_lengths=reader), epoch=epoch)
    ]
    chunks = list(_chunks(refs))
    assert [ref for chunk in chunks for ref in chunk] == refs
    assert {len(chunk) for chunk in chunks} == {18}
    assert [len(chunk) for chunk in _chunks(refs[:1] * 600)] == [256, 256, 88]


@pytest.mark.ray
def test_ray_reads_the_same_slots_and_names_the_same_faults(damaged: tuple[Path, Manifest, Path]) -> None:
    ray = pytest.importorskip("ray")
    root, manifest, path = damaged
    plan = make_plan(manifest)
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # socket paths may have 107 characters
    ray.init("local", num_cpus=2, include_dashboard=False, _temp_dir=folder, object_store_memory=100 << 20)
    try:
        # every logical CPU is taken, as train workers do
        holder = ray.remote(num_cpus=2)(type("Holder", (), {})).remote()
        local, remote = SlotStream(plan, root), SlotStream(plan, root, blocks="ray", object_store_mb=32)
        for _ in range(30):
            step, other = local.next_step(), remote.next_step()
            assert step.state == other.state
            for slot, same in zip(step.slots, other.slots, strict=True):
                assert_same_slot(slot, same)
        assert step.state.epoch >= 2
        local.close()
        remote.close()
        flip_a_bit(path, row_group=1)
        broken = SlotStream(plan, root, blocks="ray", object_store_mb=32)
        with pytest.raises(BlockError, match=rf"{path.name}, row group 1: cannot be read"):
            list(broken.one_epoch())
        broken.close()
        del holder
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
