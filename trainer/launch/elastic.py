"""Watch a Ray cluster, to learn which nodes will go away and whether there is room for more workers.

When the cluster grows, Ray Train by itself would end the workers without a checkpoint. It would also count nodes that
will soon go away as room for workers. So the driver (the process of the command) inspects the nodes itself. If a node
will go away or there is room, the driver asks the workers to write a checkpoint and end. Each inspection makes three
calls to Ray's head node.
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
"""Maps the name of a Ray resource, such as CPU or GPU, to an amount."""

INGEST_CPUS = 1.0
"""Logical CPUs that the workers leave to Ray Data. Ray Data's tasks request no CPU, but need one to run on."""
GROWS_TO = "grows_to_"
"""Prefix of resources of the head node that state limits: the amount of grows_to_GPU, for example, is the number of
GPUs to which the cluster may grow."""
NODE_LIST_TIMEOUT_S = 90.0
"""Longest time, in seconds, until Ray notices that a node is gone: five checks of 10 s, and a margin."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of the cluster at one moment."""

    total: Mapping[str, Resources]
    """Maps the id of each live node to all resources of the node."""
    free: Mapping[str, Resources]
    """Maps the id of each node to the node's unused resources."""
    leaving: Mapping[str, float]
    """Maps the id of each node that will go away, as far as Ray knows, to the seconds until then (0 if the time is
    unknown)."""


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
    """Return how many workers fit on the nodes if each worker needs the resources `per_worker`.

    `nodes` maps the id of each node to its resources. Nodes whose ids are in `without` are left out.
    """
    return sum(
        min(int((resources.get(name, 0.0) + 1e-6) / amount) for name, amount in per_worker.items())
        for node, resources in nodes.items()
        if node not in without
    )


def max_group_size(nodes: Nodes, *, least: int, most: int, per_worker: Resources) -> int:
    """Return the largest number of workers that may run at once, between `least` and `most`.

    Each worker needs the resources `per_worker`. If some nodes will go away, the workers must fit on the nodes that
    stay. Otherwise the present nodes set no limit for workers on GPUs, because an autoscaler may add nodes. Workers on
    CPUs must always fit the CPUs of the nodes that stay, and leave some of these CPUs (INGEST_CPUS) for reading data.
    """
    limit = most
    if nodes.leaving:
        limit = min(limit, count_places(nodes.total, per_worker=per_worker, without=nodes.leaving))
    if "CPU" in per_worker:
        cpus = sum(resources.get("CPU", 0.0) for node, resources in nodes.total.items() if node not in nodes.leaving)
        limit = min(limit, int((cpus - INGEST_CPUS + 1e-6) / per_worker["CPU"]))
    return max(least, limit)


def next_group_size(nodes: Nodes, *, least: int, most: int, per_worker: Resources) -> int:
    """Return the number of workers to request from Ray now, between `least` and `most`.

    Each worker needs the resources `per_worker`. If the present nodes have room for the smallest number (`least`) or
    more, return how many workers fit. A larger request could hang, because Ray Train still counts nodes that have just
    gone. If too few workers fit, Ray has to wait for nodes anyway. Then return the largest number that the cluster
    could reach (see max_group_size).
    """
    max_size = max_group_size(nodes, least=least, most=most, per_worker=per_worker)
    places = count_places(nodes.total, per_worker=per_worker, without=nodes.leaving)
    return max_size if places < least else min(max_size, places)


def largest_resources(present: Resources, *, config: Mapping[str, int] | None) -> dict[str, float]:
    """Return the amount of each logical resource, by name, after the cluster has grown to its limits.

    The amount is the present amount or the limit, whichever is larger. `present` holds the present amounts. Some
    services that run clusters tell Ray the limits; then `config` holds the limits, and otherwise it is None. Ray's own
    autoscalers do not tell the limits. In their clusters, `present` has two more resources, grows_to_GPU and
    grows_to_CPU, whose amounts are the limits.
    """
    most = config or {}
    largest = {name: max(present.get(name, 0.0), float(most.get(name, 0))) for name in {*present, *most}}
    for name in ("CPU", "GPU"):
        largest[name] = max(largest.get(name, 0.0), present.get(f"{GROWS_TO}{name}", 0.0))
    return largest


class PendingPlacements:
    """Holds requests to a cluster's autoscaler, each for the resources of one more worker.

    A request is a Ray placement group that waits for a node. Ray drops all requests when this driver (the process of
    the command) ends, so that no node is started or kept for a run that is gone. A granted request reserves its
    resources until it is dropped.
    """

    def __init__(self, per_worker: Resources) -> None:
        self._per_worker = dict(per_worker)
        self._groups: list[PlacementGroup] = []

    def keep(self, count: int) -> int:
        """Make new requests to the autoscaler, or drop old requests, until the number of requests is `count`.

        Return how many of these requests are granted.
        """
        while len(self._groups) > count:
            remove_placement_group(self._groups.pop())
        while len(self._groups) < count:
            self._groups.append(placement_group([self._per_worker]))
        return sum(bool(group.wait(timeout_seconds=0)) for group in self._groups)

    def drop(self) -> None:
        """Drop all requests to the autoscaler, and free the resources that granted requests reserved."""
        self.keep(0)


class GroupWatch:
    """Decides when a group of workers (all workers of one start) should end so that the next group runs on other nodes.

    One GroupWatch serves all groups of a command. Each worker needs the resources `per_worker`. `list_nodes` returns
    the present nodes, `clock` returns seconds, and `pending` asks an autoscaler for more places for workers (None: no
    autoscaler is asked).
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
        """Return why the group of workers should write a checkpoint and end now, or None if it should continue.

        `worker_nodes` lists the node of each worker that has started, and `world_size` is the size of the group. Until
        all workers of the group have started, return None. If the last restart did not get more workers (another job
        took the room), the time until the next search for room doubles.
        """
        if not worker_nodes or len(worker_nodes) < world_size:
            return None
        reason = self._find_reason(worker_nodes, world_size=world_size)
        if reason is not None:
            self.end_group()
        return reason

    def end_group(self) -> None:
        """Drop the requests for places on nodes, because the next group of workers needs these places itself."""
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
    """Wait until Ray's list of nodes is up to date.

    The list is up to date when each node in `nodes` has answered or Ray knows that the node is gone. Stop waiting after
    NODE_LIST_TIMEOUT_S seconds.
    """
    answer = ray.remote(num_cpus=0, max_retries=0)(_answer)
    calls = [
        answer.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote() for node in nodes
    ]
    if calls:
        ray.wait(calls, num_returns=len(calls), timeout=NODE_LIST_TIMEOUT_S)


def _answer() -> None:
    """Do nothing. wait_for_node_list runs this function on a node to see that the node is alive."""
