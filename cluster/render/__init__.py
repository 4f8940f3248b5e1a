"""Renders the files of clusters from the values that a user fills in: `python -m cluster.render`."""

from cluster.render.files import list_outdated, list_unfilled, render
from cluster.render.values import KINDS, SHORTEST_BOOT_S, VALUES, ClusterValues, Group, read_values
