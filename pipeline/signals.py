"""Ctrl-C and SIGTERM: they raise in a command's body (catch_interrupts), or first ask it to stop (stop_on_signals).

Both end a command through an exception, so that all is put away; pipeline.console makes it one line and the exit status
130 or 143.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what schedulers and `ray job stop` send."""
_DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
_caught: list[KeyboardInterrupt] = []
"""What signals have raised in the body of catch_interrupts."""


class TerminatedError(KeyboardInterrupt):
    """SIGTERM came. As with Ctrl-C, no `except Exception` on the way takes it for a fault."""


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
        """Signal handler. Raises the second time, what the first signal stands for."""
        if self.signal_number is not None:
            self.interrupt()
        self.signal_number = number

    def interrupt(self) -> NoReturn:
        """Raise what the signal stands for: the body cannot stop by itself."""
        raise TerminatedError if self.signal_number == signal.SIGTERM else KeyboardInterrupt


@contextmanager
def catch_interrupts() -> Iterator[None]:
    """SIGTERM raises TerminatedError in the body, SIGINT KeyboardInterrupt; handlers of others, and signals that are
    ignored, stay as they are. Signals reach the main thread alone, so the body of any other thread is left alone."""
    ours = [number for number, default in _DEFAULTS.items() if signal.getsignal(number) == default]
    if threading.current_thread() is not threading.main_thread():
        ours = []
    _caught.clear()
    with _handled(ours, handler=_raise_interrupt):
        yield


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a StopRequest inside the block. For the main thread."""
    request = StopRequest()
    with _handled(STOP_SIGNALS, handler=request.receive):
        yield request


def raise_caught() -> None:
    """Raise again what a signal has raised, where a library made another exception of it."""
    if _caught:
        raise _caught[0]


@contextmanager
def _handled(numbers: Sequence[int], *, handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """The handler of these signals inside the block, the former ones after it."""
    found = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in found.items():
            signal.signal(number, before)


def _raise_interrupt(number: int, frame: FrameType | None) -> NoReturn:
    _caught.append(TerminatedError() if number == signal.SIGTERM else KeyboardInterrupt())
    raise _caught[-1]
