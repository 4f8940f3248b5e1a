"""Training on a data set on an object store: checked at the start, the losses of local data, faults named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ingest_streams import make_plan
from object_store import bucket, s3_server, upload_tree
from pipeline import storage
from pipeline.dataset.manifest import DataSetError, open_data_set, read_manifest
from pipeline.settings import split_arguments
from small_runs import curve, write_small_set
from trainer.data.row_groups import RowGroupError, make_slices, read_slice
from trainer.hf.vocabulary_check import check_same_vocabulary, read_vocabulary
from trainer.launch import preflight
from trainer.run import PROGRAM, main
from trainer.train.evaluate import unigram_log_probabilities

__all__ = ["bucket", "s3_server"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_set(tmp_path_factory.mktemp("data"))


@pytest.fixture
def stored(data: Path, bucket: str) -> str:
    return upload_tree(data, f"{bucket}/sets/small")


def train(folder: Path, *, data: str | Path) -> list[tuple[int, str, str, str]]:
    """A few steps in a process of its own; the loss curve, all bits of it."""
    (folder / "run.yaml").write_text(
        f"data: {data}\noutput: {folder / 'run'}\nmodel: {{size: tiny}}\nbatch: {{pairs: 8, lanes: 4}}\n"
        f"max_steps: 7\nworkers: 1\nprecision: fp32\nlauncher: processes\ndevice: cpu\nthreads_per_worker: 1\n"
        f"optimizer: {{learning_rate: 3e-3}}\nlogging: {{every_steps: 1}}\nevaluation: {{max_pairs: 16}}\n"
    )
    assert main(["--config", str(folder / "run.yaml")]) == 0
    return curve(folder / "run")


def test_training_on_a_store_has_the_losses_of_local_data(
    data: Path, stored: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """More than an epoch, with an evaluation and the unigram loss from the set's token counts."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    expected = train(tmp_path / "a", data=data)
    capfd.readouterr()
    assert train(tmp_path / "b", data=stored) == expected
    assert len(expected) == 7
    assert f"data: {stored}: 40 pairs" in capfd.readouterr().out
    evaluations = [
        json.loads((tmp_path / name / "run" / "evaluations.jsonl").read_text().splitlines()[-1]) for name in "ab"
    ]
    for name in ("step", "mlm_loss", "unigram_loss"):
        assert evaluations[0][name] == evaluations[1][name], name


def test_a_set_on_a_store_is_checked_when_it_is_opened(data: Path, stored: str, bucket: str) -> None:
    manifest = open_data_set(stored, full=True)
    assert (manifest, manifest.hash) == (read_manifest(data), read_manifest(data).hash)
    shares = [unigram_log_probabilities(root, vocabulary_size=256) for root in (stored, data)]
    assert (shares[0] == shares[1]).all()
    check_same_vocabulary(data / "tokenizer", data_tokenizer=f"{stored}/tokenizer")
    assert read_vocabulary(f"{stored}/tokenizer") == read_vocabulary(data / "tokenizer")
    first, last = manifest.shards[0].path, manifest.shards[-1].path
    whole = storage.read_bytes(f"{stored}/{last}")
    storage.write_bytes(f"{stored}/{last}", whole[:-20] + b"x" + whole[-19:])
    with pytest.raises(DataSetError, match=rf"^{stored}/{last}: footer hash [0-9a-f]+ differs"):
        open_data_set(stored)
    storage.write_bytes(f"{stored}/{last}", whole[:-20])
    with pytest.raises(
        DataSetError, match=rf"^{stored}/{last}: {len(whole) - 20} bytes, the manifest says {len(whole)}"
    ):
        open_data_set(stored)
    storage.write_bytes(f"{stored}/{last}", whole)
    storage.write_bytes(f"{stored}/{first}", b"y" + storage.read_bytes(f"{stored}/{first}")[1:])
    open_data_set(stored)
    with pytest.raises(DataSetError, match=rf"^{stored}/{first}: sha256 [0-9a-f]+ differs"):
        open_data_set(stored, full=True)
    storage.delete(f"{stored}/{first}")
    with pytest.raises(DataSetError, match=rf"^{stored}/{first}: listed in the manifest but missing"):
        open_data_set(stored)
    for name in manifest.files:
        content = storage.read_bytes(f"{stored}/{name}")
        storage.delete(f"{stored}/{name}")
        upload_tree(data / "data", f"{stored}/data")
        with pytest.raises(DataSetError, match=rf"^{stored}/{name}: listed in the manifest but missing"):
            open_data_set(stored)
        storage.write_bytes(f"{stored}/{name}", content)
    storage.delete(f"{stored}/manifest.json")
    with pytest.raises(DataSetError, match=rf"^{stored}: has no manifest.json, so it is not a \(finished\) data set"):
        read_manifest(stored)
    with pytest.raises(DataSetError, match=rf"^{bucket}/none: no such data set folder"):
        read_manifest(f"{bucket}/none")
    with pytest.raises(DataSetError, match=r"^s3://no-such-bucket-3/x: no such data set folder \(.*there is no bucket"):
        read_manifest("s3://no-such-bucket-3/x")


def test_a_row_group_on_a_store_that_cannot_be_read_is_named(data: Path, stored: str) -> None:
    """Page checksums are verified there too."""
    plan = make_plan(read_manifest(stored))
    slices = plan.slices(0, lanes=[0], cursors=[0])
    ref = next(make_slices(plan, slices, epoch=0))
    assert read_slice(ref, root=stored).equals(read_slice(ref, root=data))
    path = f"{stored}/{ref.path}"
    content = storage.read_bytes(path)
    with storage.open_parquet(path) as file:
        column = file.metadata.row_group(ref.row_group).column(0)
        place = column.data_page_offset + column.total_compressed_size - 3
    storage.write_bytes(path, content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
    with pytest.raises(
        RowGroupError,
        match=rf"^{path}, row group {ref.row_group}: cannot be read \(.*CRC checksum.*the file is damaged",
    ):
        read_slice(ref, root=stored)
    storage.delete(path)
    with pytest.raises(
        RowGroupError, match=rf"^{path}, row group {ref.row_group}: cannot be read \({path}: there is no"
    ):
        read_slice(ref, root=stored)


def test_only_the_data_may_be_a_url_and_it_stays_one(tmp_path: Path, repository: Path) -> None:
    words = ("output=run", "data=s3://bucket/set/", "batch.pairs=8", "max_steps=1")
    config = preflight.read_config(split_arguments(words, program=PROGRAM), repository=repository)
    assert config.data == "s3://bucket/set"
