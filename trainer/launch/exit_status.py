"""The end of a command whose work workers do: its exit status, and its last line."""

from __future__ import annotations

import sys
from collections.abc import Callable

from pipeline.console import say_at_once
from pipeline.signals import StopRequest, stop_on_signals
from trainer.launch.failures import WorkerError


def run_to_the_end(work: Callable[[StopRequest], str | None]) -> int:
    """Call `work`, print the line that it returns, and return the exit status.

    `work` returns None if the request to stop ended it early. The status is 0 if the work is done, 1 if workers were
    lost (WorkerError), and 128 + n if signal n stopped the work. Use this only in the main thread.
    """
    with stop_on_signals() as stop:
        try:
            line = work(stop)
        except WorkerError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    if line is None:
        assert stop.signal_number is not None
        say_at_once("stopped; the same command continues from here")
        return 128 + stop.signal_number
    print(line, flush=True)
    return 0
