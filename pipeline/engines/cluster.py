"""A Dask cluster that a build runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DaskCluster:
    """A Dask cluster as a build sees it."""

    address: str
    """Address of its scheduler."""
    name: str
    """Name of the cluster in messages."""
    workers: int
    """Number of workers, present or expected."""
    wait_s: float
    """How long to wait for a worker if there is none."""
    security: Any = None
    """distributed.Security if the cluster uses TLS."""
    attempts: int = 1
    """Most runs of a graph if the scheduler is lost; above 1 if a lost scheduler restarts by itself."""
