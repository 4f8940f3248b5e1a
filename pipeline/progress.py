"""Signs of life during a build, whatever the engine: workers leave small files, the main process sums and prints them.

A terminal gets one line that is rewritten every second, anything else a plain line every 30 seconds.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import TextIO

_WRITE_EVERY_S = 1.0
_TERMINAL_EVERY_S = 1.0
_PLAIN_EVERY_S = 30.0
_TEXT_UNIT = 1e6


class WorkReport:
    """Counts of one piece of work (a split, a shard), left in `folder` at most once a second.

    The file is removed where the work fails, so that a second attempt is not counted twice.
    """

    def __init__(self, folder: str | Path, *, stage: str) -> None:
        self._path = Path(folder) / f"{stage}-{uuid.uuid4().hex[:16]}.json"
        self._counts: Counter[str] = Counter()
        self._written = 0.0

    def __enter__(self) -> WorkReport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._counts["done"] = 1
            self._write()
        else:
            self._path.unlink(missing_ok=True)

    def add(self, **counts: int) -> None:
        """Add to the counts."""
        self._counts.update(counts)
        if time.monotonic() - self._written >= _WRITE_EVERY_S:
            self._write()

    def _write(self) -> None:
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self._counts), encoding="ascii")
        os.replace(partial, self._path)
        self._written = time.monotonic()


class ProgressPrinter:
    """Prints what the workers report while the body of the `with` runs."""

    def __init__(self, folder: str | Path, *, num_splits: int, stream: TextIO | None = None) -> None:
        self._folder, self._num_splits = Path(folder), num_splits
        self._stream = stream if stream is not None else sys.stderr
        self._terminal = self._stream.isatty()
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> ProgressPrinter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def line(self) -> str:
        """What is known now, in one line."""
        elapsed = time.monotonic() - self._started
        read, shards = self._sum("read"), self._sum("shard")
        megabytes = read["characters"] / _TEXT_UNIT
        text = (
            f"{elapsed:.0f} s: read {read['documents']:,} documents, {megabytes:,.1f} MB of text "
            f"({megabytes / max(elapsed, 1e-3):.1f} MB/s), {read['done']} of {self._num_splits} splits"
        )
        if read["done"] < self._num_splits or not shards:
            return text
        return (
            f"{elapsed:.0f} s: read {read['documents']:,} documents, {megabytes:,.1f} MB of text; "
            f"wrote {shards['rows']:,} rows in {shards['done']} shards"
        )

    def _sum(self, stage: str) -> Counter[str]:
        total: Counter[str] = Counter()
        for path in self._folder.glob(f"{stage}-*.json"):
            try:
                total.update(json.loads(path.read_text(encoding="ascii")))
            except FileNotFoundError:  # the work failed between the listing and now
                continue
        return total

    def _run(self) -> None:
        while not self._stop.wait(_TERMINAL_EVERY_S if self._terminal else _PLAIN_EVERY_S):
            self._stream.write(f"\r{self.line()}\x1b[K" if self._terminal else f"{self.line()}\n")
            self._stream.flush()
