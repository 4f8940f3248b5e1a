"""What ends jobs, nodes and refused commands, without Ray: processes, limits and requests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster import head, job, local, notice

MARKED = {head.MARK: json.dumps({"metadata": {"job_submission_id": "one"}}), "RAY_ADDRESS": "10.0.0.1:7007"}
SLOW = "import signal, sys, time; signal.signal(15, lambda *a: (time.sleep(1), print('saved'), sys.exit(143)))"
READY = "print('ready', flush=True); time.sleep(600)"


def start(*command: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_jobs_get_time_for_a_checkpoint_and_their_shells_wait(
    started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(head, "REPORT_S", 0.0)
    driver = f'{sys.executable} -c "{SLOW}; {READY}"'
    started.append(start("/bin/sh", "-c", f"{driver}; exit $?", environment=MARKED))
    started.append(
        start(sys.executable, "-c", f"import time; {READY}", environment=MARKED | {"RAY_ADDRESS": "a:17007"})
    )
    started.append(start(sys.executable, "-c", f"import time; {READY}", environment={}))
    assert head.end_jobs(7007, seconds=60)
    ours, other, stranger = started
    assert ours.wait(timeout=10) == 143, "Ray kills the driver at once if its shell ends first"
    assert ours.stdout is not None
    assert ours.stdout.read() == "saved\n"
    assert other.poll() is stranger.poll() is None
    assert "all jobs have ended" in capsys.readouterr().out
    assert head.end_jobs(7007, seconds=60), "nothing to end"
    assert capsys.readouterr().out == ""


def test_the_wait_for_a_job_has_an_end_and_names_the_job(
    started: list[subprocess.Popen[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    deaf = f"import signal, time; signal.signal(15, signal.SIG_IGN); {READY}"
    started.append(start(sys.executable, "-c", deaf, environment=MARKED))
    began = time.monotonic()
    assert head.main(["--port=7007", "--seconds=1"]) == 1
    assert time.monotonic() - began < 30
    assert f"after 1 s, jobs still run: {started[0].pid} (" in capsys.readouterr().err


def test_a_head_ends_its_jobs_before_itself(started: list[subprocess.Popen[str]]) -> None:
    started.append(start(sys.executable, "-c", f"{SLOW}; {READY}", environment=MARKED))
    order = f"import signal, time, sys; signal.signal(15, lambda *a: sys.exit(7)); {READY}"
    command = [sys.executable, "-m", "cluster.head", "--port=7007", "--", sys.executable, "-c", order]
    started.append(start(*command, environment={}))
    driver, keeper = started
    keeper.send_signal(signal.SIGTERM)
    assert driver.wait(timeout=60) == 143
    assert keeper.poll() is None, "the head outlives the job, so that its end is read"
    assert keeper.wait(timeout=60) == 7
    done = subprocess.run([sys.executable, "-m", "cluster.head", "--", "sh", "-c", "kill -9 $$"], check=False)
    assert done.returncode == 128 + signal.SIGKILL
    assert head.main(["--", "no-such-command"]) == 2


class Dashboard(HTTPServer):
    """Ray's dashboard, as far as the client that stops a job asks it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.stopped: list[str] = []
        self.tell: int | None = None


class Answers(BaseHTTPRequestHandler):
    server: Dashboard

    def do_GET(self) -> None:
        self.reply({"version": "4", "ray_version": "2.60.0", "ray_commit": "x", "session_name": "s"})

    def do_POST(self) -> None:
        self.server.stopped.append(self.path)
        if self.server.tell is not None:
            os.kill(self.server.tell, signal.SIGTERM)
        self.reply({"stopped": True})

    def reply(self, tree: dict[str, Any]) -> None:
        body = json.dumps(tree).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        """Say nothing of each request."""


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    server = Dashboard()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def in_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(head.MARK, MARKED[head.MARK])
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("status", "stopped"), [(0, 0), (1, 0), (143, 0), (2, 1)])
@pytest.mark.usefixtures("in_job")
def test_only_a_refused_command_is_stopped(
    dashboard: Dashboard, tmp_path: Path, status: int, stopped: int, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    dashboard.tell = os.getpid()  # as Ray does, to all processes of the job
    address = f"http://127.0.0.1:{dashboard.server_port}"
    script = f"import sys; print('out'); print('err', file=sys.stderr); sys.exit({status})"
    words = [f"--dashboard={address}", f"--logs={tmp_path / 'logs'}", sys.executable, "-c", script]
    assert job.main(words) == status
    assert dashboard.stopped == ["/api/jobs/one/stop"] * stopped
    printed = capfdbinary.readouterr().out
    assert sorted(printed.splitlines()[:2]) == [b"err", b"out"]
    assert (tmp_path / "logs" / "one.log").read_bytes() == printed
    assert (b"refused; one is stopped" in printed) == bool(stopped)


@pytest.mark.usefixtures("in_job")
def test_a_refused_command_gets_a_second_try_since_the_previous_job_may_still_end(
    dashboard: Dashboard, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    script = f"test -e {tmp_path / 'seen'} || {{ touch {tmp_path / 'seen'}; exit 2; }}"
    address = f"http://127.0.0.1:{dashboard.server_port}"
    assert job.main([f"--dashboard={address}", "--again-after=0.2", "sh", "-c", script]) == 0
    assert dashboard.stopped == []
    assert b"refused; the command is tried once more in 0.2 s" in capfdbinary.readouterr().out


@pytest.mark.usefixtures("in_job")
def test_a_job_runs_where_its_log_cannot_be_written_and_fails_where_the_dashboard_is_away(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "STOP_TIMEOUT_S", 0.1)
    (tmp_path / "file").touch()
    (port,) = local.free_ports(1)
    words = [
        f"--logs={tmp_path / 'file' / 'logs'}",
        f"--dashboard=http://127.0.0.1:{port}",
        "sh",
        "-c",
        "echo a; exit 2",
    ]
    assert job.main(words) == 2
    printed = capfdbinary.readouterr()
    assert printed.out.startswith(b"a\n")
    assert b"warning: the output is not kept in a file" in printed.err
    assert b"does not stop one" in printed.err
    assert job.main([words[1], "no-such-command"]) == 2
    assert b"error: [Errno 2] No such file or directory: 'no-such-command'" in capfdbinary.readouterr().out
    with pytest.raises(SystemExit):
        job.main([])


def test_a_stopped_command_has_its_time_and_its_status(started: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cluster.job", f"--logs={tmp_path}", sys.executable, "-c", f"{SLOW}; {READY}"]
    started.append(start(*command, environment=MARKED))
    os.killpg(started[0].pid, signal.SIGTERM)
    assert started[0].wait(timeout=60) == 143
    assert (tmp_path / "one.log").read_text() == "ready\nsaved\n"


def test_a_notice_keeps_its_limit_where_the_head_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notice, "has_raylet", lambda: True)
    (port,) = local.free_ports(1)
    address = f"127.0.0.1:{port}"
    began = time.monotonic()
    assert notice.main([f"--address={address}", "--seconds=2"]) == 1
    assert time.monotonic() - began < 12
    assert "error: the node is still there after 2 s" in capsys.readouterr().err
    monkeypatch.setattr(notice, "HEAD_SILENT_S", 1.0)
    began = time.monotonic()
    assert notice.main([f"--address={address}", "--seconds=300"]) == 1
    assert time.monotonic() - began < 60
    assert f"error: the head at {address} is gone" in capsys.readouterr().err
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert notice.main(["--seconds=300"]) == 1
    assert f"error: the head at {address} is gone" in capsys.readouterr().err


def test_a_notice_returns_what_ray_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice, "_drain", _leave)
    monkeypatch.setattr(notice, "HEAD_SILENT_S", 0.0)
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")  # the dashboard's, as for `make submit`
    assert notice.drain("auto", node_id="0", seconds=60) == 0
    assert notice.drain("auto", node_id="1", seconds=60) == 1


def test_a_node_whose_ray_has_ended_has_nothing_to_drain(
    started: list[subprocess.Popen[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The autoscaler drains an idle node itself. Its raylet then ends, but not `ray start --block` (Ray 2.60,
    scripts/scripts.py), so the pod's hook runs; Ray would look for a raylet there for 60 s."""
    mine: list[int] = []
    every = psutil.process_iter
    monkeypatch.setattr(psutil, "process_iter", lambda names: (each for each in every(names) if each.pid in mine))
    monkeypatch.setattr(notice, "_drain", _leave)
    assert notice.main(["--address=127.0.0.1:1", "--seconds=90"]) == 0
    assert "no Ray runs on this node" in capsys.readouterr().out
    raylet = tmp_path / "raylet"
    shutil.copy("/bin/bash", raylet)
    started.append(start(str(raylet), "-c", "echo ready; sleep 600; true", environment={}))
    mine.append(started[-1].pid)
    assert notice.has_raylet()


def _leave(address: str, node_id: str, seconds: float) -> None:
    time.sleep(2.5)
    sys.exit(int(node_id))


def test_a_head_answers_by_either_family_of_addresses() -> None:
    for family, host, name in ((socket.AF_INET, "127.0.0.1", "127.0.0.1"), (socket.AF_INET6, "::1", "[::1]")):
        with socket.socket(family) as server:
            try:
                server.bind((host, 0))
            except OSError:  # a machine without IPv6
                continue
            server.listen()
            assert notice.answers(f"{name}:{server.getsockname()[1]}")
    assert not notice.answers("nonsense")
