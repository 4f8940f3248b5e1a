"""A Dask cluster with its output on a store, where nothing can be locked: a failed run is over when it returns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
import pytest

from dask_processes import DaskProcesses
from object_store import bucket, s3_server
from pipeline import storage
from pipeline.engines import dask_cluster
from pipeline.engines.cluster import DaskCluster
from pipeline.engines.dask_cluster import run_on_dask
from pipeline.runtime.failures import FAILURE_NAME

__all__ = ["bucket", "s3_server"]


@pytest.fixture
def dask(tmp_path: Path, bucket: str) -> Iterator[DaskProcesses]:
    """With two workers that know the store."""
    processes = DaskProcesses(tmp_path)
    try:
        processes.start_worker({})
        processes.start_worker({})
        yield processes
    finally:
        processes.close()


def test_tasks_of_a_failed_run_are_waited_for(
    dask: DaskProcesses, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would write on where the build has cleared. The wait has an end."""
    begun, ended, stuck = (tmp_path / name for name in ("begun", "ended", "stuck"))
    results_folder = f"{bucket}/out/_tmp/results"

    def work(part: int) -> int:
        """Part 0 fails once part 1 is at work; that goes on for as long as it is not told to stop, and some more."""
        deadline = time.monotonic() + 300
        if part == 0:
            while not begun.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            raise ValueError("refused")
        begun.touch()
        while not storage.exists(f"{results_folder}/{FAILURE_NAME}") and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(2)
        while stuck.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        ended.touch()
        return part

    def run() -> None:
        with pytest.raises(ValueError, match="refused"):
            run_on_dask(
                lambda pipeline: pipeline | beam.Create([0, 1]) | beam.Map(work),
                cluster=DaskCluster(dask.address, name="dask", workers=2, wait_s=30),
                results_folder=results_folder,
                held=f"{bucket}/out/_tmp",
                beam_options=(),
            )

    run()
    assert ended.exists()
    for path in (begun, ended):
        path.unlink()
    storage.delete(f"{results_folder}/{FAILURE_NAME}")
    stuck.touch()
    monkeypatch.setattr(dask_cluster, "_LET_GO_S", 0.5)
    run()
    assert begun.exists()
    assert not ended.exists()
