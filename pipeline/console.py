"""Console output of commands: progress lines, one line for an error or a signal, and the exit status.

Exit status: 0 on success, 2 for an error that the user can fix, 128 + n if signal n ended the command.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec, TypeAlias

from pipeline.errors import describe_error
from pipeline.signals import TerminatedError, catch_interrupts

Say: TypeAlias = Callable[[str], None]
"""A function that shows one line to the user."""
Parameters = ParamSpec("Parameters")


def say_at_once(line: str) -> None:
    """Print a line and flush it, so that it appears at once even in a pipe. Characters that cannot be shown are escaped
    (see escape_unprintable)."""
    print(escape_unprintable(line), flush=True)


def escape_unprintable(text: str) -> str:
    """Return `text` with the characters that cannot be shown, such as those that control a terminal, written as in a
    Python string. Line breaks stay. Names and texts of files may be in what a command says."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def fail(error: BaseException) -> int:
    """Print `error`, which the user can fix, as one line on stderr, and escape characters that cannot be shown. Return
    the exit status 2."""
    print(f"error: {escape_unprintable(describe_error(error))}", file=sys.stderr)
    return 2


def fail_interrupted(error: KeyboardInterrupt, *, goes_on_from: str = "") -> int:
    """Print on stderr which signal ended the command, and return the exit status: 130 for Ctrl-C, 143 for SIGTERM.

    `goes_on_from` says from where the same command would continue, such as "the last checkpoint".
    """
    terminated = isinstance(error, TerminatedError)
    rest = f"; the same command goes on from {goes_on_from}" if goes_on_from else ""
    print(f"{'terminated' if terminated else 'interrupted'}{rest}", file=sys.stderr)
    return 128 + (signal.SIGTERM if terminated else signal.SIGINT)


def command(*, goes_on_from: str = "") -> Callable[[Callable[Parameters, int]], Callable[Parameters, int]]:
    """Return a decorator for functions `main` that return an exit status.

    Instead of a traceback, the decorated function prints one line at ValueError, OSError, Ctrl-C or SIGTERM. It then
    returns the exit status: 2 for the errors, 130 for Ctrl-C, 143 for SIGTERM. The line after Ctrl-C or SIGTERM says
    from where the same command would continue: from `goes_on_from`, such as "the last checkpoint".
    """

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
    """End the process with the exit status `status`. If it is not 0, end at once without clean-up, because threads of
    libraries may wait for workers that are gone."""
    if status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(0)
