"""Something happens at a call of a function: a process is killed there and nowhere else."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import reduce
from typing import Any


def strike_at(module: str, name: str, *, count: int, strike: Callable[[], None]) -> None:
    """Let `strike` be called before the `count`-th call in this process of MODULE.NAME, which may be a method."""
    *path, last = name.split(".")
    owner = reduce(getattr, path, importlib.import_module(module))
    original = getattr(owner, last)
    calls = 0

    def striking(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            strike()
        return original(*arguments, **keywords)

    setattr(owner, last, striking)
