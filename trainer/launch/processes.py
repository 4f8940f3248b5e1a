"""Run the workers as spawned processes of this machine, connected by torch.distributed over 127.0.0.1.

Every child process ends when its parent ends, even if the parent is killed. run_in_processes ends every child before it
returns.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from pipeline.console import Say
from pipeline.settings import ConfigError
from pipeline.signals import STOP_SIGNALS, StopRequest
from trainer.config import TrainerConfig
from trainer.launch.failures import CONTINUE_HINT, WorkerError, WorkerFailure, raise_first
from trainer.launch.loopback import open_store, stay_on_loopback
from trainer.train import Link, Outcome, WorkerPlace, backend_of, work

Watch = Callable[[Link, WorkerPlace], AbstractContextManager[Link]]

POLL_S = 0.2
"""Longest delay, in seconds, until a signal to this process reaches the workers."""
LOSS_WAIT_S = 1.0
"""Seconds to wait after a worker reports a failure. Perhaps the cause is another worker that was lost, and this process
has not noticed that loss yet."""
INPUT_WAIT_S = 2.0
"""Seconds to wait for rank 0's report after another worker reports bad input. Before the report, rank 0's pipe may have
many lines."""
GRACE_S = 5.0
"""Seconds that child processes get to end by themselves before they are killed."""


def resolve_device(config: TrainerConfig) -> TrainerConfig:
    """Return the config with `device: auto` replaced by cuda if this machine has GPUs, otherwise by cpu.

    Raises ConfigError if this machine has fewer GPUs than workers, or if its CPU does not support the precision.
    """
    count = torch.cuda.device_count()
    device = config.device
    if device == "auto":
        device = "cuda" if count else "cpu"
    if device == "cuda" and count < config.workers:
        raise ConfigError(
            f"workers={config.workers} on device={device} need {config.workers} GPUs, this machine has {count}; "
            f"lower workers or set device=cpu"
        )
    if device == "cpu" and config.precision == "fp16" and not torch.ops.mkldnn._is_mkldnn_fp16_supported():
        raise ConfigError("precision=fp16: this machine's CPU does not support it; set precision=bf16 or fp32")
    return config.model_copy(update={"device": device})


def run_in_processes(
    config: TrainerConfig, *, say: Say, stop: StopRequest, lease_token: str | None = None, watch: Watch | None = None
) -> Outcome:
    """Run all workers to the end and return their outcome.

    `say` shows a line to the user. `lease_token` identifies the job's lease (sole right to write) on the run directory.
    If `watch` is given, each worker calls `watch(link, place)`. In this call, `link` is the worker's connection to this
    process, and `place` holds the worker's rank. The call returns a context manager, inside which the worker runs. This
    context manager yields the link that the worker uses instead of `link`. `watch` must be picklable. Raises
    ConfigError for bad input, and WorkerError for any other failure. The message of a WorkerError names the worker.
    """
    context = multiprocessing.get_context("spawn")
    store = open_store(wait_for_workers=False)
    links: dict[Connection, int] = {}
    children: list[BaseProcess] = []
    try:
        # Children inherit the signal mask set here and keep it until they can handle signals. The resource tracker must
        # run before, because starting it with the first child would undo the mask.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        for rank in range(config.workers):
            parent_end, child_end = context.Pipe(duplex=False)
            place = WorkerPlace(rank, config.workers, rank, config.workers)
            child = context.Process(
                target=_child, args=(config, place, store.port, child_end, lease_token, watch), name=f"worker-{rank}"
            )
            child.start()
            child_end.close()
            links[parent_end] = rank
            children.append(child)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        return _listen(links, children=children, say=say, stop=stop)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        _end(children)


def _listen(links: Mapping[Connection, int], *, children: list[BaseProcess], say: Say, stop: StopRequest) -> Outcome:
    open_links = set(links)
    outcomes: dict[int, Outcome] = {}
    failures: list[WorkerFailure] = []
    gone: set[int] = set()
    deadline = input_deadline = math.inf
    stop_sent = False
    while open_links:
        if stop and not stop_sent:
            stop_sent = True
            for child in children:
                child.terminate()  # sends SIGTERM, by which a worker is asked to stop
        for ready in connection.wait(list(open_links), timeout=POLL_S):
            assert isinstance(ready, Connection)
            message = _receive(ready)
            if message is None:
                open_links.discard(ready)
                gone.add(links[ready])
            elif isinstance(message, str):
                say(message)
            elif isinstance(message, WorkerFailure):
                failures.append(message)
            else:
                outcomes[links[ready]] = message
        if unfinished := gone - outcomes.keys():
            if by_input := [failure for failure in failures if failure.by_input]:
                # Rank 0 knows the cause, and what it has said so far may still be in its pipe.
                input_deadline = min(input_deadline, time.monotonic() + INPUT_WAIT_S)
                if min(failure.rank for failure in by_input) == 0 or 0 in gone or time.monotonic() >= input_deadline:
                    raise_first(by_input)
                continue
            # If a worker is lost, other workers report that it does not answer, perhaps before its pipe closes here.
            if lost := unfinished - {failure.rank for failure in failures}:
                raise _describe_loss(children[min(lost)], rank=min(lost))
            deadline = min(deadline, time.monotonic() + LOSS_WAIT_S)
            if not open_links or time.monotonic() >= deadline:
                raise_first(failures)
    return outcomes[0]


def _receive(link: Connection) -> str | WorkerFailure | Outcome | None:
    """Return the next message of a worker process, or None if the process has closed its end of the pipe."""
    try:
        message: str | WorkerFailure | Outcome = link.recv()
        return message
    except (EOFError, OSError):  # OSError: closed in the middle of a message
        return None


def _describe_loss(child: BaseProcess, *, rank: int) -> WorkerError:
    child.join(GRACE_S)
    code = child.exitcode
    how = f"ended by signal {-code} ({signal.Signals(-code).name})" if code is not None and code < 0 else f"exit {code}"
    hint = "; out of memory?" if code == -signal.SIGKILL else ""
    return WorkerError(f"worker {rank} was lost: {how}{hint}{CONTINUE_HINT}")


def _end(children: list[BaseProcess]) -> None:
    running = [child for child in children if child.is_alive()]
    for child in running:
        child.join(GRACE_S / len(running))
    for child in children:
        if child.is_alive():
            child.kill()
        child.join()


class _PipeLink:
    """A worker's connection through a pipe to its parent process. The parent sends a signal to ask the worker to
    stop."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._stop = False
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: self._request())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def say(self, line: str) -> None:
        self._pipe.send(line)

    def stop_requested(self) -> bool:
        return self._stop

    def _request(self) -> None:
        self._stop = True


def _child(
    config: TrainerConfig, place: WorkerPlace, port: int, pipe: Connection, lease_token: str | None, watch: Watch | None
) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    link = _PipeLink(pipe)
    device = torch.device("cuda", place.local_rank) if config.device == "cuda" else torch.device("cpu")
    try:
        stay_on_loopback()
        store = TCPStore("127.0.0.1", port, is_master=False)
        timeout = timedelta(seconds=config.collective_timeout_s)
        dist.init_process_group(
            backend_of(config), store=store, rank=place.rank, world_size=place.world_size, timeout=timeout
        )
        with nullcontext(link) if watch is None else watch(link, place) as watched:
            outcome = work(config, place=place, link=watched, device=device, lease_token=lease_token)
        pipe.send(outcome)
        dist.destroy_process_group()
    except Exception as error:
        pipe.send(WorkerFailure.of(error, rank=place.rank))
    pipe.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
