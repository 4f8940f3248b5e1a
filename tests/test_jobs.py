"""Jobs submitted to a Ray head, which is started for the test and ended by process ids."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from small_runs import curve, run, write_small_set
from worker_group import WorkerGroup

from pipeline.settings import load_settings
from trainer.checkpoint import list_checkpoints
from trainer.config import TrainerConfig
from trainer.metrics import read_json_lines

RAY = str(Path(sys.executable).with_name("ray"))
MAX_STEPS = 60
MARK = "CLOZE_TEST_HEAD"
"""Environment variable that a head's processes and all that they start inherit."""


class Head:
    """A Ray head of two logical CPUs with ports, folder and token of its own."""

    def __init__(self, repository: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="cloze-ray-", dir="/tmp"))  # socket paths must be short
        ports = free_ports(4)
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
            MARK: str(self.folder),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{ports[1]}",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_JOB_STOP_WAIT_TIME_S": "60",
        }
        self.repository = repository
        words = [
            *("--head", "--num-cpus=2", "--object-store-memory=500000000", f"--temp-dir={self.folder}"),
            *(f"--port={ports[0]}", f"--dashboard-port={ports[1]}", f"--ray-client-server-port={ports[2]}"),
            f"--dashboard-agent-listen-port={ports[3]}",  # jobs go through it; the default may be another head's
        ]
        self.call("start", *words)

    def call(self, *words: str, check: bool = True, cwd: Path | None = None) -> str:
        """Run the ray command; returns what it prints."""
        result = subprocess.run(
            [RAY, *words],
            env=self.environment,
            cwd=cwd or self.repository,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=500,
            check=False,
        )
        assert result.returncode == 0 or not check, result.stdout
        return result.stdout

    def submit(self, *words: str, cwd: Path | None = None) -> str:
        """`ray job submit`, once the head's agent is there: a head answers before that."""
        deadline = time.monotonic() + 180
        while True:
            printed = self.call("job", "submit", *words, cwd=cwd, check=False)
            if "No available agent" not in printed:
                assert "submitted successfully" in printed, printed
                return printed
            assert time.monotonic() < deadline, printed
            time.sleep(2)

    def close(self) -> None:
        """End exactly the processes of this head: those that were born with its mark."""
        mine = [process for process in psutil.process_iter() if self._is_mine(process)]
        for process in mine:
            process.kill()
        psutil.wait_procs(mine, timeout=10)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _is_mine(self, process: psutil.Process) -> bool:
        try:  # not process.environ(): Ray's agents write their title over the first variables
            return f"{MARK}={self.folder}".encode() in Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:  # it has just ended
            return False


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture
def head(repository: Path) -> Iterator[Head]:
    made = Head(repository)
    yield made
    made.close()


@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_stopped_job_is_continued_by_one_with_uploaded_code(
    head: Head, repository: Path, tmp_path: Path, worker_group: Callable[[int], WorkerGroup]
) -> None:
    """`ray job submit -- python trainer/run.py`, `ray job stop`, then `ray job submit --working-dir .`.

    ray#45516, #46814: after the loss of the head a run starts again from epoch 1.
    """
    data, output = tmp_path / "data", tmp_path / "run"
    write_small_set(data)
    settings = [
        *(f"data={data}", f"output={output}", f"max_steps={MAX_STEPS}", "batch.pairs=8", "batch.lanes=4"),
        *("logging.tensorboard=false", "evaluation.max_pairs=16", "checkpoint.every_steps=1000"),
        "threads_per_worker=1",
    ]
    head.submit("--no-wait", "--submission-id=first", "--", sys.executable, "trainer/run.py", *settings)
    deadline = time.monotonic() + 400
    while len(read_json_lines(output / "metrics.jsonl")) < 3:
        assert time.monotonic() < deadline, head.call("job", "logs", "first")
        time.sleep(0.1)
    head.call("job", "stop", "first")
    steps = len(read_json_lines(output / "metrics.jsonl"))
    assert 3 <= steps < MAX_STEPS
    assert [path.name for path in list_checkpoints(output)] == [f"step-{steps:08d}"]
    assert f"stopped at step {steps} of {MAX_STEPS}" in head.call("job", "logs", "first")

    copy = tmp_path / "copy"
    for package in ("pipeline", "trainer"):
        shutil.copytree(repository / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    worker = copy / "trainer" / "worker.py"
    worker.write_text(worker.read_text().replace('"resumed at step', '"uploaded code resumed at step'))
    command = ["job", "submit", "--working-dir=.", "--", sys.executable, "trainer/run.py"]
    assert "error: data=data/sample-set: this job runs in an uploaded copy" in head.call(
        *command, f"output={output}", check=False, cwd=copy
    )
    text = head.call(*command, *settings, cwd=copy)
    assert f"uploaded code resumed at step {steps} of {MAX_STEPS}" in text
    assert "succeeded" in text
    settled = load_settings(TrainerConfig, file=output / "config.yaml")
    whole = settled.model_copy(update={"output": str(tmp_path / "whole"), "device": "cpu", "launcher": "processes"})
    run(worker_group(2), whole)
    assert curve(output) == curve(tmp_path / "whole")
