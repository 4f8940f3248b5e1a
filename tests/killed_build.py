"""A build that ends itself by SIGKILL at a named point: python killed_build.py MODULE NAME COUNT ARGUMENTS...

The COUNT-th call of MODULE.NAME never comes to pass.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from functools import reduce
from typing import Any

from pipeline.run import main


def kill_at(module: str, name: str, *, count: int) -> None:
    """Replace the function MODULE.NAME (which may be a method) by one that kills this process at a call."""
    *path, last = name.split(".")
    owner = reduce(getattr, path, importlib.import_module(module))
    original = getattr(owner, last)
    calls = 0

    def killing(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **keywords)

    setattr(owner, last, killing)


if __name__ == "__main__":
    kill_at(sys.argv[1], sys.argv[2], count=int(sys.argv[3]))
    sys.exit(main(sys.argv[4:]))
