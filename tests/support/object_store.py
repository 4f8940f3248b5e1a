"""Local S3 and GCS servers for tests: moto's and an emulator's, one process a session, spoken to over real sockets.

`from object_store import bucket, s3_server` (or `gs_bucket, gs_server`) brings the fixtures; importing this costs
nothing where the servers are absent.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline import storage

ACCESS_KEY, SECRET_KEY = "test-access-key", "a-secret-of-the-tests"
_SERVE_S3 = """
import logging, os, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
os._exit(0)
"""
"""Ends when its standard input is closed, so also when the test process dies."""
_SERVE_GS = """
import http.server, os, sys
http.server.HTTPServer = http.server.ThreadingHTTPServer  # clients have several connections, and close them early
from gcp_storage_emulator.server import create_server
server = create_server("127.0.0.1", 0, in_memory=True)
server.start()
print(server._api._httpd.server_port, flush=True)
sys.stdin.read()
os._exit(0)
"""
_numbers = itertools.count()


def environment_of(endpoint: str) -> dict[str, str]:
    """Environment variables for clients of a server, also in other processes."""
    return {
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Address of the server. Skips where moto is absent (where GPUs are)."""
    pytest.importorskip("moto.server")
    with run_server() as address:
        yield address


@pytest.fixture(scope="session")
def gs_server() -> Iterator[str]:
    """Address of the server. Skips where the emulator is absent."""
    pytest.importorskip("gcp_storage_emulator.server")
    with run_server(_SERVE_GS) as address:
        yield address


@contextmanager
def run_server(program: str = _SERVE_S3) -> Iterator[str]:
    """Address of a server that is there inside the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """s3://NAME of a new, empty bucket; the environment names the server, for child processes too."""
    for name, value in environment_of(s3_server).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    return make_bucket(s3_server)


def make_bucket(endpoint: str) -> str:
    """s3://NAME of a new, empty bucket."""
    name = f"cloze-{os.getpid()}-{next(_numbers)}"
    request = urllib.request.Request(f"{endpoint}/{name}", method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200
    return f"s3://{name}"


@pytest.fixture
def gs_bucket(gs_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """gs://NAME of a new, empty bucket; the environment names the server, for child processes too."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gs_server)
    name = f"cloze-{os.getpid()}-{next(_numbers)}"
    request = urllib.request.Request(
        f"{gs_server}/storage/v1/b?project=test",
        data=json.dumps({"name": name}).encode("ascii"),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200
    return f"gs://{name}"


def upload_tree(folder: Path, url: str) -> str:
    """Put every file of a folder below `url`; returns that."""
    for file in storage.list_files(folder):
        storage.store_file(folder / file.name, storage.join(url, file.name))
    return url
