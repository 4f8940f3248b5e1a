"""A worker's side of the mailbox through which it talks to the driver."""

from __future__ import annotations

import threading
from typing import Any

import ray


class MailboxLink:
    """A worker's connection to the driver (the process of the command) through the Ray actor DriverMailbox.

    A thread waits for the request to stop. So stop_requested answers at once, without a call to the actor.
    """

    def __init__(self, mailbox: Any) -> None:
        self._mailbox = mailbox
        self._stop = threading.Event()
        threading.Thread(target=self._wait_for_stop, name="stop", daemon=True).start()

    def say(self, line: str) -> None:
        """Show a line to the user."""
        self._mailbox.say.remote(line)

    def stop_requested(self) -> bool:
        """Return whether the user has asked the run to stop."""
        return self._stop.is_set()

    def _wait_for_stop(self) -> None:
        ray.get(self._mailbox.wait_for_stop.remote())
        self._stop.set()
