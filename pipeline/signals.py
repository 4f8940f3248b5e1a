"""Handles Ctrl-C and SIGTERM: catch_interrupts raises an exception at once, and stop_on_signals sets a request to stop.

The exception lets a command clean up. pipeline.console turns it into one line and the exit status 130 or 143. A request
to stop lets a command end at a good moment; only Ctrl-C after that raises the exception.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The signal of Ctrl-C, and the signal that schedulers and `ray job stop` send."""
_DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
_caught: list[KeyboardInterrupt] = []
"""The exceptions that signals have raised in the current block of catch_interrupts."""


class TerminatedError(KeyboardInterrupt):
    """SIGTERM was received. Like KeyboardInterrupt, it passes through `except Exception`."""


class StopRequest:
    """A request to stop. As a bool, it is false until SIGINT or SIGTERM is received, and then true. SIGINT (Ctrl-C)
    after that raises an exception: TerminatedError if the first signal was SIGTERM, else KeyboardInterrupt."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def listen(self) -> None:
        """Install the signal handlers. Call this again after code that replaces them, such as ray.init."""
        for number in STOP_SIGNALS:
            signal.signal(number, self.receive)

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal. The first signal is only remembered. SIGINT after that raises the exception of the first:
        TerminatedError for SIGTERM, else KeyboardInterrupt.

        SIGTERM after that changes nothing, because several programs may each send one while a cluster ends: Ray for its
        job, and then the head for all its jobs. The command needs its time for a checkpoint all the same.
        """
        if self.signal_number is None:
            self.signal_number = number
        elif number == signal.SIGINT:
            self.interrupt()

    def interrupt(self) -> NoReturn:
        """Raise the exception that belongs to the received signal: TerminatedError for SIGTERM, else KeyboardInterrupt.

        Call this to interrupt code that does not check whether the request is true.
        """
        raise TerminatedError if self.signal_number == signal.SIGTERM else KeyboardInterrupt


@contextmanager
def catch_interrupts() -> Iterator[None]:
    """Raise TerminatedError in the `with` block at SIGTERM, and KeyboardInterrupt at SIGINT.

    If a signal is ignored, or if other code has set a handler for it, its handling is not changed. Outside the main
    thread, nothing is done, because only the main thread receives signals.
    """
    ours = [number for number, default in _DEFAULTS.items() if signal.getsignal(number) == default]
    if threading.current_thread() is not threading.main_thread():
        ours = []
    _caught.clear()
    with _handled(ours, handler=_raise_interrupt):
        yield


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Yield a StopRequest, which becomes true if SIGINT or SIGTERM is received in the `with` block. Use this only in
    the main thread."""
    request = StopRequest()
    with _handled(STOP_SIGNALS, handler=request.receive):
        yield request


def raise_caught() -> None:
    """If a signal arrived inside the block of catch_interrupts, raise its exception again. Otherwise do nothing.

    Call this after a library that may have turned the signal's exception into another one.
    """
    if _caught:
        raise _caught[0]


@contextmanager
def _handled(numbers: Sequence[int], *, handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
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
