"""The stream where data are damaged, missing or foreign; and read by Ray: the same micro-batches, the same faults."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from ingest_streams import SHAPE, assert_same, assert_same_micro_batch, make_plan, rows_of, run
from pipeline.dataset.manifest import DataSetError, Manifest, footer_sha256
from synthetic import SPECIAL, write_data_set
from trainer.data.readers import ReadAhead
from trainer.data.row_groups import RowGroupError, make_slices, read_slice
from trainer.data.stream import MicroBatchStream
from trainer.train.prefetch import Feed


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
    stream = MicroBatchStream(make_plan(manifest), root)
    message = rf"{path.name}, row group 1: cannot be read \(.*CRC checksum.*restore it, or build the data set again"
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
    taken = rows_of([micro_batch for _, lanes in steps for micro_batch in lanes.values() if micro_batch])
    assert set(taken) == whole
    epochs = steps[-1][0].state.epoch
    assert epochs >= 3
    assert set(taken.values()) <= {epochs, epochs + 1}
    assert epochs * 21 <= sum(step.num_lost for step, _ in steps) <= (epochs + 1) * 21
    assert f"rows are skipped (ingest.skip_corrupt): {path}, row group 1: cannot be read" in caplog.text
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
    assert (lost.num_pairs, lost.num_lost, lost.state.cursors) == (0, 21, (21,))
    assert (lost.state.step, lost.state.phase_step) == (0, 0)  # else no phase would know where it began
    assert lost.state.rounds == 1


def test_a_feed_gives_up_where_no_row_can_be_read(
    damaged: tuple[Path, Manifest, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, manifest, path = damaged
    plan, done = make_plan(manifest, lanes=1), SimpleNamespace(wait=lambda: None)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda counts, async_op: done)

    def open_feed() -> Feed:
        stream = MicroBatchStream(plan, root, skip_corrupt=True)
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
    with pytest.raises(RowGroupError, match="cannot read any of the 168 rows after epoch 0"):
        feed.next_step()
    feed.close()


def test_a_missing_shard_stops_with_its_name(damaged: tuple[Path, Manifest, Path]) -> None:
    root, manifest, path = damaged
    path.unlink()
    with pytest.raises(RowGroupError, match=rf"{path.name}, row group \d: cannot be read \(.*No such file"):
        MicroBatchStream(make_plan(manifest), root).next_step()


def test_a_shard_of_another_build_is_refused(damaged: tuple[Path, Manifest, Path]) -> None:
    root, manifest, path = damaged
    write_data_set(root / "other", shards=2, row_groups=2, rows=22, validation_shards=0, seed=1)
    shutil.copy(root / "other" / manifest.shards[1].path, path)
    plan = make_plan(manifest, lanes=1)
    slices = plan.slices(0, lanes=[0], cursors=[0])
    ref = next(ref for ref in make_slices(plan, slices, epoch=0) if ref.shard == 1)
    with pytest.raises(
        RowGroupError, match=rf"{path.name}, row group {ref.row_group}: footer hash .* differs from the"
    ):
        read_slice(ref, root=root)
    hostile = replace(ref, footer_sha256=footer_sha256(path))  # its manifest lists other numbers
    with pytest.raises(RowGroupError, match=rf"{path.name}, row group {ref.row_group}: holds 22 rows, .* lists 21, "):
        read_slice(hostile, root=root)


def test_an_error_of_the_reading_thread_comes_out_every_time() -> None:
    def items() -> Iterator[tuple[object, pa.Table]]:
        yield 1, pa.table({})
        raise RowGroupError("broken")

    reader = ReadAhead(items(), depth=2)  # type: ignore[arg-type]
    assert next(reader)[0] == 1  # type: ignore[comparison-overlap]
    for _ in range(2):
        with pytest.raises(RowGroupError, match="broken"):
            next(reader)
    reader.close()


@pytest.mark.ray
def test_ray_reads_the_same_micro_batches_and_names_the_same_faults(damaged: tuple[Path, Manifest, Path]) -> None:
    ray = pytest.importorskip("ray")
    root, manifest, path = damaged
    plan = make_plan(manifest)
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # socket paths may have 107 characters
    ray.init("local", num_cpus=2, include_dashboard=False, _temp_dir=folder, object_store_memory=100 << 20)
    try:
        # every logical CPU is taken, as train workers do
        holder = ray.remote(num_cpus=2)(type("Holder", (), {})).remote()
        local, remote = MicroBatchStream(plan, root), MicroBatchStream(plan, root, reader="ray", object_store_mb=32)
        for _ in range(30):
            step, other = local.next_step(), remote.next_step()
            assert step.state == other.state
            for micro_batch, same in zip(step.micro_batches, other.micro_batches, strict=True):
                assert_same_micro_batch(micro_batch, same)
        assert step.state.epoch >= 2
        local.close()
        remote.close()
        flip_a_bit(path, row_group=1)
        broken = MicroBatchStream(plan, root, reader="ray", object_store_mb=32)
        with pytest.raises(RowGroupError, match=rf"{path.name}, row group 1: cannot be read"):
            list(broken.one_epoch())
        broken.close()
        del holder
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
