"""Start the mailbox actor on the driver's node, and talk to the driver through it from a worker."""

from __future__ import annotations

import threading
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainer.launch.mailbox import DriverMailbox

START_ATTEMPTS = 3


def start_mailbox() -> Any:
    """Start an actor of the class DriverMailbox on this node, and return its handle once the actor answers.

    On a busy machine, a process of Ray 2.60 sometimes crashes while it starts (a segmentation fault in one of Ray's own
    threads). Then another actor is started. Raises RayActorError if START_ATTEMPTS actors in a row crashed.
    """
    on_this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(num_cpus=0, max_concurrency=1000, scheduling_strategy=on_this_node)(DriverMailbox)
    for attempt in range(START_ATTEMPTS):
        mailbox = actor.remote()
        try:
            ray.get(mailbox.group.remote())
            break
        except RayActorError:
            if attempt == START_ATTEMPTS - 1:
                raise
    return mailbox


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
