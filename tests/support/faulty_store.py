"""An HTTP server in front of an S3 server that answers 503, is slow, cuts connections off, or is not there."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal["none", "busy", "slow", "cut off", "away"]

BUSY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
SLOW_S = 0.3
HOP_BY_HOP = ("connection", "expect", "transfer-encoding")


class FaultyStore:
    """`fault` befalls one of `every` requests, drawn by a fixed seed (every n-th could be always the same client's);
    `struck` of `requests` have been."""

    def __init__(self, server: str) -> None:
        self.fault: Fault = "none"
        self.every = 1
        self.struck = 0
        self.requests = 0
        self._lock, self._draws = threading.Lock(), random.Random(0)
        store, target = self, urlsplit(server)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (OSError, http.client.HTTPException):
                    self.close_connection = True

            def answer(self) -> None:
                fault = store._next_fault()
                if fault == "away":
                    self.close_connection = True
                    return
                body = self._read_body(half=fault == "cut off")
                if body is None:
                    self.close_connection = True
                    return
                if fault == "slow":
                    time.sleep(SLOW_S)
                if fault == "busy":
                    self._send(503, "Slow Down", {"Content-Type": "application/xml"}, BUSY)
                    return
                connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=60)
                headers = {key: value for key, value in self.headers.items() if key.lower() not in HOP_BY_HOP}
                connection.request(self.command, self.path, body=body, headers=headers)
                response = connection.getresponse()
                content = response.read()
                kept = {key: value for key, value in response.getheaders() if key not in ("Connection", "Date")}
                self._send(response.status, response.reason, kept, content, cut=fault == "cut off")
                connection.close()

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 (http.server's names)

            def _read_body(self, *, half: bool) -> bytes | None:
                """The request's body; None where it is cut off in its middle."""
                if self.headers.get("Expect", "").lower() == "100-continue":
                    self.send_response_only(100)
                    self.end_headers()
                if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                    return None if half else self._read_chunks()
                size = int(self.headers.get("Content-Length") or 0)
                if half and size > 1:
                    self.rfile.read(size // 2)
                    return None
                return self.rfile.read(size)

            def _read_chunks(self) -> bytes:
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            def _send(
                self, status: int, reason: str, headers: dict[str, str], content: bytes, *, cut: bool = False
            ) -> None:
                self.send_response_only(status, reason)
                for key, value in headers.items():
                    if key.lower() not in ("content-length", "transfer-encoding"):
                        self.send_header(key, value)
                stated = headers.get("Content-Length") if self.command == "HEAD" else None
                self.send_header("Content-Length", stated or str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content[: len(content) // 2] if cut else content)
                if cut:
                    self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Give the port back."""
        self._server.shutdown()
        self._server.server_close()

    @contextmanager
    def struck_by(self, fault: Fault, *, every: int = 1) -> Iterator[None]:
        """The fault holds inside the block."""
        self.fault, self.every = fault, every
        try:
            yield
        finally:
            self.fault, self.every = "none", 1

    def _next_fault(self) -> Fault:
        with self._lock:
            self.requests += 1
            if self._draws.randrange(self.every) or self.fault == "none":
                return "none"
            self.struck += 1
            return self.fault
