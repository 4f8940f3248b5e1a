"""A checkpoint is committed, and old ones go, only under the lease; in a folder and on an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from object_store import bucket, s3_server
from pipeline import storage
from pipeline.storage import LeaseError, held
from pipeline.storage.lease import release, take
from small_runs import check_output, make_config
from stored_checkpoints import kept, make_writer
from synthetic import write_data_set
from trainer.checkpoint.load import CheckpointError
from trainer.launch import preflight
from trainer.launch.run_directory import write_config

__all__ = ["bucket", "s3_server"]


@pytest.fixture(params=["folder", "store"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "run") if request.param == "folder" else f"{request.getfixturevalue('bucket')}/runs/x"


def test_a_second_run_is_refused_before_anything_starts(run: str, tmp_path: Path) -> None:
    write_data_set(tmp_path / "data", rows=10, max_seq_length=32, vocabulary_size=256)
    config = make_config(tmp_path / "data", tmp_path / "run").model_copy(
        update={"output": run, "working_folder": str(tmp_path / "work")}
    )
    token = take(run, timeout_s=60, say=print).token
    assert check_output(config) == []  # a lease alone makes no run
    write_config(config)
    with pytest.raises(LeaseError, match="another command works there"):
        preflight.check(config)
    release(run, token=token)
    assert preflight.check(config).lines


def test_nothing_is_committed_without_the_lease(run: str) -> None:
    """The fence: a job that was thought dead and wakes up leaves the successor's checkpoints alone."""
    holder = take(run, timeout_s=60, say=print)
    writer = make_writer(run, token=holder.token, keep_last=1)
    writer.save(5, plan_state={})
    writer.finish()
    release(run, token=holder.token)
    successor = take(run, timeout_s=60, say=print)
    writer.save(2, plan_state={})
    with pytest.raises(CheckpointError, match=rf"step 2 is not committed: output={run}: this command lost its lease"):
        writer.finish()
    with held(run, token=successor.token):
        assert kept(run) == [5]
    release(run, token=successor.token)
    writer.save(6, plan_state={})
    with pytest.raises(CheckpointError, match="it was given up"):
        writer.finish()
    assert kept(run) == [5]
    if not storage.is_url(run):
        assert [path.name for path in Path(run, "checkpoints").iterdir()] == ["step-00000005"]


@pytest.mark.parametrize("run", ["store"], indirect=True)
def test_a_job_that_lost_its_lease_while_it_committed_removes_nothing(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest's write may take longer than another job waits; what it finds may be that job's."""
    holder = take(run, timeout_s=60, say=print)
    writer = make_writer(run, token=holder.token, keep_last=1)
    writer.save(5, plan_state={})
    writer.finish()
    write_bytes = storage.write_bytes

    def lose_the_lease(path: str, data: bytes, **options: bool) -> None:
        write_bytes(path, data, **options)
        if path.endswith("manifest.json"):
            release(run, token=holder.token)
            take(run, timeout_s=60, say=print)

    monkeypatch.setattr(storage, "write_bytes", lose_the_lease)
    writer.save(2, plan_state={})
    with pytest.raises(CheckpointError, match=r"the checkpoint of step 2 is committed, but output=.*lost its lease"):
        writer.finish()
    assert kept(run) == [2, 5]
