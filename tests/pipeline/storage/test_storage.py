"""Files by path and URL: the same functions for all, whole or absent, patient with a store, clear when it fails."""

from __future__ import annotations

import gzip
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from object_store import SECRET_KEY, bucket, environment_of, gs_bucket, gs_server, s3_server
from pipeline import storage
from pipeline.storage import clients

__all__ = ["bucket", "gs_bucket", "gs_server", "s3_server"]


@pytest.fixture(params=["local", "file", "s3", "gs"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder of each kind."""
    if request.param in ("s3", "gs"):
        return f"{request.getfixturevalue('bucket' if request.param == 's3' else 'gs_bucket')}/some/folder"
    return str(tmp_path / "folder") if request.param == "local" else f"file://{tmp_path}/a%20folder"


def names(root: str, **how: bool) -> list[tuple[str, int]]:
    return [(file.name, file.size) for file in storage.list_files(root, **how)]


def test_the_functions_are_the_same_for_paths_and_urls(root: str, tmp_path: Path) -> None:
    one, two = storage.join(root, "one.bin"), storage.join(root, "sub", "two.gz")
    assert (storage.base_name(two), storage.base_name(storage.parent_of(two))) == ("two.gz", "sub")
    assert [storage.parent_of(url) for url in ("s3://b/set/data", "s3://b/set/", "s3://b", "s3://b/")] == [
        *("s3://b/set", "s3://b", "s3://b", "s3://b"),
    ]
    assert storage.list_files(root) == []
    assert storage.list_names(root) == set()
    assert not storage.exists(root)
    assert storage.find_file(one) is None
    for call in (storage.read_bytes, storage.size_of, storage.file_version, storage.open_native, storage.open_input):
        with pytest.raises(FileNotFoundError, match=r"one\.bin"):
            call(one)
    storage.delete(one)
    storage.delete_tree(root)

    content = bytes(range(256)) * 40_000
    storage.write_bytes(one, content)
    storage.write_bytes(two, b"")
    assert names(root) == [("one.bin", len(content)), ("sub/two.gz", 0)]
    assert names(root, below=False) == [("one.bin", len(content))]
    assert storage.list_names(root) == {"one.bin", "sub"}
    assert storage.exists(root)
    assert storage.exists(storage.join(root, "sub"))
    assert storage.find_file(storage.join(root, "sub")) is None
    found = storage.find_file(one)
    assert found is not None
    assert (found.name, found.size) == ("one.bin", len(content))
    assert abs(found.modified - time.time()) < 100
    assert storage.read_bytes(one) == content
    assert storage.read_range(one, offset=300, length=5) == content[300:305]
    assert storage.read_range(one, offset=len(content) - 3, length=9) == content[-3:]
    with storage.open_input(one, read_ahead=1000) as stream:
        assert stream.seek(-5, os.SEEK_END) == len(content) - 5
        assert stream.read() == content[-5:]
        stream.seek(7)
        assert [stream.read(3), stream.tell(), stream.read(2_000_000)] == [content[7:10], 10, content[10:2_000_010]]
    version = storage.file_version(one)
    assert storage.file_version(one) == version
    storage.write_bytes(one, content[:-1] + b"x")
    assert storage.file_version(one) != version

    storage.write_bytes(two, gzip.compress(content))  # a name says nothing of how it is stored
    assert gzip.decompress(storage.read_bytes(two)) == content
    storage.fetch_file(two, tmp_path / "new" / "fetched")
    storage.store_file(tmp_path / "new" / "fetched", storage.join(root, "three"))
    assert storage.read_bytes(storage.join(root, "three")) == storage.read_bytes(two)
    (tmp_path / "empty").write_bytes(b"")
    storage.store_file(tmp_path / "empty", storage.join(root, "three"))
    assert storage.size_of(storage.join(root, "three")) == 0
    storage.delete(one)
    assert [name for name, _ in names(root)] == ["sub/two.gz", "three"]
    storage.delete_tree(root)
    assert storage.list_files(root) == []


@pytest.mark.parametrize("in_place", [False, True])
def test_a_file_that_fails_while_it_is_written_never_appears(root: str, in_place: bool) -> None:
    path = storage.join(root, "file")
    storage.write_bytes(storage.join(root, "other"), b"x")

    def fail(content: bytes, *, in_place: bool) -> None:
        with storage.open_output(path, in_place=in_place) as stream:
            stream.write(content)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail(b"half", in_place=in_place)
    assert names(root) == [("other", 1)]
    with storage.open_output(path, in_place=in_place) as stream:
        stream.write(b"Half")
        stream.seek(0)
        stream.write(b"h")
        assert stream.tell() == 1
    assert storage.read_bytes(path) == b"half"
    with pytest.raises(RuntimeError):
        fail(b"another", in_place=False)
    assert storage.read_bytes(path) == b"half"


def test_a_small_object_that_is_removed_while_it_is_read_is_absent(bucket: str) -> None:
    """The store's answer is longer than the object was, which its client takes for a fault of the connection."""
    for size in (100, 2_000):
        storage.write_bytes(f"{bucket}/x", bytes(size))
        with storage.open_input(f"{bucket}/x") as stream:
            storage.delete(f"{bucket}/x")
            with pytest.raises(FileNotFoundError, match=r"/x: (the object was removed while|there is no such object)"):
                stream.read()


def test_missing_buckets_are_named_as_such(bucket: str, gs_bucket: str) -> None:
    for url in ("s3://no-such-bucket-9", "gs://no-such-bucket-9"):
        calls: list[Callable[[], Any]] = [
            lambda url=url: storage.read_bytes(f"{url}/a"),
            lambda url=url: storage.write_bytes(f"{url}/a", b"x"),
            lambda url=url: storage.list_files(f"{url}/a"),
            lambda url=url: storage.size_of(f"{url}/a"),
        ]
        for call in calls[:3]:
            with pytest.raises(storage.AbsentError, match=rf"^{url}/a: there is no bucket {url}; correct the name"):
                call()
        with pytest.raises(storage.AbsentError, match=rf"^{url}/a: there is no such object"):
            calls[3]()


def test_urls_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for url, fault in {
        "hdfs://host/a": r"^hdfs://\.\.\.: this kind of store is not supported; give s3://, gs:// or a local path",
        "s3:///a": r"^s3://\.\.\.: no valid bucket name before the first slash",
        f"s3://key:{SECRET_KEY}@bucket/a": r"^s3://\.\.\.: no valid bucket name .*must not contain credentials",
        "s3:/bucket/a": r"^s3:/bucket/a: a URL has two slashes after its scheme",
    }.items():
        with pytest.raises(ValueError, match=fault) as caught:
            storage.open_filesystem(url)
        assert SECRET_KEY not in str(caught.value)
    with pytest.raises(ValueError, match=r"^gs://bucket: refusing to delete a whole bucket; name a folder in it"):
        storage.delete_tree("gs://bucket")
    for value in ("ftp://host", "http://", f"http://me:{SECRET_KEY}@host:1"):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", value)
        with pytest.raises(
            ValueError, match=r"^AWS_ENDPOINT_URL_S3: not the address of a store; write http\(s\)://host:port"
        ):
            storage.read_bytes("s3://bucket/a")


# ---- a store that fails ----

CONTENT = bytes(range(256)) * 100


class FaultyStore(BaseHTTPRequestHandler):
    """One object under every name. The first `times` requests of `method` meet `fault`."""

    protocol_version = "HTTP/1.1"
    fault, method, times = "", "", 0
    requests: ClassVar[Counter[str]] = Counter()
    received: ClassVar[list[bytes]] = []
    ports: ClassVar[list[int]] = []
    """Of the clients' connections."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def _serve(self) -> None:
        cls = type(self)
        cls.requests[self.command] += 1
        cls.ports.append(self.client_address[1])
        body = self._read_body()
        if self.command == cls.method and cls.times > 0:
            cls.times -= 1
            getattr(self, f"_{cls.fault}")()
        elif self.command == "PUT":
            cls.received.append(body)
            self._answer(200, b"")
        else:
            first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            self._answer(206 if "Range" in self.headers else 200, CONTENT[int(first) : int(last or len(CONTENT)) + 1])

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, body: bytes, *, claimed: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if claimed is None else claimed))
        self.send_header("Last-Modified", "Sat, 28 Nov 2026 10:00:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _busy(self) -> None:
        self._answer(503, b"<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>")

    def _deny(self) -> None:
        text = f"<Error><Code>AccessDenied</Code><Message>not with {SECRET_KEY}</Message></Error>"
        self._answer(403, text.encode())

    def _move(self) -> None:
        self._answer(301, b"<Error><Code>PermanentRedirect</Code><Message>elsewhere</Message></Error>")

    def _cut(self) -> None:
        self._answer(206, CONTENT[:100], claimed=1_000)
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _stall(self) -> None:
        self.close_connection = True
        time.sleep(200)  # far longer than anybody waits

    def _stall_inside(self) -> None:
        self._answer(206, CONTENT[:100], claimed=1_000)
        self.wfile.flush()
        self._stall()


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FaultyStore]]:
    """Attributes of the class say what fails; the environment names the server, and waiting is short."""
    handler = type("Faulty", (FaultyStore,), {"requests": Counter(), "received": [], "ports": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        Thread(target=server.serve_forever, daemon=True).start()
        for name, value in environment_of(f"http://127.0.0.1:{server.server_port}").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(clients, "MAX_ATTEMPTS", 3)
        monkeypatch.setattr(clients, "STALL_TIMEOUT_S", 4.0)
        yield handler
        server.shutdown()


def plan_fault(store: type[FaultyStore], fault: str, *, method: str, times: int) -> None:
    store.fault, store.method, store.times = fault, method, times
    store.requests.clear()


@pytest.mark.parametrize(
    ("fault", "method", "times"),
    [("busy", "GET", 2), ("busy", "HEAD", 2), ("cut", "GET", 2), ("stall", "GET", 1), ("stall_inside", "GET", 1)],
)
def test_a_busy_stalled_or_broken_store_is_asked_again(
    fault: str, method: str, times: int, faulty: type[FaultyStore]
) -> None:
    plan_fault(faulty, fault, method=method, times=times)
    with storage.open_input("s3://bucket/a.bin", read_ahead=1_000) as stream:
        stream.seek(5_000)
        assert stream.read(1_000) == CONTENT[5_000:6_000]
    assert faulty.requests[method] == times + 1


def test_a_store_that_stays_busy_does_not_use_up_patience(faulty: type[FaultyStore]) -> None:
    """Each request is answered in the end, however many before it had to be made again."""
    for _ in range(60):
        plan_fault(faulty, "busy", method="GET", times=2)
        assert storage.read_bytes("s3://bucket/a.bin") == CONTENT


def test_a_process_shares_no_connection_with_its_parent(faulty: type[FaultyStore]) -> None:
    """Two would write into one; so a fork makes a client of its own."""
    assert storage.read_bytes("s3://bucket/a") == CONTENT
    before = set(faulty.ports)
    faulty.ports.clear()
    child = os.fork()
    if child == 0:
        os._exit(0 if storage.read_bytes("s3://bucket/a") == CONTENT else 1)
    for _ in range(300):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.1)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert status == 0
    assert faulty.ports
    assert not before & set(faulty.ports)
    assert storage.read_bytes("s3://bucket/a") == CONTENT


def test_what_is_written_to_a_busy_store_arrives_whole(faulty: type[FaultyStore]) -> None:
    plan_fault(faulty, "busy", method="PUT", times=2)
    storage.write_bytes("s3://bucket/a.bin", CONTENT)
    assert (faulty.requests["PUT"], len(faulty.received)) == (3, 1)
    assert CONTENT in faulty.received[0]  # framed in chunks with a checksum


def test_names_that_read_like_errors_are_none(faulty: type[FaultyStore]) -> None:
    plan_fault(faulty, "busy", method="HEAD", times=99)
    with pytest.raises(storage.StorageError, match=r"^s3://bucket/FORBIDDEN: the store was still too busy"):
        storage.exists("s3://bucket/FORBIDDEN")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("busy", r"the store was still too busy after 3 attempts \(AWS Error .*\); run again, with fewer"),
        ("cut", r"the store cannot be reached, or drops connections, even after 3 attempts \(.*\); check the network"),
        ("deny", r"the store denies access \(AWS Error ACCESS_DENIED.*\); provide credentials .*AWS_ACCESS_KEY_ID and"),
        ("move", r"the bucket is in another region \(.*\); set AWS_REGION to its region"),
    ],
)
def test_a_store_that_keeps_failing_is_named_with_cause_and_remedy(
    fault: str, message: str, faulty: type[FaultyStore]
) -> None:
    plan_fault(faulty, fault, method="GET", times=99)
    with pytest.raises(storage.StorageError, match=f"^s3://bucket/a.bin: {message}") as caught:
        storage.read_bytes("s3://bucket/a.bin")
    assert SECRET_KEY not in str(caught.value)
    assert faulty.requests["GET"] <= 3
    assert isinstance(caught.value, storage.DeniedError) == (fault == "deny")


def test_a_store_that_is_not_there_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        for name, value in environment_of(f"http://127.0.0.1:{held.getsockname()[1]}").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(clients, "MAX_ATTEMPTS", 2)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{held.getsockname()[1]}")
        monkeypatch.setattr(clients, "RETRY_TIME_S", 1)
        with pytest.raises(
            storage.StorageError, match=r"^s3://b/a: the store cannot be .*AWS_ENDPOINT_URL_S3, and run"
        ):
            storage.exists("s3://b/a")
        with pytest.raises(
            storage.StorageError, match=r"^gs://b/a: the store cannot be .*STORAGE_EMULATOR_HOST, and run"
        ):
            storage.exists("gs://b/a")
