"""Writes the documents that were left out (rejects) to a file for people to read: sorted lines, one JSON object each.

Workers write sorted files of bounded size (runs). However many workers there are, merging the runs gives the same
bytes.
"""

from __future__ import annotations

import heapq
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from pipeline import storage

REJECTS_NAME = "rejects.jsonl"
_RUN_CHARACTERS = 16_000_000
_MAX_OPEN_RUNS = 64


class RejectWriter:
    """Writes the documents that were left out. They go into sorted files (runs) in `folder`. If `folder` is None,
    nothing is written.

    It is used in a `with` statement. If the body of the `with` raises an error, the files are removed.
    """

    def __init__(self, folder: str | Path | None, *, run_characters: int = _RUN_CHARACTERS) -> None:
        self._folder = None if folder is None else str(folder)
        self._run_characters = run_characters
        self._lines: list[str] = []
        self._characters = 0
        self.runs: list[str] = []
        """The paths of the files written. The list is complete once the writer is closed."""

    def __enter__(self) -> RejectWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        else:
            for run in self.runs:
                storage.delete(run)

    def add(self, *, source: int, name: str, reason: str, detail: str, text: str) -> None:
        """Add one document that was left out.

        `source` is an index into the config's sources. `detail` explains `reason`, for example by the measured value
        and the limit. `text` has one sentence per line.
        """
        if self._folder is None:
            return
        entry = {"source": source, "name": name, "reason": reason, "detail": detail, "text": text}
        line = json.dumps(entry, ensure_ascii=False) + "\n"
        self._lines.append(line)
        self._characters += len(line)
        if self._characters >= self._run_characters:
            self._flush()

    def _flush(self) -> None:
        if self._lines and self._folder is not None:
            path = storage.join(self._folder, f"rejects-{uuid.uuid4().hex[:16]}.jsonl")
            self.runs.append(path)
            self._lines.sort()
            with storage.open_output(path, in_place=True) as stream:
                stream.writelines(line.encode("utf-8") for line in self._lines)
            self._lines.clear()
            self._characters = 0


def write_rejects(runs: Sequence[str], *, folder: str | Path, scratch: Path) -> str:
    """Merge the sorted files `runs` into `folder`/rejects.jsonl, and return the path or URL of this file. The file
    appears under this name only once it is complete.

    At most 64 files are open at a time. Intermediate files are left in `scratch`.
    """
    waiting = list(runs)
    made = 0
    while len(waiting) > _MAX_OPEN_RUNS:
        merged = str(scratch / f"merged-{made}.jsonl")
        _merge(waiting[:_MAX_OPEN_RUNS], target=merged)
        waiting = [*waiting[_MAX_OPEN_RUNS:], merged]
        made += 1
    path = storage.join(folder, REJECTS_NAME)
    _merge(waiting, target=path)
    return path


def _merge(runs: Sequence[str], *, target: str) -> None:
    with ExitStack() as stack, storage.open_output(target) as stream:
        readers: list[Iterator[bytes]] = [stack.enter_context(storage.open_input(run)) for run in runs]
        stream.writelines(heapq.merge(*readers))  # bytes of UTF-8 sort in the order of the characters
