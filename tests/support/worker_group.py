"""Processes joined by gloo that run functions of the test modules, one call after another.

Importing torch and DeepSpeed takes seconds, so processes are forked from a server that has them loaded and
serve many tests. A call that fails ends its group; the next call starts a fresh one.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PRELOAD = [
    "torch",
    "torch._dynamo",
    "deepspeed",
    "deepspeed.runtime.bf16_optimizer",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.zero.stage3",
]
COLLECTIVE_TIMEOUT_S = 60
CALL_TIMEOUT_S = 280


class WorkerError(AssertionError):
    """A function failed in a worker; the message holds the worker's traceback."""


class WorkerGroup:
    """`world_size` ranks. `run(function, *args)` calls function(rank, *args) in each of them."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._processes: list[Any] = []
        self._connections: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """The ranks' results in order; WorkerError with the first traceback where one fails."""
        if not self._processes:
            self._start()
        for connection in self._connections:
            connection.send((function, args))
        results = []
        failures = []
        for rank, connection in enumerate(self._connections):
            try:
                # Once one rank has failed the others may wait for it until their collective times out.
                if not connection.poll(CALL_TIMEOUT_S if not failures else 5):
                    failures.append(f"rank {rank} of {self.world_size} did not answer")
                    continue
                failed, value = connection.recv()
            except (EOFError, ConnectionResetError):
                failures.append(f"rank {rank} of {self.world_size} died")
                continue
            if failed:
                failures.append(f"rank {rank} of {self.world_size}:\n{value}")
            results.append(value)
        if failures:
            self.close()
            raise WorkerError("\n".join(failures))
        return results

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        for connection in self._connections:
            connection.close()
        self._processes, self._connections = [], []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        os.environ["DS_ACCELERATOR"] = "cpu"
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self._folder = tempfile.TemporaryDirectory(prefix="cloze-workers-")
        store = Path(self._folder.name) / "store"
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, self.world_size, str(store)), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)


def _serve(connection: Connection, rank: int, world_size: int, store: str) -> None:
    import torch
    import torch.distributed as dist

    gc.freeze()  # what the server loaded need not be walked again at each collection
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S),
    )
    while True:
        try:
            function, args = connection.recv()
        except EOFError:
            return
        try:
            connection.send((False, function(rank, *args)))
        except BaseException:
            connection.send((True, traceback.format_exc()))
