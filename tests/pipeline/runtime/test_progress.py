"""What a build shows while it runs: a line a stage, the time that is left, and the same numbers as Beam's counters."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
import pytest

from corpora import make_config, make_documents, write_text
from pipeline.build.recipe import build
from pipeline.runtime import progress
from pipeline.runtime.progress import PLAN_NAME, ProgressPrinter, WorkReport


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def leave(folder: Path, *, stage: str, done: bool, **counts: int) -> None:
    report = WorkReport(folder, stage="read" if stage == "read" else "shard")
    if not done:
        report.add(**counts)
        return
    with report:  # leaving it says that the work is done
        report.add(**counts)


def wait_for(condition: Callable[[], bool]) -> None:
    """A thread has its turn; at most five minutes."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait(printer: ProgressPrinter, *, stage: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the stage had begun so long ago; the clock stands from now on."""
    now = time.monotonic()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))
    printer._started = now - seconds
    printer._stage_started["read" if stage == "read" else "shard"] = now - seconds


def test_the_time_left_follows_from_bytes_read_of_bytes_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One split of 30 MB is done, one of 20 MB is half read by its text: its text is twice what was expected, as that
    of the first; 40 of 80 MB in 20 s leave 20 s."""
    printer = ProgressPrinter(tmp_path, num_splits=3, num_bytes=80_000_000)
    sizes = {"of_bytes": 30_000_000, "of_text": 50_000_000}
    leave(tmp_path, stage="read", done=True, documents=5, characters=100_000_000, bytes=30_000_000, **sizes)
    leave(
        tmp_path, stage="read", done=False, documents=1, characters=20_000_000, of_bytes=20_000_000, of_text=20_000_000
    )
    wait(printer, stage="read", seconds=20, monkeypatch=monkeypatch)
    line = printer.line()
    assert line == (
        "20 s: read 6 documents, 120.0 M characters, 1 of 3 splits, 50% of 80.0 MB of input (2.0 MB/s), 20 s left"
    )


def test_what_was_kept_counts_as_done_but_not_as_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 of 80 MB were there before: 10 MB in 10 s leave 40 s for the other 40."""
    printer = ProgressPrinter(tmp_path, num_splits=3, num_bytes=80_000_000)
    leave(tmp_path, stage="read", done=True, documents=5, characters=30_000_000, bytes=30_000_000, kept=1)
    leave(tmp_path, stage="read", done=True, documents=1, characters=10_000_000, bytes=10_000_000)
    wait(printer, stage="read", seconds=10, monkeypatch=monkeypatch)
    line = printer.line()
    assert "read 6 documents, 40.0 M characters, 2 of 3 splits, 50% of 80.0 MB of input (1.0 MB/s)" in line
    assert line.endswith("(1 kept), 40 s left")
    assert "40.0 M characters of 40.0 MB of input (1.0 MB/s); wrote 0 rows" in printer.summary()
    assert printer.count_kept() == {"read": 1, "shard": 0}


def test_a_second_attempt_is_not_counted_twice(tmp_path: Path) -> None:
    """A worker is killed in the middle of a piece; another does it; its result is lost with it, and a third finds the
    record; a fourth fails. What the one said that did the piece stands."""
    printer = ProgressPrinter(tmp_path, num_splits=1, num_bytes=100)
    WorkReport(tmp_path, stage="read", key=["split", 1]).add(documents=5, characters=50)
    with WorkReport(tmp_path, stage="read", key=["split", 1]) as second:
        second.add(documents=7, characters=70, bytes=100)
    with WorkReport(tmp_path, stage="read", key=["split", 1]) as third:
        third.add(kept=1, documents=7, characters=70, bytes=100)
    with pytest.raises(OSError), WorkReport(tmp_path, stage="read", key=["split", 1]):
        raise OSError("disk")
    assert re.match(r"\d+ s: read 7 documents, ", printer.summary())
    assert printer.count_kept()["read"] == 0


def test_the_second_stage_counts_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards differ: 100 of 1000 tokens are done, of 400 more half, so that 15 s leave 35 s."""
    printer = ProgressPrinter(tmp_path, num_splits=1)
    assert printer.read_plan() == {"shards": 0, "tokens": 0}
    assert "read 0 documents" in printer.line()
    (tmp_path / PLAN_NAME).write_text(json.dumps({"shards": 4, "tokens": 1000}))
    leave(tmp_path, stage="shard", done=True, rows=100, of_rows=100, of_tokens=100, documents=7, bytes=30_000_000)
    leave(tmp_path, stage="shard", done=False, rows=50, of_rows=100, of_tokens=400, bytes=15_000_000)
    wait(printer, stage="shard", seconds=15, monkeypatch=monkeypatch)
    assert printer.line() == ("15 s: wrote 150 rows of 7 documents, 45.0 MB (3.0 MB/s), 1 of 4 shards, 35 s left")


def test_a_terminal_has_a_line_a_stage_rewritten_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.runtime.progress._TERMINAL_EVERY_S", 0.01)
    shown = Terminal()
    with ProgressPrinter(tmp_path, num_splits=1, stream=shown):
        leave(tmp_path, stage="read", done=True, documents=3)
        wait_for(lambda: shown.getvalue().count("read 3 documents") >= 3)
        (tmp_path / PLAN_NAME).write_text(json.dumps({"shards": 1, "tokens": 1}))
        wait_for(lambda: "wrote" in shown.getvalue())
    lines = shown.getvalue().split("\n")
    assert len(lines) == 2, "one line a stage"
    assert all(part.endswith("\x1b[K") for part in lines[0].split("\r")[1:])
    assert "read" not in lines[1]
    assert lines[1].endswith("\r\x1b[K")


def test_elsewhere_lines_are_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.runtime.progress._PLAIN_EVERY_S", 0.01)
    shown = io.StringIO()
    with ProgressPrinter(tmp_path, num_splits=1, stream=shown):
        wait_for(lambda: shown.getvalue().count("\n") >= 3)
    assert "\r" not in shown.getvalue()
    assert all(" s: read 0 documents" in line for line in shown.getvalue().splitlines())


def test_beam_counts_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For engines with a page of their own."""
    results: list[Any] = []
    run = beam.Pipeline.run

    def keep_result(self: beam.Pipeline, *arguments: Any, **keywords: Any) -> Any:
        results.append(run(self, *arguments, **keywords))
        return results[-1]

    monkeypatch.setattr(beam.Pipeline, "run", keep_result)
    paths = [write_text(tmp_path / f"{number}.txt", make_documents(30, seed=number)) for number in range(2)]
    sources = [{"kind": "text", "path": [str(path) for path in paths]}]
    manifest = build(make_config(tmp_path, sources=sources, shards=2), say=lambda line: None)
    counters = results[0].metrics().query(beam.metrics.MetricsFilter().with_namespace("cloze"))["counters"]
    found = {counter.key.metric.name: counter.committed for counter in counters}
    (source,) = manifest.statistics["sources"]
    assert found == {
        "read_done": 2,
        "read_documents": source["documents"],
        "read_characters": source["characters"],
        "read_bytes": sum(path.stat().st_size for path in paths),
        "shard_done": len(manifest.shards),
        "shard_documents": source["documents"],
        "shard_rows": sum(shard.rows for shard in manifest.shards),
        "shard_bytes": sum(shard.bytes for shard in manifest.shards),
    }
