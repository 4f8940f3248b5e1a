"""A build that ends itself by SIGKILL at a named point: python killed_build.py MODULE NAME COUNT ARGUMENTS...

The COUNT-th call of MODULE.NAME never comes to pass.
"""

from __future__ import annotations

import os
import signal
import sys

from pipeline.run import main
from striking import strike_at


def kill_at(module: str, name: str, *, count: int) -> None:
    """Let this process be killed before the `count`-th call of MODULE.NAME."""
    strike_at(module, name, count=count, strike=lambda: os.kill(os.getpid(), signal.SIGKILL))


if __name__ == "__main__":
    kill_at(sys.argv[1], sys.argv[2], count=int(sys.argv[3]))
    sys.exit(main(sys.argv[4:]))
