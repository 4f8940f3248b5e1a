"""From text to tokenized sentence pairs: the data half of Cloze (Beam).

If a dependency is not installed, the commands of this repository print one line instead of a traceback. Other programs
that import this package are not affected. This file needs only the standard library, because every command imports it
first.
"""

from __future__ import annotations

import os.path
import sys
from itertools import pairwise
from types import TracebackType

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_COMMANDS = ("pipeline", "trainer", "cluster", "bench")


def _is_command() -> bool:
    """Whether Python was started to run a command of this repository, such as `python -m pipeline.audit` or
    `python trainer/run.py`."""
    modules = [word for option, word in pairwise(sys.orig_argv) if option == "-m"][:1]
    script = os.path.relpath(os.path.abspath(sys.argv[0]), _ROOT) if sys.argv else ""
    return any(name.partition(".")[0] in _COMMANDS for name in (*modules, script.replace(os.sep, ".")))


def _say_what_is_missing(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """If `error` says that a package is not installed, print one line that says so, and exit with status 2. Report any
    other error as usual. Used as sys.excepthook."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if not name or name in _COMMANDS:
        sys.__excepthook__(kind, error, trace)
        return
    print(
        f"error: the package {name} is not installed for {sys.executable}; run `make setup` once, then "
        f"`. .venv/bin/activate`, or use .venv/bin/python instead of python",
        file=sys.stderr,
    )
    raise SystemExit(2)


if _is_command() and sys.excepthook is sys.__excepthook__:
    sys.excepthook = _say_what_is_missing
