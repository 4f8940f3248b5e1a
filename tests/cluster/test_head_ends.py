"""The walk of docs/how-to/cluster.md on local clusters, with the commands themselves.

A training is submitted, a node is lost, the head is told to end and leaves a checkpoint, and the same command goes on
elsewhere. A refused job stays ended. (test_local_cluster.py submits a build.)
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

from cluster import head, local
from pipeline.settings import dump_yaml
from processes import command_of
from small_runs import make_config, write_small_set
from trainer.checkpoint.format import find_checkpoints
from trainer.telemetry.metrics import read_json_lines

STEPS = 100_000
EVERY_STEPS = 5
MORE = 10
"""Steps that the second command makes after the first one's last."""

SOON_DEAD = {"RAY_health_check_period_ms": "1000"}
"""Five checks of a node fail before it counts as dead: with this, after 5 s."""


def wait_until(true: Any, *, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)


def steps_of(run: Path) -> list[int]:
    path = run / "metrics.jsonl"
    return [record["step"] for record in read_json_lines(path)] if path.exists() else []


def node_with_worker(cluster: local.LocalCluster) -> str | None:
    """The name of the node that trains, or None while none does."""
    for name, started in cluster.processes.items():
        root = started.find()
        children = [] if root is None else root.children(recursive=True)
        if any("RayTrainWorker" in command_of(child) for child in children):
            return name
    return None


def kill_node_with_worker(cluster: local.LocalCluster) -> str:
    name = node_with_worker(cluster)
    assert name is not None
    root = cluster.processes[name].find()
    assert root is not None
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended with its parent
            process.kill()
    return name


@pytest.fixture
def environment(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    monkeypatch.setenv(local.STATE, str(tmp_path / "state" / "cluster.json"))
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    yield kept | {"PYTHONPATH": str(repository)} | SOON_DEAD
    running = local.read()
    if running is not None:
        local.end(running)


@pytest.mark.ray
def test_a_head_that_is_told_to_end_leaves_a_checkpoint_and_the_same_command_goes_on_elsewhere(
    tmp_path: Path, repository: Path, environment: dict[str, str]
) -> None:
    def call(module: str, *words: str, status: int = 0) -> str:
        command = [sys.executable, "-m", f"cluster.{module}", *words]
        done = subprocess.run(
            command, cwd=repository, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    run = tmp_path / "run"
    config = make_config(
        *(write_small_set(tmp_path / "data"), run),
        **{"workers": 1, "cpus_per_worker": 1, "launcher": "ray", "checkpoint": {"every_steps": EVERY_STEPS}},
        logging={"tracker": "none", "every_steps": 1},
    )
    (tmp_path / "c.yaml").write_text(dump_yaml(config, given=True), encoding="utf-8")
    train = ("--no-wait", "train", "--config", str(tmp_path / "c.yaml"))

    call("local", "start", "--nodes=2")
    cluster = local.read()
    assert cluster is not None
    call("submit", *train, f"max_steps={STEPS}")
    wait_until(lambda: len(steps_of(run)) > EVERY_STEPS)
    lost = kill_node_with_worker(cluster)
    reached = find_checkpoints(run).folders[-1].name
    wait_until(lambda: find_checkpoints(run).folders[-1].name > reached)
    assert node_with_worker(cluster) not in (None, lost)

    root = cluster.processes["head"].find()
    assert root is not None
    root.send_signal(signal.SIGTERM)
    wait_until(lambda: local.has_ended(cluster.processes["head"]))
    assert "all jobs have ended" in (Path(cluster.folder) / "head.log").read_text(encoding="utf-8")
    last = steps_of(run)[-1]
    assert int(find_checkpoints(run).folders[-1].name.rpartition("-")[2]) == last, "the last step is in a checkpoint"
    call("local", "stop")

    call("local", "start", "--nodes=1")
    call("submit", *train[1:], f"max_steps={last + MORE}")
    assert steps_of(run) == list(range(1, last + MORE + 1)), "no step twice, none left out"

    # What KubeRay runs: a refused command is stopped, so that it is not started again.
    logs = tmp_path / "logs"
    cluster = local.read()
    assert cluster is not None
    ray = [str(Path(sys.executable).with_name("ray")), "job", "submit", "--submission-id=refused", "--"]
    wrapped = [sys.executable, "-m", "cluster.job", f"--logs={logs}", f"--dashboard={cluster.dashboard}"]
    refused = [*wrapped, sys.executable, "trainer/run.py", "wokers=1"]
    subprocess.run([*ray, *refused], cwd=repository, env=environment | cluster.environment, timeout=300, check=False)
    assert "refused: STOPPED" in call("submit", "status", "refused")
    assert "did you mean 'workers'" in (logs / "refused.log").read_text(encoding="utf-8")
    call("local", "stop")


def test_the_mark_of_a_job_is_rays() -> None:
    assert head.MARK == RAY_JOB_CONFIG_JSON_ENV_VAR
