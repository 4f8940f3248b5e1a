"""Describes a Dask cluster that a build runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DaskCluster:
    """What a build needs to know about a Dask cluster."""

    address: str
    """The address of the scheduler."""
    name: str
    """The name of the cluster in messages."""
    workers: int
    """The number of workers, present or expected."""
    wait_s: float
    """The longest time to wait while the cluster has no worker."""
    security: Any = None
    """A distributed.Security object if the cluster uses TLS."""
    attempts: int = 1
    """How often a graph is run at most. If it is above 1, the graph is run again after the scheduler was lost, which
    only helps if a lost scheduler restarts by itself."""
