"""What a command says and how it ends: lines of its story, one line for an error or a signal, and the exit status.

Status: 0 done, 2 for what the user can mend, 128 + n if signal n ended it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec, TypeAlias

from pipeline.signals import TerminatedError, catch_interrupts

Say: TypeAlias = Callable[[str], None]
"""Shows one line to the user."""
Parameters = ParamSpec("Parameters")


def say_at_once(line: str) -> None:
    """Print a line of the recipe's story, also where the output is a pipe."""
    print(line, flush=True)


def fail(error: BaseException) -> int:
    """Print a user error as one line on stderr; returns the exit status of a refused input (2)."""
    print(f"error: {error}", file=sys.stderr)
    return 2


def fail_interrupted(error: KeyboardInterrupt, *, goes_on_from: str = "") -> int:
    """Print which signal ended the command, as one line on stderr; returns its exit status. `goes_on_from`: what the
    same command finds."""
    terminated = isinstance(error, TerminatedError)
    rest = f"; the same command goes on from {goes_on_from}" if goes_on_from else ""
    print(f"{'terminated' if terminated else 'interrupted'}{rest}", file=sys.stderr)
    return 128 + (signal.SIGTERM if terminated else signal.SIGINT)


def command(*, goes_on_from: str = "") -> Callable[[Callable[Parameters, int]], Callable[Parameters, int]]:
    """Make a main function one that ends in one line, never in a traceback, for what the user can mend (ValueError,
    OSError) and for Ctrl-C and SIGTERM, which raise in its body."""

    def decorate(main: Callable[Parameters, int]) -> Callable[Parameters, int]:
        @wraps(main)
        def run(*arguments: Parameters.args, **named: Parameters.kwargs) -> int:
            try:
                with catch_interrupts():
                    return main(*arguments, **named)
            except (ValueError, OSError) as error:
                return fail(error)
            except KeyboardInterrupt as error:
                return fail_interrupted(error, goes_on_from=goes_on_from)

        return run

    return decorate


def exit_with(status: int) -> NoReturn:
    """End the process; at once if it failed: threads of libraries may wait for workers that are gone."""
    if status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(0)
