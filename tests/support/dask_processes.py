"""A Dask scheduler and its workers as processes of their own, ended by process id."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from distributed import Client

REPOSITORY = Path(__file__).resolve().parents[2]
_WAIT_S = 60.0


class DaskProcesses:
    """A scheduler; workers are started one by one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        contact = folder / "scheduler.json"
        words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show", "--scheduler-file", str(contact)]
        self._start("scheduler", *words)
        deadline = time.monotonic() + _WAIT_S
        while not contact.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.client = Client(scheduler_file=str(contact), set_as_default=False)
        self.address: str = self.client.scheduler.address

    def start_worker(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """A worker of one thread that has watched_worker.py with these variables."""
        before = len(self.client.nthreads())
        words = ["--no-nanny", "--nthreads", "1", "--no-dashboard", "--local-directory", str(self.folder)]
        process = self._start("worker", self.address, *words, "--preload", "watched_worker", environment=environment)
        self.client.wait_for_workers(before + 1, timeout=_WAIT_S)
        return process

    def close(self) -> None:
        """End exactly these processes."""
        self.client.close(timeout=1)
        for process in self.processes:
            process.kill()
            process.wait()

    def _start(self, kind: str, *words: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join(
            [str(REPOSITORY), str(REPOSITORY / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
        )
        with open(self.folder / f"{kind}-{len(self.processes)}.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{kind}", *words],
                env={**os.environ, "PYTHONPATH": paths, **(environment or {})},
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process
