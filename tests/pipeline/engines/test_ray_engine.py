"""The same job on a Dask cluster of Ray actors, some of them killed meanwhile: the same bytes, and nothing left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray

from corpora import make_documents
from pipeline.config.engines import RayConfig
from pipeline.dataset.manifest import open_data_set
from pipeline.engines import ray_cluster
from pipeline.errors import PassingError
from pipeline.run import main
from pipeline.settings import ConfigError
from small_builds import write_build_of_files
from watched_worker import CALLS, KILLS

SPLITS = 6
ONE_MACHINE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""For commands that join a Ray which a build started: that Ray has the address 127.0.0.1 (pipeline/ray_loopback.py)."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_build_of_files(tmp_path, make_documents(120), files=SPLITS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def cluster(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Ray of two CPUs, started as a build without RAY_ADDRESS does; what its actors kill is in KILLS."""
    calls = tmp_path_factory.mktemp("ray") / "calls"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.delenv("RAY_worker_niceness", raising=False)
        patch.setenv(CALLS, str(calls))
        patch.setenv(
            KILLS, "pipeline.shuffle.spill SpillWriter._flush 3 self;pipeline.build.write_shard _commit 2 DaskScheduler"
        )
        patch.setenv("DASK_DISTRIBUTED__WORKER__PRELOAD", "watched_worker")
        before = psutil.Process().children(recursive=True)
        with ray_cluster._ray_session({"CPU": 1.0}, workers=2):
            yield ray.get_runtime_context().gcs_address
        left = [process for process in psutil.Process().children(recursive=True) if process not in before]
        assert not psutil.wait_procs(left, timeout=60)[1]


def start(repository: Path, *words: str, address: str) -> subprocess.Popen[str]:
    """The command, on the cluster at this address."""
    paths = os.pathsep.join([str(repository), str(repository / "tests" / "support")])
    return subprocess.Popen(
        [sys.executable, str(repository / "pipeline/run.py"), "--config", "c.yaml", "--engine", "ray", *words],
        env={**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": paths, **ONE_MACHINE},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_actors_end() -> None:
    deadline = time.monotonic() + 300
    while {actor["State"] for actor in ray._private.state.actors().values()} != {"DEAD"}:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.ray
def test_lost_actors_are_replaced_and_change_no_byte(folder: Path, repository: Path, cluster: str) -> None:
    """The only worker is killed in the middle of a split, the scheduler while a shard is written."""
    assert main(["--config", "c.yaml", "output=whole"]) == 0
    process = start(repository, "ray.worker_wait_s=60", address=cluster)
    out, error = process.communicate(timeout=600)
    assert process.returncode == 0, error
    assert "Ray: 1 worker of 1 CPU\n" in out
    assert re.search(r"the connection to its Dask scheduler was lost.*; restarting it", error)
    assert "The above exception" not in error
    assert Path(f"{os.environ[CALLS]}.0").exists(), "the worker was killed"
    assert Path(f"{os.environ[CALLS]}.1").exists(), "the scheduler was killed"
    assert open_data_set("out", full=True) == open_data_set("whole", full=True)
    assert_actors_end()


@pytest.mark.ray
def test_a_build_that_waits_says_for_what_and_takes_everything_back(
    folder: Path, repository: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped while it waits for nodes; the cluster is then as it was."""
    process = start(repository, "workers=3", "ray.resource=preprocessing", address=cluster)
    assert process.stdout is not None
    while "no worker yet" not in (line := process.stdout.readline()):
        assert process.poll() is None
    assert "3 workers of 1 CPU and 1 preprocessing requested; the cluster has 2 CPU on 1 node, of which" in line
    assert " CPU, 0 preprocessing are free; add nodes" in line
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=600)[1].splitlines()[-1] == "terminated"
    assert process.returncode == 143
    assert_actors_end()
    assert not (folder / "out").exists()
    assert_start_is_bounded(monkeypatch)
    assert ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0), "Ray's own workers would be nicer by 15"


def assert_start_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor that no node can hold; a number of workers that nobody gave."""
    actor = ray.remote(num_cpus=1000)(ray_cluster.DaskScheduler).remote("tls://127.0.0.1:1", None)
    monkeypatch.setattr(ray_cluster, "_SCHEDULER_START_S", 0.1)
    with pytest.raises(PassingError, match=r"the actor of the Dask scheduler has not started in 0\.1 s"):
        ray_cluster._await_scheduler(actor)
    ray.kill(actor)
    assert ray_cluster.count_room({"CPU": 0.5}) == 4
    each = ray_cluster.resources_of(RayConfig(resource="preprocessing"))
    with pytest.raises(
        ConfigError, match="workers is not set, and the Ray cluster has no room now for a worker of 1 CPU"
    ):
        ray_cluster.count_room(each)


def test_a_ray_that_does_not_answer_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert main(["--config", "c.yaml", "--engine", "ray"]) == 2
    assert "Ray (http://127.0.0.1:1) does not answer" in capsys.readouterr().err
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_relative_paths_in_an_uploaded_folder_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is written there is lost with the job."""
    job = {"runtime_env": {"working_dir": "gcs://_ray_pkg_1.zip"}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    assert main(["--config", "c.yaml"]) == 2
    assert (
        "output=out: this job runs in an uploaded copy of its folder (gcs://_ray_pkg_1.zip)" in capsys.readouterr().err
    )
    assert main(["--config", "c.yaml", f"output={folder}/out"]) == 2
    assert "vocabulary.path=vocab.txt: this job runs in an uploaded copy" in capsys.readouterr().err
