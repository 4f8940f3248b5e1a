"""Preloaded by Dask workers of the tests: notes each split that the worker is given, and kills at named points."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import psutil

from processes import command_of
from striking import strike_at

CALLS, KILLS = "CLOZE_TEST_CALLS", "CLOZE_TEST_KILLS"
"""Environment variables: a file that gets a line a split; "MODULE NAME COUNT VICTIM;...": the COUNT-th call of
MODULE.NAME in a process comes after a SIGKILL of VICTIM: `self`, or the actor of that class. Each happens once,
whatever processes there are: a file beside CALLS says that it has."""


def dask_setup(worker: Any) -> None:
    """Called by Dask when the worker starts."""
    note_splits()
    for number, point in enumerate(filter(None, os.environ.get(KILLS, "").split(";"))):
        module, name, count, victim = point.split()
        strike = partial(kill_once, victim, mark=f"{os.environ[CALLS]}.{number}")
        strike_at(module, name, count=int(count), strike=strike)


def note_splits() -> None:
    from pipeline.build import graph

    original = graph.spill_split

    def noted(split: Any, **keywords: Any) -> Any:
        with open(os.environ[CALLS], "a", encoding="utf-8") as stream:
            stream.write(f"{split.path}\n")
        return original(split, **keywords)

    graph.spill_split = noted


def kill_once(victim: str, *, mark: str) -> None:
    """SIGKILL, unless the file `mark` says that it has been."""
    if not os.path.exists(mark):
        with open(mark, "x"):
            os.kill(os.getpid() if victim == "self" else find_actor(victim), signal.SIGKILL)


def find_actor(name: str) -> int:
    """Process id of an actor of this process's Ray."""
    raylet = psutil.Process().parent()
    assert raylet is not None
    (found,) = [process.pid for process in raylet.children() if f"ray::{name}" in command_of(process)]
    return found
