"""The last resort against a page that takes without end: large pages are converted in a child with limits.

The counted budget (pipeline/wikitext/scanner.py) skips hostile pages, the same ones on every machine. This guard is
for what it does not foresee: a page of more than GUARDED_CHARACTERS goes to a child process that may take so much time
and memory and no more. A page that fails is tried once more, in a new child; one that fails again is skipped for
resources, and a set with such a skip need not come out the same elsewhere. One child serves all pages of a process;
smaller pages stay in it, since their time is linear with a small factor (tested).
"""

from __future__ import annotations

import atexit
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pipeline.documents import Document, Drop

if TYPE_CHECKING:
    from pipeline.sources.dumpxml import Page

GUARDED_CHARACTERS = 256 << 10
PAGE_TIME_S = 120.0
CHILD_MEMORY_BYTES = 4 << 30
_OUT_OF_MEMORY = 3
_LENGTH = struct.Struct("<Q")
_ROOT = str(Path(__file__).resolve().parents[2])

Items = list[Document | Drop]


class PageGuard:
    """A child that converts pages, started when the first one comes and again after each that it did not survive.

    `convert` is a function of a module, called in the child as convert(page, **keywords).
    """

    def __init__(
        self,
        convert: Callable[..., Iterable[Document | Drop]],
        *,
        page_time_s: float = PAGE_TIME_S,
        memory_bytes: int = CHILD_MEMORY_BYTES,
    ) -> None:
        self._convert = convert
        self._page_time_s = page_time_s
        self._memory_bytes = memory_bytes
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)

    def convert(self, page: Page, **keywords: Any) -> Items:
        """What the function gives for a page; a Drop that names it where time or memory does not suffice, twice.

        Raises RuntimeError for an error of our own in the child.
        """
        question = pickle.dumps((self._convert, page, keywords))
        with self._lock:
            reason = ""
            for _ in range(2):
                answer = self._ask(question)
                if answer is not None:
                    items, error = pickle.loads(answer)
                    if error:
                        raise RuntimeError(f"page {page.title!r} cannot be converted:\n{error}")
                    return list(items)
                reason = self._why_it_ended()
        return [Drop("page_over_resources", page.title, f"{reason}, twice; {page.num_characters} characters of markup")]

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def _ask(self, question: bytes) -> bytes | None:
        """The child's answer; None where it ended before."""
        if self._child is None:
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join([_ROOT, os.environ.get("PYTHONPATH", "")])}
            command = [
                sys.executable,
                "-m",
                "pipeline.sources.page_guard",
                str(self._page_time_s),
                str(self._memory_bytes),
            ]
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            _write(self._child.stdin, question)
        except BrokenPipeError:
            return None
        return _read(self._child.stdout)

    def _why_it_ended(self) -> str:
        child, self._child = self._child, None
        assert child is not None
        child.kill()
        child.communicate()
        if child.returncode == -signal.SIGALRM:
            return f"more than {self._page_time_s:g} s"
        if child.returncode == _OUT_OF_MEMORY:
            return f"more than {self._memory_bytes >> 20} MB of memory"
        return f"its process ended with status {child.returncode}"


def _write(stream: IO[bytes], data: bytes) -> None:
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    """The next message; None at the end."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    return data if len(data) == length else None


def main(arguments: list[str]) -> None:
    """The child: answers (function, page, keywords) with (items, error) until its input ends.

    It ends by itself when a page takes too long, so that none is left over where the parent was killed.
    """
    page_time_s, memory_bytes = float(arguments[0]), int(arguments[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the parent's terminal
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a conversion prints is no answer
    while (question := _read(sys.stdin.buffer)) is not None:
        try:
            convert, page, keywords = pickle.loads(question)
            signal.setitimer(signal.ITIMER_REAL, page_time_s)
            items, error = list(convert(page, **keywords)), ""
            signal.setitimer(signal.ITIMER_REAL, 0)
        except MemoryError:
            os._exit(_OUT_OF_MEMORY)
        except Exception:
            items, error = [], traceback.format_exc()
        _write(answers, pickle.dumps((items, error)))


if __name__ == "__main__":
    main(sys.argv[1:])
