"""The actor between a Ray driver and its workers.

A module of its own that imports next to nothing: the actor's process is up in a second, where one that loads
torch and Ray Train takes six of CPU time.
"""

from __future__ import annotations

import asyncio


class DriverMailbox:
    """An actor between driver and workers: lines and failures one way, the request to stop the other."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._failures: list[object] = []
        self._homes: list[str] = []
        self._world_size = 0
        self._news = asyncio.Event()
        self._stop = asyncio.Event()

    async def join(self, node: str, world_size: int) -> None:
        """A worker of so many has started on a node."""
        self._homes.append(node)
        self._world_size = world_size

    async def group(self) -> tuple[tuple[str, ...], int]:
        """The nodes of the workers that have started, and how many there will be (0 while none has)."""
        return tuple(self._homes), self._world_size

    async def say(self, line: str) -> None:
        """A worker's line for the user."""
        self._lines.append(line)
        self._news.set()

    async def fail(self, failure: object) -> None:
        """A worker's last word."""
        self._failures.append(failure)

    async def next_lines(self) -> list[str]:
        """Lines since the last call, at least one unless flushed; waits for it."""
        await self._news.wait()
        self._news.clear()
        lines, self._lines = self._lines, []
        return lines

    async def flush(self) -> None:
        """Let next_lines return what there is."""
        self._news.set()

    async def failures(self) -> list[object]:
        """All last words."""
        return self._failures

    async def request_stop(self) -> None:
        """Ask the workers to stop after the present step."""
        self._stop.set()

    async def wait_for_stop(self) -> None:
        """Return once the workers are asked to stop."""
        await self._stop.wait()
