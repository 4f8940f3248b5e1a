"""Clusters' files from what a user fills in: `python -m cluster.render`."""

from cluster.render.files import FILES, list_outdated, list_unfilled, render
from cluster.render.values import KINDS, VALUES, ClusterValues, Group, read_values

__all__ = [
    "FILES",
    "KINDS",
    "VALUES",
    "ClusterValues",
    "Group",
    "list_outdated",
    "list_unfilled",
    "read_values",
    "render",
]
