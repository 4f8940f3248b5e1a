"""Renders the files of clusters from the values that a user fills in: `python -m cluster.render`."""

from cluster.render.batch_values import SkyValues
from cluster.render.files import find_unfilled, list_unfilled, render
from cluster.render.launcher_values import CloudValues, HostsValues, describe_prices, greatest_prices
from cluster.render.sets import (
    KINDS,
    SETS,
    VALUES,
    ValuesSet,
    choose_sets,
    list_outdated,
    list_sets,
    read_set,
    read_values,
    render_set,
    shipped_set,
    shorten,
    validate_values,
)
from cluster.render.values import SHORTEST_BOOT_S, ClusterValues, Group
