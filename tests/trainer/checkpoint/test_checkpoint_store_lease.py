"""A checkpoint on an object store is committed, and old ones go, only under the lease."""

from __future__ import annotations

import pytest

from object_store import bucket, s3_server
from pipeline import storage
from pipeline.signals import StopRequest
from pipeline.storage.lease import held, release, take
from stored_checkpoints import kept, make_writer
from trainer.checkpoint.load import CheckpointError

__all__ = ["bucket", "s3_server"]


@pytest.fixture
def run(bucket: str) -> str:
    return f"{bucket}/runs/x"


def test_nothing_is_committed_without_the_lease(run: str) -> None:
    """The fence: a job that was thought dead and wakes up leaves the successor's checkpoints alone."""
    holder = take(run, timeout_s=60, say=print, stop=StopRequest())
    writer = make_writer(run, token=holder.token, keep_last=1)
    writer.save(5, plan_state={})
    writer.finish()
    release(run, token=holder.token)
    successor = take(run, timeout_s=60, say=print, stop=StopRequest())
    writer.save(2, plan_state={})
    with pytest.raises(CheckpointError, match=r"step 2 is not committed: this job has lost its lease on s3://"):
        writer.finish()
    with held(run, token=successor.token):
        assert kept(run) == [5]


def test_a_job_that_lost_its_lease_while_it_committed_removes_nothing(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest's write may take longer than another job waits; what it finds may be that job's."""
    holder = take(run, timeout_s=60, say=print, stop=StopRequest())
    writer = make_writer(run, token=holder.token, keep_last=1)
    writer.save(5, plan_state={})
    writer.finish()
    write_bytes = storage.write_bytes

    def lose_the_lease(path: str, data: bytes) -> None:
        write_bytes(path, data)
        if path.endswith("manifest.json"):
            release(run, token=holder.token)
            take(run, timeout_s=60, say=print, stop=StopRequest())

    monkeypatch.setattr(storage, "write_bytes", lose_the_lease)
    writer.save(2, plan_state={})
    with pytest.raises(CheckpointError, match=r"the checkpoint of step 2 stands, but this job has lost its lease"):
        writer.finish()
    assert kept(run) == [2, 5]
