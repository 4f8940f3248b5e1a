"""Starts a Ray cluster of processes on this machine: `make local-cluster`, `make local-cluster-stop`.

The head has no CPUs for work. The head and each node run as a process `ray start --block`, and the head's process is
below a process that ends the jobs first (cluster/head.py). Everything listens on 127.0.0.1 only, so no other machine
can reach it. Every other process of the cluster is a child of one of these processes. So the command to stop ends
exactly the processes of this cluster, whereas `ray stop` would end every Ray on this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from cluster import PREPROCESSING, REPOSITORY
from cluster.head import end_jobs
from pipeline.console import command, exit_with
from pipeline.settings import ConfigError
from pipeline.units import count_of

STATE = "CLOZE_LOCAL_CLUSTER"
"""The environment variable that names a state file to use instead of build/local-cluster.json."""
RAY = [sys.executable, "-P", str(REPOSITORY / "cluster" / "local_ray.py")]
"""The `ray` command that keeps a node on 127.0.0.1. With -P, Python does not look for modules beside the script."""
NODE_CPUS = 2
CPUS_PER_WORKER = 1.5
"""CPUs of a training worker. A node (NODE_CPUS) has room for one worker, and the rest of its CPUs reads data."""
STORE_BYTES = 200_000_000
START_TIMEOUT_S = 120.0
ATTEMPTS = 3
END_TIMEOUT_S = 10.0
END_JOBS_S = 120.0
"""Longest wait in seconds until jobs have ended, each with a checkpoint, before the head ends."""
MAX_CLOCK_CORRECTION_S = 60.0
"""A process with the recorded id counts as the recorded process if their start times differ by less than this number of
seconds. A correction of the clock explains such a difference. A new process gets an old id only much later."""


@dataclass(frozen=True, slots=True)
class Started:
    """A process that was started. It is identified by process id and start time, because process ids are reused."""

    pid: int
    began: float
    """Start time in seconds since 1970, as psutil reports it. A correction of the clock changes it."""

    def find(self) -> psutil.Process | None:
        """Return the process if it still exists, else None."""
        try:
            process = psutil.Process(self.pid)
            return process if abs(process.create_time() - self.began) < MAX_CLOCK_CORRECTION_S else None
        except psutil.NoSuchProcess:
            return None


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A cluster of processes on this machine, as recorded in build/local-cluster.json."""

    address: str
    """Address of the head, HOST:PORT."""
    dashboard: str
    """Address of the dashboard, which takes jobs: http://HOST:PORT."""
    token: str
    folder: str
    """Folder with Ray's files and a log of each node."""
    processes: dict[str, Started]
    """Maps the name of each node to its `ray start` process."""

    @property
    def port(self) -> int:
        """Port of the head."""
        return int(self.address.rpartition(":")[2])

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables (a dict from name to value) by which Ray's and our commands find this cluster."""
        return {
            "RAY_ADDRESS": self.dashboard,
            "RAY_API_SERVER_ADDRESS": self.dashboard,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
        }


def start(*, nodes: int) -> LocalCluster:
    """Start a cluster and return it. It has a head and as many other nodes as `nodes` says. Raises ConfigError if a
    local cluster runs already, or if a node does not start."""
    running = read()
    if running is not None:
        raise ConfigError(
            f"a local cluster already runs at {running.dashboard}; stop it with `make local-cluster-stop`"
        )
    folder = Path(tempfile.mkdtemp(prefix="cloze-", dir="/tmp"))  # paths of sockets must be short
    head, dashboard, client = free_ports(3)
    token = secrets.token_hex(32)
    cluster = LocalCluster(f"127.0.0.1:{head}", f"http://127.0.0.1:{dashboard}", token, str(folder), {})
    try:
        state_file().parent.mkdir(parents=True, exist_ok=True)
        arguments = [
            *("--head", f"--port={head}", "--node-ip-address=127.0.0.1", f"--temp-dir={folder}", "--num-cpus=0"),
            *("--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}"),
        ]
        start_node(cluster, "head", arguments, count=1)
        for number in range(1, 1 + nodes):
            arguments = [
                *(f"--address={cluster.address}", "--node-ip-address=127.0.0.1", f"--num-cpus={NODE_CPUS}"),
                f"--resources={json.dumps({PREPROCESSING: NODE_CPUS})}",
            ]
            start_node(cluster, f"node-{number}", arguments, count=number + 1)
    except BaseException:
        end(cluster)
        raise
    return cluster


def start_node(cluster: LocalCluster, name: str, arguments: Sequence[str], *, count: int) -> None:
    """Start the node that is called `name` by `ray start` with `arguments`. Wait until the number of living nodes, the
    head included, is `count`.

    If `ray start` ends by itself, start it again, because Ray gives up after 30 s, which may be too short on a busy
    machine. Raises ConfigError if the node does not start in ATTEMPTS attempts.
    """
    for left in reversed(range(ATTEMPTS)):
        launch_node(cluster, name, arguments)
        try:
            wait_for_nodes(cluster, count)
            return
        except ConfigError:
            if not left or not has_ended(cluster.processes[name]):
                raise


def has_ended(started: Started) -> bool:
    """Whether the process has ended. True also for a zombie, which has ended but still has its process id."""
    process = started.find()
    return process is None or process.status() == psutil.STATUS_ZOMBIE


def launch_node(cluster: LocalCluster, name: str, arguments: Sequence[str]) -> None:
    """Start the node that is called `name` by running `ray start` with `arguments`. Record the process at once in
    `cluster` and in the state file, the JSON file that describes the running cluster."""
    agent, metrics = free_ports(2)
    environment = {
        "RAY_worker_niceness": "0",  # at Ray's 15, workers get almost no time on a busy machine
        # Names in capitals (RAY_ADDRESS) may point to another cluster. Other names (RAY_worker_niceness) are settings.
        **{key: value for key, value in os.environ.items() if not (key.startswith("RAY_") and key[4:5].isupper())},
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": cluster.token,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # see local_ray.py
        "RAY_JOB_STOP_WAIT_TIME_S": "600",
        "RAY_metrics_report_interval_ms": "1000",  # often, because jobs here are short
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    command = [
        *(*RAY, "start", *arguments, "--block", f"--object-store-memory={STORE_BYTES}"),
        *(f"--dashboard-agent-listen-port={agent}", f"--metrics-export-port={metrics}"),
    ]
    if name == "head":  # at SIGTERM, jobs end with a checkpoint before it; then nothing is left that Ray could drain
        environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = "0"
        first = [f"--port={cluster.port}", f"--seconds={END_JOBS_S}", "--"]
        command = [sys.executable, "-m", "cluster.head", *first, *command]
    with open(Path(cluster.folder) / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    cluster.processes[name] = Started(process.pid, psutil.Process(process.pid).create_time())
    state = state_file()
    temporary = state.with_suffix(".partial")
    temporary.touch(mode=0o600)  # the file holds the token
    temporary.write_text(json.dumps(asdict(cluster), indent=1), encoding="ascii")
    os.replace(temporary, state)


def wait_for_nodes(cluster: LocalCluster, count: int) -> None:
    """Wait until the number of living nodes of the cluster, the head included, is `count`.

    Raises ConfigError, with the end of a node's log, if a node ends or if START_TIMEOUT_S seconds pass.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while count_nodes(cluster) < count:
        for name, process in cluster.processes.items():
            if has_ended(process) or time.monotonic() > deadline:
                log = (Path(cluster.folder) / f"{name}.log").read_text(encoding="utf-8", errors="replace")
                raise ConfigError(f"node {name} of the local cluster did not start: {log[-2000:]}")
        time.sleep(0.2)


def count_nodes(cluster: LocalCluster) -> int:
    """Return the number of living nodes that the dashboard reports, including the head. Return 0 if the dashboard does
    not answer yet."""
    url = f"{cluster.dashboard}/api/v0/nodes?limit=1000"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {cluster.token}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            found = json.load(answer)["data"]["result"]["result"]
    except (OSError, ValueError, KeyError, TypeError):  # the dashboard or the head is not ready yet
        return 0
    return sum(node["state"] == "ALIVE" for node in found)


def state_file() -> Path:
    """Return the path of the JSON file that records the running cluster."""
    return Path(os.environ.get(STATE) or REPOSITORY / "build" / "local-cluster.json")


def read() -> LocalCluster | None:
    """Return the running local cluster, or None if there is none. If a cluster is recorded but its processes have
    ended, remove its files."""
    try:
        tree = json.loads(state_file().read_text(encoding="ascii"))
    except FileNotFoundError:
        return None
    processes = {name: Started(**started) for name, started in tree.pop("processes").items()}
    cluster = LocalCluster(**tree, processes=processes)
    if any(process.find() is not None for process in processes.values()):
        return cluster
    end(cluster)
    return None


def end(cluster: LocalCluster) -> int:
    """End every process of the cluster and remove the cluster's files. Return the number of processes ended.

    Jobs that still run end first, each with a checkpoint. Then nothing is left to save, so the processes are killed: at
    SIGTERM, a node would drain for up to 30 s, and for as long as that if its head has ended before it.
    """
    roots = [process for started in cluster.processes.values() if (process := started.find()) is not None]
    if roots:
        end_jobs(cluster.port, seconds=END_JOBS_S)
    tree = [process for root in roots for process in with_children(root)]
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(tree, timeout=END_TIMEOUT_S)
    shutil.rmtree(cluster.folder, ignore_errors=True)
    state_file().unlink(missing_ok=True)
    return len(tree)


def with_children(root: psutil.Process) -> list[psutil.Process]:
    """Return `root` and all processes below it, or nothing if `root` has just ended, as nodes do that have lost their
    head."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def free_ports(count: int) -> list[int]:
    """Return `count` free ports of 127.0.0.1."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Start or stop the local cluster, or print its environment variables. Return the exit status 0."""
    parser = argparse.ArgumentParser(prog="python -m cluster.local", description=__doc__)
    parser.add_argument("action", choices=["start", "stop", "env"])
    parser.add_argument("--nodes", type=int, default=2, help="number of nodes besides the head (default: 2)")
    options = parser.parse_args(arguments)
    if options.action == "start":
        cluster = start(nodes=options.nodes)
        nodes = f"{count_of(options.nodes, 'node')} of {count_of(NODE_CPUS, 'CPU')}"
        print(f"started a head and {nodes}: {cluster.dashboard}")
        print(f"Ray's files: {cluster.folder}")
        print("to run a job: make submit CONFIG=trainer/configs/sample.yaml; to stop: make local-cluster-stop")
        return 0
    running = read()
    if options.action == "stop":
        print(
            "no local cluster runs"
            if running is None
            else f"ended {count_of(end(running), 'process', plural='processes')}"
        )
        return 0
    if running is None:
        raise ConfigError("no local cluster runs; start one with `make local-cluster`")
    for name, value in running.environment.items():
        print(f"export {name}={value}")
    return 0


if __name__ == "__main__":
    exit_with(main())
