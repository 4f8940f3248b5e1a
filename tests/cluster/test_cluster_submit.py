"""What is refused before anything is uploaded, what travels, and how a cloud's notice is heard."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from cluster import local, notice, submit
from pipeline.config.schema import PipelineConfig
from pipeline.settings import ConfigError, dump_yaml, validate
from small_runs import make_config
from trainer.launch.preflight import PATH_KEYS
from trainer.launch.ray_dashboard import has_token, list_resources

RAY_VARIABLES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in RAY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(local.STATE, str(tmp_path / "none.json"))
    monkeypatch.setenv("HOME", str(tmp_path))


def write_config(folder: Path, **changes: Any) -> str:
    path = folder / "c.yaml"
    path.write_text(dump_yaml(make_config(folder / "data", folder / "run", **changes)), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status"], "status needs the job's ID"),
        (["train"], "train needs --config FILE"),
        (
            ["train", "--config", "CONFIG", "data=here"],
            "data=here: on the cluster a relative path lies in",
        ),
        (["train", "--config", "CONFIG", "wokers=3"], "did you mean 'workers'"),
        (["train", "--config", "CONFIG"], r"RAY_ADDRESS=head:6379: give the address of the cluster's dashboard"),
        (["list"], "RAY_ADDRESS=head:6379: give the address"),
    ],
)
def test_what_cannot_be_is_refused_before_the_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    if words == ["status"]:
        monkeypatch.setattr(submit, "connect", lambda: None)
    path = write_config(tmp_path)
    assert submit.main([path if word == "CONFIG" else word for word in words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tree", "overrides"),
    [
        ({}, ["engine=ray", "ray.resource=preprocessing"]),
        ({"engine": "ray"}, ["ray.resource=preprocessing"]),
        ({"engine": "ray", "ray": {"resource": None}}, []),
        ({"engine": "local"}, []),
    ],
)
def test_preprocessing_is_bound_to_its_nodes_unless_the_config_says_otherwise(
    tree: dict[str, Any], overrides: list[str]
) -> None:
    whole = {"sources": [{"kind": "text", "path": "/a"}], "vocabulary": {"path": "/v"}, "output": "/out", **tree}
    assert submit.bind_to_nodes(validate(PipelineConfig, whole, origin="test")) == overrides


def test_a_silent_head_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = local.free_ports(1)
    monkeypatch.setenv("RAY_ADDRESS", f"http://127.0.0.1:{port}")
    assert submit.main(["list"]) == 2
    assert "check that the tunnel is open, and that RAY_AUTH_TOKEN" in capsys.readouterr().err


def test_a_token_is_found_wherever_ray_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_token()
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("t")
    assert has_token()
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "elsewhere"))
    assert not has_token()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t")
    assert has_token()


def test_only_code_and_the_config_travel_and_not_too_much(tmp_path: Path) -> None:
    """ray#45602, #55877: working_dir over the upload limit."""
    submit.pack(tmp_path, config=make_config(tmp_path / "data", tmp_path / "run"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster", "job.yaml", "pipeline", "trainer"]
    assert not list(tmp_path.rglob("__pycache__"))
    assert 1e5 < submit.check_size(tmp_path) < 1e7
    (tmp_path / "trainer" / "model.bin").write_bytes(bytes(2000))
    with pytest.raises(ConfigError, match=r"the job would upload .* MB of code, more than 0 MB; .*\.(py|tsv|txt)"):
        submit.check_size(tmp_path, limit=1000)


def test_every_setting_that_names_a_file_is_known(tmp_path: Path) -> None:
    known = {key.replace("phases.*.data", "data") for key in submit.PATHS["train"]}
    assert known == set(PATH_KEYS)
    config = make_config(tmp_path, tmp_path / "run", phases=({"share": 0.5, "data": "b"}, {}))
    assert dict(submit.find_paths("train", config)) == {
        "data": str(tmp_path),
        "output": str(tmp_path / "run"),
        "phases.0.data": "b",
    }
    tree = {"sources": [{"kind": "text", "path": ["a", "b"]}, {"kind": "text", "path": "c"}], "output": "s3://x/y"}
    pipeline = validate(PipelineConfig, tree, origin="test")
    found = dict(submit.find_paths("preprocess", pipeline))
    assert found == {"sources.0.path.0": "a", "sources.0.path.1": "b", "sources.1.path": "c", "output": "s3://x/y"}
    assert [submit.is_absolute(path) for path in ("a", "/a", "s3://a")] == [False, True, True]


class Client:
    """A head that has no agent at first."""

    def __init__(self, refusals: list[str]) -> None:
        self.refusals, self.submitted = refusals, 0

    def submit_job(self, **job: Any) -> None:
        if self.refusals:
            raise RuntimeError(self.refusals.pop())
        self.submitted += 1


def test_a_head_without_an_agent_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit.time, "sleep", lambda seconds: None)
    client = Client(["No available agent to submit job"] * 2)
    submit.submit_when_ready(cast(Any, client), "id", command="c", folder="f")
    assert client.submitted == 1
    with pytest.raises(RuntimeError, match="no room"):
        submit.submit_when_ready(cast(Any, Client(["no room"])), "id", command="c", folder="f")


@pytest.mark.parametrize(
    ("status", "message", "shown"),
    [
        (
            "FAILED",
            "exit code 143, last available logs (truncated to 20,000 chars):\nstep 1\nstopped\n",
            " (exit code 143)",
        ),
        ("FAILED", "the driver's node died", " (the driver's node died)"),
        ("FAILED", None, ""),
        ("SUCCEEDED", "Job finished successfully.", ""),
    ],
)
def test_why_a_job_failed_is_said_without_its_log(
    status: str, message: str | None, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    info = SimpleNamespace(status=status, message=message)
    client = SimpleNamespace(get_job_info=lambda id: info, get_job_logs=lambda id: "step 1\nstopped\n")
    assert submit.print_status(cast(Any, client), "mine") == (status == "FAILED")
    assert capsys.readouterr().out == f"mine: {status}{shown}\nstopped\n"


@pytest.fixture
def metadata() -> Iterator[tuple[str, dict[str, str]]]:
    """A metadata service: its address, and what it answers by path."""
    answers: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = answers.get(self.path)
            self.send_response(404 if text is None else 200)
            self.end_headers()
            self.wfile.write((text or "").encode("utf-8", "surrogateescape"))

        do_PUT = do_GET  # noqa: N815 (the library's name)

        def log_message(self, *words: Any) -> None:
            """Say nothing of each request."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    server.server_close()


def test_the_clouds_notices_are_heard(metadata: tuple[str, dict[str, str]]) -> None:
    address, answers = metadata
    assert notice.ask_aws(address) is None
    answers["/latest/api/token"] = "t"
    assert notice.ask_aws(address) is None
    answers["/latest/meta-data/spot/instance-action"] = json.dumps({"action": "terminate", "time": "soon"})
    assert notice.ask_aws(address) == 110
    for half in ('{"action": "term', "", '"action"', "\udcff"):
        answers["/latest/meta-data/spot/instance-action"] = half
        assert notice.ask_aws(address) is None
    assert notice.ask_gcp(address) is None
    answers["/computeMetadata/v1/instance/preempted"] = "FALSE"
    assert notice.ask_gcp(address) is None
    looks: list[float] = []

    def later(seconds: float) -> None:
        looks.append(seconds)
        answers["/computeMetadata/v1/instance/preempted"] = "TRUE"

    assert notice.wait_for_notice([lambda: None, lambda: notice.ask_gcp(address)], sleep=later) == 25
    assert looks == [notice.POLL_S]


def test_a_local_cluster_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    state = tmp_path / "none.json"
    gone = {"address": "a", "dashboard": "d", "token": "t", "folder": str(tmp_path / "gone")}
    state.write_text(json.dumps({**gone, "processes": {"head": {"pid": 1, "began": 0.5}}}))
    assert local.read() is None
    assert not state.exists()


def test_a_node_that_ends_by_itself_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes whose head has just ended end at any moment."""
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    ended = psutil.Process(process.pid)
    process.wait()
    monkeypatch.setattr(local.Started, "find", lambda started: ended)
    gone = local.LocalCluster("127.0.0.1:1", "d", "t", str(tmp_path / "gone"), {"head": local.Started(1, 0.5)})
    assert local.end(gone) == 0


def test_a_node_that_did_not_start_in_time_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray ends a `ray start` after 30 s, which a busy machine exceeds."""
    cluster = local.LocalCluster("127.0.0.1:1", "http://127.0.0.1:2", "t", "/tmp/none", {})
    launched: list[str] = []

    def launch(cluster: local.LocalCluster, name: str, words: list[str]) -> None:
        launched.append(name)
        cluster.processes[name] = local.Started(2**22 + 1, 0.0)  # of no process

    def wait(cluster: local.LocalCluster, count: int) -> None:
        if len(launched) < enough:
            raise ConfigError("node head did not start")

    monkeypatch.setattr(local, "launch_node", launch)
    monkeypatch.setattr(local, "wait_for_nodes", wait)
    for enough in (1, 3):
        launched.clear()
        local.start_node(cluster, "head", [], count=1)
        assert len(launched) == enough
    enough = 9
    launched.clear()
    with pytest.raises(ConfigError, match="node head did not start"):
        local.start_node(cluster, "head", [], count=1)
    assert len(launched) == local.ATTEMPTS
    monkeypatch.setattr(local, "has_ended", lambda started: False)
    launched.clear()
    with pytest.raises(ConfigError, match="node head did not start"):
        local.start_node(cluster, "head", [], count=1)
    assert len(launched) == 1


@pytest.mark.parametrize(("number", "says"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_leaves_the_job_running_and_says_so(
    number: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def tail(_id: str) -> AsyncIterator[str]:
        yield "step 1\n"
        signal.raise_signal(number)
        await asyncio.sleep(9)  # asyncio cancels this where it has taken Ctrl-C for itself

    monkeypatch.setattr(submit, "connect", lambda: SimpleNamespace(tail_job_logs=tail))
    assert submit.main(["logs", "mine"]) == 128 + number
    note = "\nmine continues on the cluster; make stop JOB=mine ends it with a checkpoint\n"
    assert capsys.readouterr() == ("step 1\n", f"{note}{says}\n")


class _Answer(BaseHTTPRequestHandler):
    """A server that is no Ray dashboard, or one that wants another token."""

    status, body = 200, b""

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


ANSWERS = [
    (401, b"first\nsecond", "the cluster refuses the token, or got none; put the cluster's token into RAY_AUTH_TOKEN"),
    (403, b"first\nsecond", "the cluster refuses the token, or got none; put the cluster's token into RAY_AUTH_TOKEN"),
    (200, b"<html>hello", "no answer of a Ray dashboard: "),
    (200, b"[]", "no answer of a Ray dashboard: "),
    (200, b"{}", "no answer of a Ray dashboard: "),
    (500, b"\x1b[31m", "no answer of a Ray dashboard: 500 Server Error"),
]


@pytest.mark.parametrize(("status", "body", "told"), ANSWERS)
def test_an_answer_that_is_none_is_told_in_one_line(
    status: int, body: bytes, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = type("Answer", (_Answer,), {"status": status, "body": body})
    with HTTPServer(("127.0.0.1", 0), answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("RAY_ADDRESS", f"http://me:secret@127.0.0.1:{server.server_port}")
        monkeypatch.setenv("RAY_AUTH_TOKEN", "a\nb")
        assert submit.main(["list"]) == 2
        with pytest.raises(ConnectionError) as found:
            list_resources(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert "\n" not in str(found.value)
    said = capsys.readouterr().err
    assert said.startswith(f"error: RAY_ADDRESS=http://...@127.0.0.1:{server.server_port}: {told}")
    assert said.count("\n") == 1
    assert "secret" not in said


@pytest.mark.parametrize(
    "address",
    [
        *("http://", "https://", "http:///", "http://:8265", "http://[::1", "http://a b", "http://127.0.0.1:1\n2"),
        *("http://127.0.0.1:99999", "http://127.0.0.1:abc", "http://127.0.0.1:0", "ray://head:10001", "auto"),
    ],
)
def test_an_address_that_is_none_is_told_with_an_example(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert submit.main(["list"]) == 2
    said = capsys.readouterr().err
    assert "give the address of the cluster's dashboard, such as http://127.0.0.1:8265" in said


@pytest.mark.parametrize("job", ["../x", "..", "a/b", "a?b=c", "a#b", "%2e%2e", "a b", "a\nb", "", "\u00e4", "x" * 201])
@pytest.mark.parametrize("action", ["status", "logs", "stop", "submit"])
def test_the_id_of_a_job_stays_a_part_of_the_url(
    action: str, job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    arguments = [action, job] if action != "submit" else ["--id", job or "..", "train", "--config", "x.yaml"]
    assert submit.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: JOB=")
    assert "not the ID of a job; give letters, digits" in said
    assert said.count("\n") == 1
