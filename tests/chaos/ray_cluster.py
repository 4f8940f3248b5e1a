"""A Ray cluster of processes on this machine: a head and nodes with addresses of their own, ended by process id.

Never `ray stop`: it ends every Ray process of the machine.
"""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from cluster.local import free_ports
from processes import command_of

from .runs import ChaosError, Stage, marked

RAY = str(Path(sys.executable).with_name("ray"))
NODE_MARK = "CLOZE_CHAOS_NODE"
NODE_CPUS = 2
CPUS_PER_WORKER = 1.5
"""So that a node holds one worker, and its rest is for the reading of data."""


class Cluster:
    """A head without places for workers, and nodes with one place each. Use as a context manager."""

    def __init__(self, stage: Stage) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="cloze-ray-", dir="/tmp"))  # socket paths must be short
        (self.port,) = free_ports(1)
        self.environment = {
            **stage.environment,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_health_check_period_ms": "1000",  # so that a dead node is seen in 5 s
            "RAY_health_check_timeout_ms": "2000",
        }
        self.address = f"127.0.0.1:{self.port}"
        self._marks: dict[str, str] = {}
        self._next = 2
        try:
            self._start(
                "head",
                *("--head", f"--port={self.port}", "--node-ip-address=127.0.0.1", f"--temp-dir={self.folder}"),
                *("--num-cpus=0", "--include-dashboard=false"),
            )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes that were added."""
        return [name for name in self._marks if name != "head"]

    @property
    def driver_environment(self) -> dict[str, str]:
        """By which a command finds the cluster."""
        own = {key: value for key, value in self.environment.items() if key.startswith("RAY_")}
        return {**own, "RAY_ADDRESS": self.address}

    def add_node(self) -> str:
        """Start a node; returns its name."""
        name, self._next = f"127.0.0.{self._next}", self._next + 1
        self._start(name, f"--address={self.address}", f"--node-ip-address={name}", f"--num-cpus={NODE_CPUS}")
        return name

    def kill_node(self, name: str) -> float:
        """SIGKILL of a node's raylet, and of nothing else; returns when."""
        (raylet,) = [process for process in self._processes(name) if process.name() == "raylet"]
        now = time.monotonic()
        raylet.kill()
        return now

    def kill_head(self) -> float:
        """SIGKILL of all processes of the head and the nodes; returns when."""
        now = time.monotonic()
        self._kill([process for name in self._marks for process in self._processes(name)])
        return now

    def drain_node(self, name: str, *, seconds: int) -> float:
        """Give notice that a node will go, as a pre-emption does; returns when."""
        now = time.monotonic()
        self._call(
            *("drain-node", f"--address={self.address}", f"--node-id={self.node_id(name)}"),
            *("--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=chaos"),
            f"--deadline-remaining-seconds={seconds}",
        )
        return now

    def node_id(self, name: str) -> str:
        """Ray's id of a node."""
        for process in self._processes(name):
            found = re.search(r"--node[-_]id[= ]([0-9a-f]{56})", command_of(process))
            if found:
                return found[1]
        raise ChaosError(f"no process of node {name} names its id")

    def workers(self) -> list[tuple[str, psutil.Process]]:
        """(node, process) of the training workers, by node."""
        return [
            (name, process)
            for name in self._marks
            for process in self._processes(name)
            if command_of(process).startswith("ray::") and "TrainWorker" in command_of(process)
        ]

    def close(self) -> None:
        """End exactly the processes of this cluster."""
        for _ in range(3):  # a raylet may have started one more meanwhile
            self._kill([process for name in self._marks for process in self._processes(name)])
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name: str, *words: str) -> None:
        self._marks[name] = f"{NODE_MARK}={self.folder.name}/{name}"
        agent, metrics = free_ports(2)
        self._call(
            *("start", *words, "--object-store-memory=120000000", f"--dashboard-agent-listen-port={agent}"),
            *(f"--metrics-export-port={metrics}", "--disable-usage-stats"),
            mark=self._marks[name],
        )

    def _call(self, *words: str, mark: str | None = None) -> str:
        variable = dict([mark.split("=", 1)]) if mark else {}
        result = subprocess.run(
            [RAY, *words],
            env={**self.environment, **variable},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        if result.returncode != 0:
            raise ChaosError(f"ray {words[0]}: {result.stdout}")
        return result.stdout

    def _processes(self, name: str) -> list[psutil.Process]:
        found = {process.pid: process for process in marked(self._marks[name])}
        for process in list(found.values()):  # agents whose title has overwritten their variables
            try:
                found.update({child.pid: child for child in process.children(recursive=True)})
            except psutil.NoSuchProcess:
                continue
        return list(found.values())

    def _kill(self, processes: list[psutil.Process]) -> None:
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(processes, timeout=60)
