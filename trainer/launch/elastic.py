"""Watch a Ray cluster: which nodes will go away, and whether there is room for more workers.

By itself, Ray Train ends the workers without a checkpoint when the cluster grows, and counts nodes that will soon go
away as room. So the driver looks at the nodes and asks the workers to end with a checkpoint. A look costs three calls
to Ray's head node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline.units import count_of
from trainer.config import TrainerConfig

Resources = Mapping[str, float]
"""Maps Ray's name of a resource to an amount."""

INGEST_CPUS = 1.0
"""Logical CPUs left for Ray Data beside the workers. Its tasks request no CPU, but need one to run on."""
GROWS_TO = "grows_to_"
"""Prefix of a resource of the head node: grows_to_GPU, for example, states how many GPUs the cluster may grow to."""
NODE_LIST_TIMEOUT_S = 90.0
"""Longest time, in seconds, until Ray notices that a node is gone: five checks of 10 s, and a margin."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of the cluster at one moment."""

    total: Mapping[str, Resources]
    """Maps the id of each live node to all resources of the node."""
    free: Mapping[str, Resources]
    """Maps the id of a node to its unused resources."""
    leaving: Mapping[str, float]
    """Maps the id of each node that Ray knows will go away to the seconds until then (0: unknown)."""


def look_at_nodes() -> Nodes:
    """Return the nodes of the cluster, as Ray's head node knows them now."""
    state = ray._private.state
    now = time.time()
    return Nodes(
        total={node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]},
        free=state.available_resources_per_node(),
        leaving={
            node: max(0.0, deadline_ms / 1000 - now) if deadline_ms else 0.0
            for node, deadline_ms in state.state.get_draining_nodes().items()
        },
    )


def count_places(nodes: Mapping[str, Resources], *, per_worker: Resources, without: Collection[str] = ()) -> int:
    """Return how many workers of resources `per_worker` fit on the nodes, except on the nodes in `without`."""
    return sum(
        min(int((resources.get(name, 0.0) + 1e-6) / amount) for name, amount in per_worker.items())
        for node, resources in nodes.items()
        if node not in without
    )


def max_group_size(nodes: Nodes, *, least: int, most: int, per_worker: Resources) -> int:
    """Return the largest number of workers of resources `per_worker` that may run, from `least` to `most`.

    Leaving nodes do not count. If no node is leaving, the number is `most`, because an autoscaler may add nodes.
    Workers on CPUs leave INGEST_CPUS of the cluster for reading data.
    """
    limit = most
    if nodes.leaving:
        limit = min(limit, count_places(nodes.total, per_worker=per_worker, without=nodes.leaving))
    if "CPU" in per_worker:
        cpus = sum(resources.get("CPU", 0.0) for node, resources in nodes.total.items() if node not in nodes.leaving)
        limit = min(limit, int((cpus - INGEST_CPUS + 1e-6) / per_worker["CPU"]))
    return max(least, limit)


def next_group_size(nodes: Nodes, *, least: int, most: int, per_worker: Resources) -> int:
    """Return the number of workers to request now, from `least` to `most`: as many as fit, if at least `least` fit.

    A larger request would wait: Ray Train still counts nodes that have just gone, until its start times out. If fewer
    than `least` fit, Ray has to wait anyway, so max_group_size workers are requested. PendingPlacements asks for the
    missing places.
    """
    max_size = max_group_size(nodes, least=least, most=most, per_worker=per_worker)
    places = count_places(nodes.total, per_worker=per_worker, without=nodes.leaving)
    return max_size if places < least else min(max_size, places)


def largest_resources(present: Resources, *, config: Mapping[str, int] | None) -> dict[str, float]:
    """Return the logical resources of the cluster at its largest: those present, or what it may grow to.

    `config` holds the cluster's limits if its service tells them to Ray. Ray's own autoscalers do not, so the head node
    states the limits as resources: grows_to_GPU, grows_to_CPU.
    """
    most = config or {}
    largest = {name: max(present.get(name, 0.0), float(most.get(name, 0))) for name in {*present, *most}}
    for name in ("CPU", "GPU"):
        largest[name] = max(largest.get(name, 0.0), present.get(f"{GROWS_TO}{name}", 0.0))
    return largest


class PendingPlacements:
    """Holds requests to the autoscaler for missing places of workers: placement groups that wait for nodes.

    The requests end with this driver, so that no node is started or kept for a run that is gone. A granted request
    holds its place until it is dropped.
    """

    def __init__(self, per_worker: Resources) -> None:
        self._per_worker = dict(per_worker)
        self._groups: list[PlacementGroup] = []

    def keep(self, count: int) -> int:
        """Keep `count` requests open, and return how many of them are granted."""
        while len(self._groups) > count:
            remove_placement_group(self._groups.pop())
        while len(self._groups) < count:
            self._groups.append(placement_group([self._per_worker]))
        return sum(bool(group.wait(timeout_seconds=0)) for group in self._groups)

    def drop(self) -> None:
        """Drop all requests, and free the places of those that were granted."""
        self.keep(0)


class GroupWatch:
    """Decides when a group of workers (all workers of one start) should end so that the next group runs on other nodes.

    One watch serves a whole command. `pending` requests missing places from an autoscaler, if there is one.
    """

    def __init__(
        self,
        config: TrainerConfig,
        *,
        per_worker: Resources,
        list_nodes: Callable[[], Nodes] = look_at_nodes,
        clock: Callable[[], float] = time.monotonic,
        pending: PendingPlacements | None = None,
    ) -> None:
        self._least, self._most, self._per_worker = config.min_workers, config.workers, per_worker
        self._list_nodes, self._clock, self._pending = list_nodes, clock, pending
        self.groups = 0
        """Number of groups started."""
        self._interval_s: float = config.resize_interval_s
        self._next_look = clock() + self._interval_s
        self._grew_from = 0

    def reason_to_pause(self, worker_nodes: Sequence[str], *, world_size: int) -> str | None:
        """Return why the group should end with a checkpoint, or None.

        `worker_nodes` lists the node of each worker that has started, out of `world_size`. If a restart did not get
        more workers (another job took the room), the time until the next look for room doubles.
        """
        if not worker_nodes or len(worker_nodes) < world_size:
            return None
        reason = self._find_reason(worker_nodes, world_size=world_size)
        if reason is not None:
            self.end_group()
        return reason

    def end_group(self) -> None:
        """Drop the requests for places, because the group ends and the next group needs these places itself."""
        if self._pending is not None:
            self._pending.drop()

    def _find_reason(self, worker_nodes: Sequence[str], *, world_size: int) -> str | None:
        if self._grew_from:
            self._interval_s *= 2 if world_size <= self._grew_from else 1
            self._grew_from, self._next_look = 0, self._clock() + self._interval_s
        nodes = self._list_nodes()
        for node in sorted(set(worker_nodes) & nodes.leaving.keys()):
            left = nodes.leaving[node]
            return f"node {node[:12]} will go away{f' in {left:.0f} s' if left else ''}"
        if self._least is None or world_size >= self._most:
            return None
        max_size = max_group_size(nodes, least=self._least, most=self._most, per_worker=self._per_worker)
        granted = 0 if self._pending is None else self._pending.keep(max(0, max_size - world_size))
        if self._clock() < self._next_look:
            return None
        self._next_look = self._clock() + self._interval_s
        places = granted + count_places(nodes.free, per_worker=self._per_worker, without=nodes.leaving)
        size = min(max_size, world_size + places)
        if size <= world_size:
            return None
        self._grew_from = world_size
        return f"there is room for {count_of(size, 'worker')} instead of {world_size}"


def wait_for_node_list(nodes: Collection[str]) -> None:
    """Wait until each node has answered or Ray knows that the node is gone. Then Ray's list of nodes is up to date."""
    answer = ray.remote(num_cpus=0, max_retries=0)(_answer)
    calls = [
        answer.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote() for node in nodes
    ]
    if calls:
        ray.wait(calls, num_returns=len(calls), timeout=NODE_LIST_TIMEOUT_S)


def _answer() -> None:
    """Do nothing: Ray can run this only on a live node."""
