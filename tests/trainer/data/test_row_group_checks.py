"""Row groups whose manifest agrees with them, but which no model can take, and shards swapped under a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from changed_sets import change_values, restate, rewrite, swap
from ingest_streams import make_plan
from pipeline.dataset.manifest import Manifest, footer_sha256
from synthetic import write_data_set
from trainer.data.row_groups import RowGroupError, make_slices, read_slice
from trainer.data.stream import MicroBatchStream
from trainer.launch import start
from trainer.run import main


def write_set(root: Path, *, seed: int = 0) -> Manifest:
    return write_data_set(root, shards=1, row_groups=1, rows=8, mask_sets=2, max_seq_length=32, seed=seed)


def change_column(root: Path, manifest: Manifest, name: str, change: Callable[[list[Any]], object]) -> Manifest:
    """Change the values of one column of the only training shard, and the manifest with it."""
    (shard,) = manifest.shards_of("train")
    rewrite(root, shard, change=change_values(name, change))
    return restate(root, manifest)


def set_id(rows: list[Any], value: Any) -> None:
    rows[3][2] = value


def set_inner(rows: list[Any], value: Any) -> None:
    rows[3][1][0] = value


def move_set(rows: list[Any]) -> None:
    rows[4].append(rows[3].pop())


def move_token(rows: list[Any]) -> None:
    longest = max(rows, key=len)
    for row in rows:
        if row is not longest:
            longest.extend(row[1:])
            del row[1:]


FAULTS: dict[str, tuple[str, Callable[[list[Any]], object], str]] = {
    "an id beyond the vocabulary": ("input_ids", lambda rows: set_id(rows, 600), "input_ids has the id 600, but"),
    "the first id beyond it": ("input_ids", lambda rows: set_id(rows, 512), "the id 512, but the vocabulary has 512"),
    "a shown id beyond it": ("masked_inputs", lambda rows: set_inner(rows, 65_535), "masked_inputs has the id 65535"),
    "a position beyond the row": ("masked_positions", lambda rows: set_inner(rows, 32), "masked_positions has a pos"),
    "more positions than ids": ("masked_positions", lambda rows: rows[3][0].append(1), "sets whose positions and ids"),
    "a set in another row": ("masked_positions", move_set, "rows without 2 mask sets"),
    "a row that is too long": ("input_ids", move_token, "tokens, but the manifest allows 1 to 32"),
    "a first segment that is too long": ("first_length", lambda rows: rows.__setitem__(3, 99), "first_length is 0, or"),
    "no first segment": ("first_length", lambda rows: rows.__setitem__(3, 0), "first_length is 0, or exceeds"),
    "another label": ("next_sentence_label", lambda rows: rows.__setitem__(3, 7), "next_sentence_label is 7, but"),
    "a row without ids": ("input_ids", lambda rows: rows.__setitem__(3, None), "input_ids has 1 rows without a value"),
    "an id that is missing": ("input_ids", lambda rows: set_id(rows, None), "lists with missing values"),
    "a length that is missing": ("first_length", lambda rows: rows.__setitem__(3, None), "first_length has 1 rows"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_row_group_that_no_model_can_take_is_refused(fault: str, tmp_path: Path) -> None:
    column, change, message = FAULTS[fault]
    manifest = change_column(tmp_path, write_set(tmp_path), column, change)
    stream = MicroBatchStream(make_plan(manifest, lanes=1), tmp_path)
    with pytest.raises(RowGroupError, match=rf"train-00000-of-00001\.parquet, row group 0: .*{message}"):
        list(stream.one_epoch())
    stream.close()


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.list_(pa.float32())], ids=str)
def test_columns_of_other_types_are_refused(kind: pa.DataType, tmp_path: Path) -> None:
    manifest = write_set(tmp_path)
    (shard,) = manifest.shards_of("train")
    table = pq.read_table(tmp_path / shard.path)
    values = table["input_ids"].to_pylist()
    other = values if pa.types.is_list(kind) else [str(row) if kind == pa.string() else len(row) for row in values]
    index = table.column_names.index("input_ids")
    pq.write_table(table.set_column(index, "input_ids", pa.array(other, kind)), tmp_path / shard.path)
    found = shard.model_copy(update={"footer_sha256": footer_sha256(tmp_path / shard.path)})
    plan = make_plan(manifest.model_copy(update={"shards": (found,)}), lanes=1)
    with pytest.raises(RowGroupError, match=r"parquet, row group 0: its column input_ids is .* instead of list"):
        MicroBatchStream(plan, tmp_path).next_step()


def test_a_shard_that_is_swapped_between_two_openings_is_refused(tmp_path: Path) -> None:
    """Of the same counts: the first opening reads it, the second names shard and row group."""
    manifest = write_set(tmp_path / "a")
    plan = make_plan(manifest, lanes=1)
    ref = next(make_slices(plan, plan.slices(0, lanes=[0], cursors=[0]), epoch=0))
    first = read_slice(ref, root=tmp_path / "a")
    assert first.num_rows == ref.stop - ref.start
    swap(tmp_path / "a", manifest)
    with pytest.raises(RowGroupError, match=r"parquet, row group 0: footer hash \w+ differs from the manifest's \w+; "):
        read_slice(ref, root=tmp_path / "a")


def break_ids(root: Path, manifest: Manifest) -> None:
    """The same, with ids beyond the vocabulary, before the run begins; the manifest agrees."""
    change_column(root, manifest, "input_ids", lambda rows: [set_id([0, 0, 0, row], 60_000) for row in rows])


@pytest.mark.parametrize("late", [True, False], ids=["swapped after the checks", "ids beyond the vocabulary"])
def test_a_run_ends_with_status_2_and_does_not_try_again(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    manifest = write_set(tmp_path / "data")
    write_config = start.write_config

    def write_and_swap(config: Any) -> Any:
        swap(tmp_path / "data", manifest)
        return write_config(config)

    if late:
        monkeypatch.setattr(start, "write_config", write_and_swap)
    else:
        break_ids(tmp_path / "data", manifest)
    (tmp_path / "run.yaml").write_text("max_steps: 5\n")
    words = [
        *("--config", str(tmp_path / "run.yaml"), f"data={tmp_path / 'data'}", f"output={tmp_path / 'run'}"),
        *("batch.pairs=8", "batch.lanes=4", "model.size=tiny", "workers=1", "precision=fp32", "device=cpu"),
        *("launcher=processes", "threads_per_worker=1", "max_restarts=3", "evaluation.max_pairs=8"),
    ]
    assert main(words) == 2
    output = capfd.readouterr()
    assert "train-00000-of-00001.parquet, row group 0: " in output.err.splitlines()[-1]
    assert ("footer hash" in output.err) is late
    assert "Traceback" not in output.err
    assert "starting the workers again" not in output.out
