"""A local mirror of dumps.wikimedia.org that breaks off, is busy, or knows no ranges when it is told to."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Mirror:
    """A local mirror. `breaks`: after so many bytes each answer to come ends, one a list item, then none does."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.breaks: list[int] = []
        self.statuses: list[int] = []
        self.ranges = True
        self.requests: list[tuple[str, str | None]] = []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.answer(self)

            def log_message(self, *_: object) -> None:
                """Nothing: the base class writes a line a request to stderr."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def add(self, name: str, data: bytes, *, sha1: str | None = None) -> None:
        """A file of the dump that its name says, such as kowiki-20261101-...; listed with this or its true SHA-1."""
        database, date, _ = name.split("-", 2)
        folder = f"/{database}/{date}/"
        self.files[folder + name] = data
        sums = f"{folder}{database}-{date}-sha1sums.txt"
        line = f"{sha1 or hashlib.sha1(data).hexdigest()}  {name}\n"
        self.files[sums] = self.files.get(sums, b"") + line.encode()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """One GET."""
        wanted = handler.headers["Range"]
        self.requests.append((handler.path.rpartition("/")[2], wanted))
        data = self.files.get(handler.path)
        if data is None:
            handler.send_error(404)
            return
        is_list = handler.path.endswith("sums.txt")
        if self.statuses and not is_list:
            handler.send_error(self.statuses.pop(0))
            return
        start = int(re.findall(r"\d+", wanted)[0]) if wanted and self.ranges else 0
        if start >= len(data):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(data)}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        handler.send_header("Content-Length", str(len(data) - start))
        handler.end_headers()
        length = self.breaks.pop(0) if self.breaks and not is_list else len(data)
        handler.wfile.write(data[start : start + length])


@contextmanager
def serve_mirror() -> Iterator[Mirror]:
    """An empty mirror on a free port of this machine."""
    mirror = Mirror()
    thread = threading.Thread(target=mirror.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield mirror
    finally:
        mirror.server.shutdown()
        mirror.server.server_close()
