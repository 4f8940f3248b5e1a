"""Ray's autoscaler with real raylets: work brings nodes of its own kind alone, from zero and back to zero.

One session: preprocessing, then elastic training that loses a node by notice and grows again, then nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path

import psutil
import pytest
import ray

from pipeline.signals import StopRequest
from processes import command_of
from ray_head import Head
from small_runs import make_config, write_small_set
from trainer.checkpoint.load import find_checkpoints
from trainer.config.schema import TrainerConfig
from trainer.launch import ray_train
from trainer.launch.elastic import GroupWatch, PendingPlacements, look_at_nodes
from trainer.launch.ray_train import ray_session, run_on_ray
from trainer.launch.restarts import run_attempts
from trainer.launch.run_directory import write_config
from trainer.telemetry.metrics import read_json_lines
from trainer.train.link import Outcome

PLACE = {"accelerator": 1.0}
"""What a worker asks for: GPUs of these nodes are of paper, so a resource stands for them that only GPU nodes have."""
TYPES = {
    "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
    "cpu": {"resources": {"CPU": 2, "preprocessing": 2}, "node_config": {}, "min_workers": 0, "max_workers": 2},
    "gpu": {
        "resources": {"CPU": 2, "GPU": 8, "accelerator": 1},
        "node_config": {},
        "min_workers": 0,
        "max_workers": 3,  # one more than the training: what goes counts until it is gone
    },
}
WAIT_S = 240.0
MAX_STEPS = 1_000_000  # without end: the test ends it


@pytest.fixture
def head(repository: Path, tmp_path: Path) -> Iterator[Head]:
    """A head whose autoscaler makes nodes of processes on this machine."""
    address = f"{ray.util.get_node_ip_address()}:PORT"
    provider = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
    config = {
        "cluster_name": "cloze",
        "max_workers": 5,
        "idle_timeout_minutes": 0.2,
        "upscaling_speed": 100.0,
        "provider": {
            "type": "external",
            "module": provider,
            "gcs_address": address,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
        },
        "head_node_type": "ray.head.default",
        "available_node_types": TYPES,
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        **{f"{part}_commands": [] for part in ("initialization", "setup", "head_setup", "worker_setup")},
        **{f"{part}_start_ray_commands": [] for part in ("head", "worker")},
    }
    path = tmp_path / "autoscaler.json"

    class Autoscaled(Head):
        def call(self, *words: str, check: bool = True, cwd: Path | None = None) -> str:
            path.write_text(json.dumps(config).replace("PORT", str(self.port)), encoding="ascii")
            return super().call(*words, check=check, cwd=cwd)

    made = Autoscaled(
        repository,
        words=[
            *("--num-cpus=0", "--include-dashboard=false", f"--autoscaling-config={path}"),
            '--resources={"grows_to_CPU": 10}',
        ],
        variables={
            "RAY_FAKE_CLUSTER": "1",
            "RAY_AUTH_MODE": "disabled",
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "AUTOSCALER_HEARTBEAT_TIMEOUT_S": "10",
            "PYTHONPATH": f"{repository}{os.pathsep}{repository / 'tests' / 'support'}",
        },
    )
    yield made
    made.close()


def kinds() -> Counter[str]:
    """Nodes by kind; the head and those that were given notice left out."""
    nodes = look_at_nodes()
    return Counter(
        "gpu" if "GPU" in resources else "cpu"
        for node, resources in nodes.total.items()
        if "CPU" in resources and node not in nodes.leaving
    )


def wait_for(nodes: dict[str, int]) -> None:
    deadline = time.monotonic() + WAIT_S
    while kinds() != nodes:
        assert time.monotonic() < deadline, f"nodes are {kinds()}, not {nodes}"
        time.sleep(0.2)


@pytest.mark.ray
def test_work_brings_nodes_of_its_kind_alone_and_they_go(
    head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ray#47866, #31202: CPU work wakes 8-GPU nodes. ray#58481, #64703: nodes never scale down."""
    address = f"{ray.util.get_node_ip_address()}:{head.port}"
    for name, value in {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "disabled"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ray_train, "resources_of", lambda config: dict(PLACE))
    write_small_set(tmp_path / "data")
    config = make_config(
        tmp_path / "data",
        tmp_path / "run",
        launcher="ray",
        max_steps=MAX_STEPS,
        min_workers=1,
        resize_interval_s=1,
        logging={"every_steps": 1, "tracker": "none"},
    )

    def preprocess() -> str:  # in here, so that workers need not import this file
        time.sleep(0.1)
        return str(ray.get_runtime_context().get_node_id())

    with ray_session(config) as settled:
        assert kinds() == {}
        work = ray.remote(num_cpus=1, resources={"preprocessing": 1})(preprocess)
        homes = set(ray.get([work.remote() for _ in range(2)], timeout=WAIT_S))
        assert set(kinds()) == {"cpu"}
        assert homes <= look_at_nodes().total.keys()
        wait_for({})

        said, outcome = train_while_nodes_come_and_go(settled, head=head, address=address)
        assert kinds()["cpu"] == 0
        wait_for({})
    groups = [line.split("BERT tiny, ")[1].split(" on ")[0] for line in said if "BERT tiny, " in line]
    sizes = [size for size, _ in groupby(groups)]  # Ray may grow in vain at first
    if sizes[0] == "1 worker":  # Ray begins with the node that is there first
        sizes = sizes[1:]
    assert sizes == ["2 workers", "1 worker", "2 workers"]
    assert any("will go away" in line for line in said)
    assert "there is room for 2 workers instead of 1; the workers write a checkpoint" in said
    assert [record["step"] for record in read_json_lines(tmp_path / "run" / "metrics.jsonl")] == [
        *range(1, outcome.last_step + 1)
    ]


class Play:
    """What happens to the nodes, by what the driver says; it ends with a request to stop.

    Once two workers train, a node is given notice; none comes before one worker trains alone, since the autoscaler is
    stopped so long. Once two train again, all is seen. `said`: the driver's lines.
    """

    def __init__(self, autoscaler: psutil.Process, *, address: str) -> None:
        self.said: list[str] = []
        self.stop = StopRequest()
        self._autoscaler, self._address = autoscaler, address
        self._size = ""
        self._acts = iter((("2 workers", self._give_notice), ("1 worker", autoscaler.resume), ("2 workers", self._end)))
        self._expected, self._act = next(self._acts)
        self._deadline = threading.Timer(3 * WAIT_S, self._end)
        self._deadline.daemon = True
        self._deadline.start()
        self.notice: subprocess.Popen[bytes] | None = None

    def say(self, line: str) -> None:
        self.said.append(line)
        if "BERT tiny, " in line:
            self._size = line.split("BERT tiny, ")[1].split(" on ")[0]
        if line.startswith("step ") and self._size == self._expected:
            self._act()
            self._expected, self._act = next(self._acts, ("", self._end))

    def _give_notice(self) -> None:
        """As a spot machine does."""
        self._autoscaler.suspend()
        gpus = [node for node, resources in look_at_nodes().total.items() if "GPU" in resources]
        command = [sys.executable, "-m", "cluster.notice", f"--address={self._address}", f"--node-id={gpus[0]}"]
        self.notice = subprocess.Popen([*command, "--seconds=120"])

    def _end(self) -> None:
        self._deadline.cancel()
        self._autoscaler.resume()
        self.stop.signal_number = signal.SIGTERM


def train_while_nodes_come_and_go(config: TrainerConfig, *, head: Head, address: str) -> tuple[list[str], Outcome]:
    """The driver's lines, and what the training came to."""
    (autoscaler,) = [each for each in head.processes() if "/monitor.py" in command_of(each)]
    play = Play(autoscaler, address=address)
    write_config(config)
    per_worker = ray_train.resources_of(config)
    watch = GroupWatch(config, per_worker=per_worker, pending=PendingPlacements(per_worker))
    attempt = partial(run_on_ray, config, say=play.say, stop=play.stop, watch=watch)
    outcome = run_attempts(
        attempt, config=config, checkpoints=find_checkpoints(config.output), say=play.say, stop=play.stop
    )
    assert play.notice is not None, play.said
    assert play.notice.wait(WAIT_S) == 0
    return play.said, outcome
