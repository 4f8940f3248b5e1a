"""`make local-cluster`, `make submit`, `make local-cluster-stop`: two nodes preprocess and train, Prometheus sees it.

The commands themselves, on a cluster of the test's own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import psutil
import pytest

from cluster import local
from corpora import make_documents, write_text, write_vocabulary
from pipeline.engines import prometheus
from pipeline.settings import load_settings
from ports import beyond_loopback, listeners_of
from processes import command_of
from trainer.config.schema import TrainerConfig
from trainer.telemetry.metrics import read_json_lines
from trainer.telemetry.prometheus import list_names

MAX_STEPS = 120
RARE = {
    "skipped_steps_total",
    "lost_rows_total",
    "restarts_total",
    "mfu",
    "build_drops_total",
    "build_duplicates_total",
}
"""Metrics that are served only after the event; mfu only if the GPU's peak is known."""


@pytest.mark.ray
def test_two_nodes_of_a_local_cluster_train_a_submitted_config(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(local.STATE, str(tmp_path / "state" / "cluster.json"))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment |= {"PYTHONPATH": str(repository)}

    def call(module: str, *words: str, status: int = 0) -> str:
        command = [sys.executable, "-m", f"cluster.{module}", *words]
        done = subprocess.run(
            command, cwd=repository, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    documents = make_documents(2_000)
    for number in range(4):
        write_text(tmp_path / "text" / f"{number}.txt", documents[number::4])
    write_vocabulary(tmp_path / "vocab.txt")
    build = tmp_path / "b.yaml"
    build.write_text(
        f"sources: [{{kind: text, path: {tmp_path / 'text'}}}]\nvocabulary: {{path: {tmp_path / 'vocab.txt'}}}\n"
        f"output: {tmp_path / 'data'}\nmax_seq_length: 32\nvalidation_fraction: 0.1\nshards: 4\n"
        "workers: 2\n",
        encoding="utf-8",
    )
    config = tmp_path / "c.yaml"
    config.write_text(
        f"data: {tmp_path / 'data'}\noutput: {tmp_path / 'run'}\nmodel: {{size: tiny}}\nbatch: {{pairs: 8, lanes: 4}}\n"
        f"max_steps: {MAX_STEPS}\nworkers: 2\nprecision: fp32\nthreads_per_worker: 1\n"
        f"evaluation: {{every_steps: 60, max_pairs: 16}}\n"
        f"checkpoint: {{every_steps: 40}}\nlogging: {{tracker: none}}\n",
        encoding="utf-8",
    )
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)", "raylet"])
    assert "start a cluster on this machine with `make local-cluster`" in call("submit", "list", status=2)
    call("local", "start")
    try:
        cluster = local.read()
        assert cluster is not None
        assert f"a local cluster already runs at {cluster.dashboard}" in call("local", "start", status=2)
        assert f"export RAY_ADDRESS={cluster.dashboard}" in call("local", "env")
        seen: set[str] = set()
        found: set[tuple[str, int, str]] = set()
        homes: set[str] = set()
        nices: set[int] = set()
        ended = threading.Event()
        watcher = threading.Thread(target=watch, args=(cluster, seen, homes, nices, found, ended))
        watcher.start()
        try:
            built = call("submit", "preprocess", "--config", str(build))
            text = call("submit", "--id", "one", "train", "--config", str(config))
        finally:
            ended.set()
            watcher.join()
        assert "Ray: 2 workers of 1 CPU and 1 preprocessing" in built
        assert "one: SUCCEEDED" in text
        assert "one: SUCCEEDED" in call("submit", "status", "one")
        assert "error:" in call("submit", "stop", "two", status=2)
        assert "one  SUCCEEDED  python trainer/run.py --config job.yaml" in call("submit", "list")
        unpacked = {path.name for path in Path(cluster.folder).glob("session_*/runtime_resources-*")}
        assert len(unpacked) == len(cluster.processes), "each node unpacks the jobs' code into a folder of its own"
    finally:
        text = call("local", "stop")
    ended_processes = re.search(r"ended (\d+) processes", text)
    assert ended_processes is not None
    assert int(ended_processes[1]) > 3
    assert all(process.find() is None for process in cluster.processes.values())
    assert not Path(cluster.folder).exists()
    assert "no local cluster runs" in call("local", "stop")
    assert "start one with `make local-cluster`" in call("local", "env", status=2)
    assert stranger.poll() is None
    stranger.kill()
    assert len(read_json_lines(tmp_path / "run" / "metrics.jsonl")) == MAX_STEPS
    assert load_settings(TrainerConfig, file=tmp_path / "run" / "config.yaml").cpus_per_worker == local.CPUS_PER_WORKER
    assert homes == {"node-1", "node-2"}
    assert len({port for _, port, _ in found}) > 20
    assert beyond_loopback(found) == []
    assert nices == {os.nice(0)}, "Ray's own would be nicer by 15"
    names = [*list_names(), *prometheus.list_names()]
    assert {name for name in names if name.removeprefix("ray_cloze_") not in RARE} <= seen


def watch(
    cluster: local.LocalCluster,
    seen: set[str],
    homes: set[str],
    nices: set[int],
    found: set[tuple[str, int, str]],
    ended: threading.Event,
) -> None:
    """Note which names Prometheus is served, which nodes have a training worker, the workers' niceness, and what all
    processes listen on."""
    roots = {name: psutil.Process(started.pid) for name, started in cluster.processes.items()}
    ports = {name: metrics_port(root) for name, root in roots.items()}
    while not ended.wait(1.0):
        for name, root in roots.items():
            found |= listeners_of(root)
            for process in root.children(recursive=True):
                if "RayTrainWorker" in command_of(process):
                    homes.add(name)
                    nices.add(process.nice())
        for port in ports.values():
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    seen.update(re.findall(r"^(ray_cloze_\w+)\{", answer.read().decode(), re.MULTILINE))
            except OSError:  # not there yet
                continue


def metrics_port(root: psutil.Process) -> int:
    (word,) = [word for word in root.cmdline() if word.startswith("--metrics-export-port=")]
    return int(word.partition("=")[2])
