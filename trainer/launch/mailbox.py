"""A Ray actor that carries messages between the driver (the process of the command) and its workers.

This module imports almost nothing, so that the actor's process starts in a second. If it imported torch and Ray Train,
the start would take six seconds of CPU time.
"""

from __future__ import annotations

import asyncio


class DriverMailbox:
    """Carries lines of text and failures from the workers to the driver (the process of the command), and the stop
    request from the driver to the workers."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._failures: list[object] = []
        self._worker_nodes: list[str] = []
        self._world_size = 0
        self._has_lines = asyncio.Event()
        self._stop = asyncio.Event()

    async def join(self, node: str, world_size: int) -> None:
        """Record that a worker has started on the node with the id `node`. `world_size` is the number of workers."""
        self._worker_nodes.append(node)
        self._world_size = world_size

    async def group(self) -> tuple[tuple[str, ...], int]:
        """Return the node ids of the workers that have started, and the world size (0 before the first start)."""
        return tuple(self._worker_nodes), self._world_size

    async def say(self, line: str) -> None:
        """Keep a line that a worker wants to show to the user, until next_lines returns it."""
        self._lines.append(line)
        self._has_lines.set()

    async def fail(self, failure: object) -> None:
        """Record the failure of a worker. `failure` is a WorkerFailure."""
        self._failures.append(failure)

    async def next_lines(self) -> list[str]:
        """Wait for a line, and return all lines since the last call. The list is empty only if flush ended the wait."""
        await self._has_lines.wait()
        self._has_lines.clear()
        lines, self._lines = self._lines, []
        return lines

    async def flush(self) -> None:
        """Make the pending or next call of next_lines return at once, even without lines."""
        self._has_lines.set()

    async def failures(self) -> list[object]:
        """Return all failures that workers have reported."""
        return self._failures

    async def request_stop(self) -> None:
        """Ask the workers to stop after the current step."""
        self._stop.set()

    async def wait_for_stop(self) -> None:
        """Wait until request_stop has been called."""
        await self._stop.wait()
