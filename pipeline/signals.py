"""Ctrl-C and SIGTERM: both end a command through an exception, so that all is put away, and in one line.

The exit status is 130 or 143. Never an ordinary exit then: Beam's threads may wait for workers that are gone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_caught: list[KeyboardInterrupt] = []
"""What signals have raised in the body of catch_interrupts."""


class TerminatedError(KeyboardInterrupt):
    """SIGTERM came. As with Ctrl-C, no `except Exception` on the way takes it for a fault."""


@contextmanager
def catch_interrupts() -> Iterator[None]:
    """SIGTERM raises TerminatedError in the body, SIGINT KeyboardInterrupt; handlers of others, and signals that are
    ignored, stay as they are. Signals reach the main thread alone, so the body of any other thread is left alone."""
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    found = {number: signal.getsignal(number) for number in defaults}
    ours = [number for number, default in defaults.items() if found[number] == default]
    if threading.current_thread() is not threading.main_thread():
        ours = []
    _caught.clear()
    for number in ours:
        signal.signal(number, _raise_interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, found[number])


def raise_caught() -> None:
    """Raise again what a signal has raised, where a library made another exception of it."""
    if _caught:
        raise _caught[0]


def fail_interrupted(error: KeyboardInterrupt) -> int:
    """Print what ended the command as one line on stderr; returns its exit status."""
    terminated = isinstance(error, TerminatedError)
    print(f"error: {'terminated' if terminated else 'interrupted'}", file=sys.stderr)
    return 128 + (signal.SIGTERM if terminated else signal.SIGINT)


def exit_with(status: int) -> NoReturn:
    """End the process; at once where it failed."""
    if status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(0)


def _raise_interrupt(number: int, frame: FrameType | None) -> NoReturn:
    _caught.append(TerminatedError() if number == signal.SIGTERM else KeyboardInterrupt())
    raise _caught[-1]


Say = Callable[[str], None]
"""Shows one line to the user."""


def say_at_once(line: str) -> None:
    """Print a line of the recipe's story, also where the output is a pipe."""
    print(line, flush=True)


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what schedulers and `ray job stop` send."""


class StopRequest:
    """True once a signal has come; a second signal interrupts at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def listen(self) -> None:
        """Take the signals. Again after whatever takes them for itself, as ray.init does."""
        for number in STOP_SIGNALS:
            signal.signal(number, self.receive)

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Signal handler. Raises KeyboardInterrupt the second time."""
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = number


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a StopRequest inside the block. For the main thread."""
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    request.listen()
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
