"""Shows the progress of a build on any engine. Workers write counts to small files; the main process sums and prints
them.

A build has two stages: it reads splits, and then writes shards. A terminal shows one line per stage, rewritten every
second. Other outputs get a plain line every 30 seconds. The same counts go to Beam's counters. All these counts are
only for display.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TextIO, TypeAlias

from pipeline import storage
from pipeline.dataset import canonical_json
from pipeline.units import count_of, describe_bytes, describe_seconds

Stage: TypeAlias = Literal["read", "shard"]

PLAN_NAME = "plan.json"
"""The name of a JSON file in the folder of the reports. It has the number of shards to write (`shards`), and the number
of tokens in their documents (`tokens`)."""
_WRITE_EVERY_S = 1.0
_TERMINAL_EVERY_S = 1.0
_PLAIN_EVERY_S = 30.0
_STORE_EVERY_S = 10.0
_UNIT = 1e6
_SHOWN = 0.05
"""A number below this number of millions is not shown in millions, because it would be shown as 0.0."""


class WorkReport:
    """Writes the counts of one piece of work (a split or a shard) to a file in `folder`, or to no file if `folder` is
    None.

    The file is written at most once a second (on an object store, once every ten seconds). It is removed if the work
    fails. Counts whose names begin with `of_` are expected totals. All other counts say how much is done, and their
    growth is also passed to the function `count`. `key` (any JSON) identifies the work, so that a second attempt after
    a lost worker is not counted twice. The report of finished work is not overwritten.
    """

    def __init__(
        self,
        folder: str | Path | None,
        *,
        stage: Stage,
        count: Callable[[str, int], None] | None = None,
        key: Any | None = None,
    ) -> None:
        name = uuid.uuid4().hex if key is None else hashlib.sha256(canonical_json(key)).hexdigest()
        self._path = None if folder is None else storage.join(folder, f"{stage}-{name[:16]}.json")
        self._every_s = _STORE_EVERY_S if self._path is not None and storage.is_url(self._path) else _WRITE_EVERY_S
        self._stands = key is not None and self._path is not None and _is_done(self._path)
        self._count = count
        self._counts: Counter[str] = Counter()
        self._counted: Counter[str] = Counter()
        self._written = 0.0

    def __enter__(self) -> WorkReport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._counts["done"] = 1
            self._write()
        elif self._path is not None and not self._stands:
            with suppress(storage.StorageError):  # do not hide the error of the work
                storage.delete(self._path)

    def add(self, **counts: int) -> None:
        """Add these numbers to the counts of the same names, and write all counts if enough time has passed."""
        self._counts.update(counts)
        if time.monotonic() - self._written >= self._every_s:
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        if self._count is not None:
            for name, value in (self._counts - self._counted).items():
                if not name.startswith("of_"):
                    self._count(name, value)
            self._counted = self._counts.copy()
        if self._path is not None and not self._stands:
            text = json.dumps(self._counts).encode("ascii")
            if storage.is_url(self._path):
                with suppress(storage.StorageError):  # a report must not stop the work
                    storage.write_bytes(self._path, text)
                return
            with storage.replace_file(Path(self._path), make_folders=False, durable=False) as stream:
                stream.write(text)


class ProgressPrinter:
    """Prints the workers' progress while the body of the `with` runs.

    `folder` is the folder of the workers' reports. `num_splits` and `num_bytes` are the number and the total size of
    all splits of the input.
    """

    def __init__(
        self, folder: str | Path, *, num_splits: int, num_bytes: int = 0, stream: TextIO | None = None
    ) -> None:
        self._folder, self._num_splits, self._num_bytes = str(folder), num_splits, num_bytes
        self._plan = storage.join(folder, PLAN_NAME)
        self._stream = stream if stream is not None else sys.stderr
        self._terminal = self._stream.isatty()
        self._started = time.monotonic()
        self._stage_started: dict[Stage, float] = {"read": self._started}
        self._finished: dict[str, Counter[str]] = {}
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

    def line(self, stage: Stage | None = None) -> str:
        """Return a line of text on the progress of `stage` ("read" or "shard") or, if `stage` is None, of the running
        stage."""
        stage = stage or self.stage()
        now = time.monotonic()
        if stage not in self._stage_started:
            self._stage_started[stage] = now - max(0.0, time.time() - self._plan_written())
        seconds = max(now - self._stage_started[stage], 1e-3)
        text = self._describe_read(seconds) if stage == "read" else self._describe_shards(seconds)
        return f"{now - self._started:.0f} s: {text}"

    def summary(self) -> str:
        """Return a line of text that says how much the whole build has read and written, and how fast."""
        elapsed = time.monotonic() - self._started
        read, shards = self.count("read"), self.count("shard")
        made = sum(report["bytes"] for report in self._load("read") if not report["kept"])
        return (
            f"{elapsed:.0f} s: read {count_of(read['documents'], 'document')}, {_characters(read['characters'])} of "
            f"{_bytes(read['bytes'])} of input{_rate(made, elapsed)}; wrote {count_of(shards['rows'], 'row')} in "
            f"{count_of(shards['done'], 'shard')}"
        )

    def stage(self) -> Stage:
        """Return the running stage: "shard" if all splits are read and the shards are planned, otherwise "read"."""
        return "shard" if storage.find_file(self._plan) is not None else "read"

    def count_kept(self) -> dict[Stage, int]:
        """Return how many splits (stage "read") and shards (stage "shard") were kept from an earlier start of the
        build."""
        return {"read": self.count("read")["kept"], "shard": self.count("shard")["kept"]}

    def count(self, stage: Stage) -> Counter[str]:
        """Return the counts of a stage ("read" or "shard") by name, each summed over all reports of the stage. Reports
        of splits and shards kept from an earlier start are included."""
        return sum_counts(self._load(stage))

    def read_plan(self) -> dict[str, int]:
        """Return the content of the file PLAN_NAME: how many shards will be written (`shards`), and how many tokens
        their documents have (`tokens`). Both are 0 if there is no plan yet."""
        try:
            plan: dict[str, int] = json.loads(storage.read_bytes(self._plan))
        except FileNotFoundError:
            return {"shards": 0, "tokens": 0}
        return plan

    def _describe_read(self, seconds: float) -> str:
        reports = self._load("read")
        read = sum_counts(reports)
        done_bytes, kept_bytes = _bytes_read(reports), sum(report["bytes"] for report in reports if report["kept"])
        made_bytes = done_bytes - kept_bytes
        share = ""
        if self._num_bytes:
            share = (
                f", {100 * done_bytes / self._num_bytes:.0f}% of {_bytes(self._num_bytes)} of input"
                f"{_rate(made_bytes, seconds)}"
            )
        return (
            f"read {count_of(read['documents'], 'document')}, {_characters(read['characters'])}, "
            f"{read['done']:,} of {count_of(self._num_splits, 'split')}{share}{_kept(read)}"
            f"{_left(made_bytes, self._num_bytes - done_bytes, seconds)}"
        )

    def _describe_shards(self, seconds: float) -> str:
        reports = self._load("shard")
        wrote, plan = sum_counts(reports), self.read_plan()
        made = sum_counts(report for report in reports if not report["kept"])
        done, kept = _tokens_written(reports), sum(report["of_tokens"] for report in reports if report["kept"])
        left = _left(done - kept, plan["tokens"] - done, seconds)
        return (
            f"wrote {count_of(wrote['rows'], 'row')} of {count_of(wrote['documents'], 'document')}, "
            f"{_bytes(wrote['bytes'])}{_rate(made['bytes'], seconds)}, {wrote['done']:,} of "
            f"{count_of(plan['shards'], 'shard')}{_kept(wrote)}{left}"
        )

    def _load(self, stage: Stage) -> list[Counter[str]]:
        """Return the counts of every report of a stage ("read" or "shard"). The report of a finished split or shard is
        read from its file only once."""
        found: list[Counter[str]] = []
        for file in storage.list_files(self._folder, below=False):
            if not (file.name.startswith(f"{stage}-") and file.name.endswith(".json")):
                continue
            report = self._finished.get(file.name)
            if report is None:
                report = _read_report(storage.join(self._folder, file.name))
                if report["done"]:
                    self._finished[file.name] = report
            found.append(report)
        return found

    def _plan_written(self) -> float:
        plan = storage.find_file(self._plan)
        return time.time() if plan is None else plan.modified

    def _run(self) -> None:
        shown: Stage = "read"
        often_s = _STORE_EVERY_S if storage.is_url(self._folder) else _TERMINAL_EVERY_S
        while not self._stop.wait(often_s if self._terminal else _PLAIN_EVERY_S):
            try:
                shown = self._show(shown)
            except storage.StorageError as error:  # the display must not stop the build
                self._stream.write(f"progress is unknown: {error}\n")

    def _show(self, shown: Stage) -> Stage:
        stage = self.stage()
        if self._terminal and stage != shown:
            self._stream.write(f"\r{self.line(shown)}\x1b[K\n")  # the last line of a stage stays
        self._stream.write(f"\r{self.line(stage)}\x1b[K" if self._terminal else f"{self.line(stage)}\n")
        self._stream.flush()
        return stage


def _read_report(path: str) -> Counter[str]:
    """Return the counts in the report `path`. They are empty if the file is gone, which means that the work has
    failed."""
    try:
        return Counter(json.loads(storage.read_bytes(path)))
    except FileNotFoundError:
        return Counter()


def _is_done(path: str) -> bool:
    try:
        return bool(_read_report(path)["done"])
    except storage.StorageError:  # a report must not stop the work
        return False


def sum_counts(reports: Iterable[Counter[str]]) -> Counter[str]:
    """Return the sum of each count over all reports."""
    total: Counter[str] = Counter()
    for report in reports:
        total.update(report)
    return total


def _bytes_read(reports: list[Counter[str]]) -> float:
    """Return an estimate of how many bytes of input workers have read so far.

    A finished split counts with all its bytes. An unfinished split counts with a share of its bytes: the text read so
    far, divided by the text that the whole split is expected to have. In the finished splits, it is known how much more
    or less text there was than expected. The expected text of an unfinished split is first corrected by the same ratio.
    """
    done = [report for report in reports if report["done"]]
    expected = sum(report["of_text"] for report in done)
    ratio = sum(report["characters"] for report in done) / expected if expected else 1.0
    total = float(sum(report["bytes"] for report in done))
    for report in reports:
        if not report["done"] and report["of_text"]:
            share = report["characters"] / max(1.0, ratio * report["of_text"])
            total += report["of_bytes"] * min(1.0, share)
    return total


def _tokens_written(reports: list[Counter[str]]) -> float:
    """Return an estimate of how many tokens of the input's documents are already in written rows."""
    return sum(
        report["of_tokens"] * (1.0 if report["done"] else min(1.0, report["rows"] / max(1, report["of_rows"])))
        for report in reports
    )


def _left(done: float, missing: float, seconds: float) -> str:
    if done <= 0 or missing <= 0:
        return ""
    return f", {describe_seconds(missing * seconds / done)} left"


def _kept(counts: Counter[str]) -> str:
    return f" ({counts['kept']:,} kept)" if counts["kept"] else ""


def _characters(number: int) -> str:
    return f"{number / _UNIT:,.1f} M characters" if number >= _SHOWN * _UNIT else count_of(number, "character")


def _bytes(number: float) -> str:
    return f"{number / _UNIT:,.1f} MB" if number >= _SHOWN * _UNIT else describe_bytes(number)


def _rate(number: float, seconds: float) -> str:
    return f" ({_bytes(number / max(seconds, 1e-3))}/s)" if number else ""
