"""The Ray actor between the driver and its workers.

This module imports almost nothing, so that the actor's process starts in a second. With torch and Ray Train, it would
take six seconds of CPU time.
"""

from __future__ import annotations

import asyncio


class DriverMailbox:
    """Carries lines of text and failures from workers to driver, and the stop request from driver to workers."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._failures: list[object] = []
        self._worker_nodes: list[str] = []
        self._world_size = 0
        self._has_lines = asyncio.Event()
        self._stop = asyncio.Event()

    async def join(self, node: str, world_size: int) -> None:
        """Note that a worker, one of `world_size`, has started on `node`."""
        self._worker_nodes.append(node)
        self._world_size = world_size

    async def group(self) -> tuple[tuple[str, ...], int]:
        """Return the nodes of the workers that have started, and the world size (0 before the first start)."""
        return tuple(self._worker_nodes), self._world_size

    async def say(self, line: str) -> None:
        """Take a line that a worker wants to show to the user."""
        self._lines.append(line)
        self._has_lines.set()

    async def fail(self, failure: object) -> None:
        """Take a worker's report of its failure, a WorkerFailure."""
        self._failures.append(failure)

    async def next_lines(self) -> list[str]:
        """Wait for lines and return all lines since the last call. The list is empty only after a flush."""
        await self._has_lines.wait()
        self._has_lines.clear()
        lines, self._lines = self._lines, []
        return lines

    async def flush(self) -> None:
        """Let next_lines return at once, even without lines."""
        self._has_lines.set()

    async def failures(self) -> list[object]:
        """Return all failures that workers have reported."""
        return self._failures

    async def request_stop(self) -> None:
        """Ask the workers to stop after the current step."""
        self._stop.set()

    async def wait_for_stop(self) -> None:
        """Wait until the workers are asked to stop."""
        await self._stop.wait()
