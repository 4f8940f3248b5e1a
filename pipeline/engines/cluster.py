"""A Dask cluster that a build runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DaskCluster:
    """A Dask cluster as a build sees it."""

    address: str
    """Of its scheduler."""
    name: str
    """What messages call it."""
    workers: int
    """Processes that work, or will."""
    wait_s: float
    """How long to wait for a worker where there is none."""
    security: Any = None
    """distributed.Security of a cluster that speaks TLS."""
    attempts: int = 1
    """Times that a graph is run where the scheduler is lost: more than once where it is started again by itself."""
