"""A Ray head for a test: ports, folder and mark of its own, ended with all that it started by process ids."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from cluster.local import free_ports

RAY = str(Path(sys.executable).with_name("ray"))
MARK = "CLOZE_TEST_HEAD"
"""Environment variable that a head's processes and all that they start inherit."""

AS_OTHERS = {"RAY_worker_niceness": "0"}
"""Priority of Ray's workers: at Ray's own 15 they get a thirtieth of what other tests get beside them."""


class Head:
    """A Ray head of two logical CPUs, unless `words` of `ray start` say otherwise.

    `variables`: of the environment of all its processes; by default it demands a token of its own.
    """

    def __init__(
        self, repository: Path, *, words: Sequence[str] = ("--num-cpus=2",), variables: Mapping[str, str] | None = None
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="cloze-ray-", dir="/tmp"))  # socket paths must be short
        ports = free_ports(4)
        self.port = ports[0]
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
            **AS_OTHERS,
            MARK: str(self.folder),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{ports[1]}",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_JOB_STOP_WAIT_TIME_S": "60",
            **(variables or {}),
        }
        self.repository = repository
        common = [
            *("--head", "--object-store-memory=500000000", f"--temp-dir={self.folder}"),
            *(f"--port={ports[0]}", f"--dashboard-port={ports[1]}", f"--ray-client-server-port={ports[2]}"),
            f"--dashboard-agent-listen-port={ports[3]}",  # jobs go through it; the default may be another head's
        ]
        start = ["start", *common, *(word.replace("PORT", str(self.port)) for word in words)]
        printed = self.call(*start, check=False)
        if "timed out during startup" in printed:  # Ray gives itself 30 s
            self._end()
            printed = self.call(*start)
        assert "Ray runtime started" in printed, printed

    def call(self, *words: str, check: bool = True, cwd: Path | None = None) -> str:
        """Run the ray command; returns what it prints."""
        result = subprocess.run(
            [RAY, *words],
            env=self.environment,
            cwd=cwd or self.repository,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert result.returncode == 0 or not check, result.stdout
        return result.stdout

    def submit(self, *words: str, cwd: Path | None = None) -> str:
        """`ray job submit`, once the head's agent is there: a head answers before that."""
        deadline = time.monotonic() + 300
        while True:
            printed = self.call("job", "submit", *words, cwd=cwd, check=False)
            if "No available agent" not in printed:
                assert "submitted successfully" in printed, printed
                return printed
            assert time.monotonic() < deadline, printed
            time.sleep(2)

    def close(self) -> None:
        """End exactly the processes of this head: those that were born with its mark."""
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self) -> None:
        mine = self.processes()
        for process in mine:
            process.kill()
        psutil.wait_procs(mine, timeout=60)

    def processes(self) -> list[psutil.Process]:
        """Those of this head and of all that was started from it."""
        return [process for process in psutil.process_iter() if self._is_mine(process)]

    def _is_mine(self, process: psutil.Process) -> bool:
        try:  # not process.environ(): Ray's agents write their title over the first variables
            return f"{MARK}={self.folder}".encode() in Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:  # it has just ended
            return False
