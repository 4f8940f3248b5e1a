"""KubeRay's autoscaler (v2) with real raylets: work brings nodes of its own kind alone, from zero and back to zero.

One session, on the RayCluster that we ship, with a token: preprocessing, then elastic training that loses a pod by
eviction and grows again, then nothing.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private.authentication_test_utils import reset_auth_token_state
from ray._raylet import GcsClient
from ray.autoscaler.v2.utils import is_autoscaler_v2

from cluster.render import VALUES
from cluster.render.kuberay import render_cluster
from cluster.render.values import KubernetesValues
from local_kuberay import LocalKubeRay
from pipeline.settings import load_settings
from pipeline.signals import StopRequest
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
SMALL = (
    "namespace=lab",
    "cpu={cpus: 2, memory_gib: 2, max_nodes: 2}",
    "gpu={cpus: 2, memory_gib: 4, gpus: 8, max_nodes: 3}",  # one more than the training
    "shm_gib=1",
    "commands.preprocess=python pipeline/run.py --config /shared/a.yaml --engine ray ray.resource=preprocessing "
    "workers=4",
    "commands.train=python trainer/run.py --config /shared/b.yaml workers=24",
)
IDLE_S = 5
PATIENT_S = 1200
"""While the group of workers starts or changes, its nodes have no work; that may take longer than IDLE_S."""
WAIT_S = 240.0
MAX_STEPS = 1_000_000  # without end: the test ends it


@pytest.fixture
def kubernetes(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalKubeRay]:
    """Our RayCluster, small, with pods of processes on this machine; Ray of this process has its token."""
    cluster = render_cluster(load_settings(KubernetesValues, file=VALUES / "kubernetes.yaml", overrides=SMALL))
    let_go_after(IDLE_S, cluster)
    _, gpu = cluster["spec"]["workerGroupSpecs"]
    gpu["resources"] |= {name: str(int(amount)) for name, amount in PLACE.items()}
    variables = {"PYTHONPATH": f"{repository}{os.pathsep}{repository / 'tests' / 'support'}"}
    made = LocalKubeRay(cluster, repository=repository, folder=tmp_path, variables=variables)
    with monkeypatch.context() as patch:
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
            patch.setenv(name, made.head.environment[name])
        patch.setenv("RAY_ADDRESS", made.address)
        reset_auth_token_state()
        yield made
    reset_auth_token_state()
    made.close()


def let_go_after(seconds: int, cluster: dict[str, Any]) -> None:
    """Let the autoscaler end nodes that are idle for so long; it reads the RayCluster anew at each look."""
    cluster["spec"]["autoscalerOptions"]["idleTimeoutSeconds"] = seconds


def kinds() -> Counter[str]:
    """Nodes by kind; the head and those that were given notice left out."""
    nodes = look_at_nodes()
    return Counter(
        "gpu" if "GPU" in resources else "cpu"
        for node, resources in nodes.total.items()
        if "CPU" in resources and node not in nodes.leaving
    )


@pytest.mark.ray
def test_work_brings_nodes_of_its_kind_alone_and_they_go(
    kubernetes: LocalKubeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ray#47866, #31202: CPU work wakes 8-GPU nodes. ray#58481, #64703, kuberay#3738: nodes never scale down."""
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
        assert is_autoscaler_v2(fetch_from_server=True, gcs_client=GcsClient(address=kubernetes.address))
        assert ask_without_token(kubernetes) == 401
        assert kinds() == {}
        work = ray.remote(num_cpus=1, resources={"preprocessing": 1})(preprocess)
        homes = set(ray.get([work.remote() for _ in range(2)], timeout=WAIT_S))
        assert set(kinds()) == {"cpu"}
        assert homes <= look_at_nodes().total.keys()
        wait_until_empty(kubernetes)
        assert {group for group, _ in kubernetes.asked} == {"cpu"}

        kubernetes.asked.clear()
        said, outcome = train_while_nodes_come_and_go(settled, kubernetes=kubernetes)
        wait_until_empty(kubernetes)
    assert {group for group, _ in kubernetes.asked} == {"gpu"}
    assert max(number for _, number in kubernetes.asked) in (2, 3)
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


def ask_without_token(kubernetes: LocalKubeRay) -> int:
    """The HTTP status with which the head's dashboard answers who has no token."""
    try:
        with urllib.request.urlopen(f"{kubernetes.head.environment['RAY_API_SERVER_ADDRESS']}/api/jobs/") as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def wait_until_empty(kubernetes: LocalKubeRay) -> None:
    """Wait until no node and no pod is left but the head's."""
    deadline = time.monotonic() + WAIT_S
    while kinds() or kubernetes.pods:
        assert time.monotonic() < deadline, f"nodes are {kinds()}, pods {kubernetes.pods}"
        time.sleep(0.2)


class Play:
    """What happens to the pods, by what the driver says; it ends with a request to stop.

    Once two workers train, a pod is evicted, and Kubernetes has no room for the next before one worker trains alone.
    Once two train again, all is seen. `said`: the driver's lines.
    """

    def __init__(self, kubernetes: LocalKubeRay) -> None:
        self.said: list[str] = []
        self.stop = StopRequest()
        self.evicted: threading.Event | None = None
        self._kubernetes = kubernetes
        self._size = ""
        self._acts = iter((("2 workers", self._evict), ("1 worker", self._make_room), ("2 workers", self._end)))
        self._expected, self._act = next(self._acts)
        let_go_after(PATIENT_S, kubernetes.cluster)
        self._deadline = threading.Timer(3 * WAIT_S, self._end)
        self._deadline.daemon = True
        self._deadline.start()

    def say(self, line: str) -> None:
        self.said.append(line)
        if "BERT tiny, " in line:
            self._size = line.split("BERT tiny, ")[1].split(" on ")[0]
        if line.startswith("step ") and self._size == self._expected:
            self._act()
            self._expected, self._act = next(self._acts, ("", self._end))

    def _evict(self) -> None:
        assert {group for group, _ in self._kubernetes.asked} == {"gpu"}
        self._kubernetes.room = False
        (node, address), *_ = [
            (each["NodeID"], each["NodeManagerAddress"])
            for each in ray.nodes()
            if each["Alive"] and "GPU" in each["Resources"]
        ]
        (pod,) = [pod for pod in self._kubernetes.pods.values() if pod.address == address]
        self.evicted = self._kubernetes.delete(pod.name, node=node)

    def _make_room(self) -> None:
        self._kubernetes.room = True

    def _end(self) -> None:
        self._deadline.cancel()
        let_go_after(IDLE_S, self._kubernetes.cluster)
        self.stop.signal_number = signal.SIGTERM


def train_while_nodes_come_and_go(config: TrainerConfig, *, kubernetes: LocalKubeRay) -> tuple[list[str], Outcome]:
    """The driver's lines, and what the training came to."""
    play = Play(kubernetes)
    write_config(config)
    per_worker = ray_train.resources_of(config)
    watch = GroupWatch(config, per_worker=per_worker, pending=PendingPlacements(per_worker))
    attempt = partial(run_on_ray, config, say=play.say, stop=play.stop, watch=watch)
    outcome = run_attempts(
        attempt, config=config, checkpoints=find_checkpoints(config.output), say=play.say, stop=play.stop
    )
    assert play.evicted is not None, play.said
    assert play.evicted.wait(WAIT_S)
    return play.said, outcome
