"""Watches the nodes of a Ray cluster: which are about to go, and whether there is room for more workers.

Ray Train alone ends a group without a checkpoint where the cluster grows, and counts places on nodes that are about to
go. Here the driver looks, and asks the group to end with a checkpoint. Counting is pure; a look costs three calls to
Ray's head.
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
"""Amounts by Ray's names."""

INGEST_CPUS = 1.0
"""Logical CPUs left for Ray Data beside the workers (its tasks ask for none, but must find a place to run)."""
GROWS_TO = "grows_to_"
"""Begins the name of a resource that the head of a cluster with an autoscaler has: the most there may be of another."""
SETTLE_S = 90.0
"""Longest that Ray takes to see that a node is gone (five checks of 10 s) and a little more."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """A look at the cluster."""

    total: Mapping[str, Resources]
    """Node id -> what the node has; nodes that live."""
    free: Mapping[str, Resources]
    """Node id -> what nobody has taken."""
    leaving: Mapping[str, float]
    """Node id -> seconds until it goes (0: not said), for nodes that were given notice."""


def look_at_nodes() -> Nodes:
    """The cluster as its head sees it."""
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


def count_places(nodes: Mapping[str, Resources], *, each: Resources, without: Collection[str] = ()) -> int:
    """How many workers that need `each` the nodes hold, those in `without` left out."""
    return sum(
        min(int((resources.get(name, 0.0) + 1e-6) / amount) for name, amount in each.items())
        for node, resources in nodes.items()
        if node not in without
    )


def greatest_group(nodes: Nodes, *, least: int, most: int, each: Resources) -> int:
    """The number of workers that there may be, from `least` to `most`.

    `most` where no node is about to go: an autoscaler may bring what is missing. A CPU group leaves INGEST_CPUS of all
    nodes to the reading of data.
    """
    limit = most
    if nodes.leaving:
        limit = min(limit, count_places(nodes.total, each=each, without=nodes.leaving))
    if "CPU" in each:
        cpus = sum(resources.get("CPU", 0.0) for node, resources in nodes.total.items() if node not in nodes.leaving)
        limit = min(limit, int((cpus - INGEST_CPUS + 1e-6) / each["CPU"]))
    return max(least, limit)


def next_group(nodes: Nodes, *, least: int, most: int, each: Resources) -> int:
    """The number of workers to ask for now, from `least` to `most`: not more than there are places, if those suffice.

    Ray Train believes in nodes that have just gone, and would wait for them as long as a start may take. What is
    missing is wished for meanwhile (Wishes). Where the places are too few it must wait, and may ask for all.
    """
    greatest = greatest_group(nodes, least=least, most=most, each=each)
    places = count_places(nodes.total, each=each, without=nodes.leaving)
    return greatest if places < least else min(greatest, places)


def largest_resources(present: Resources, *, config: Mapping[str, int] | None) -> dict[str, float]:
    """Logical resources of the cluster at its largest: those that are there, or what it may grow to.

    Ray's own autoscalers keep that to themselves (`config` is of services that do not), so the head says it by
    resources of its own: grows_to_GPU, grows_to_CPU.
    """
    most = config or {}
    largest = {name: max(present.get(name, 0.0), float(most.get(name, 0))) for name in {*present, *most}}
    for name in ("CPU", "GPU"):
        largest[name] = max(largest.get(name, 0.0), present.get(f"{GROWS_TO}{name}", 0.0))
    return largest


class PendingPlacements:
    """Places that a group lacks, made known to an autoscaler: each a placement group that waits for its node.

    They end with this driver, so no node comes, or stays, for a run that is gone. One that is met keeps its place until
    it is dropped.
    """

    def __init__(self, each: Resources) -> None:
        self._each = dict(each)
        self._groups: list[PlacementGroup] = []

    def keep(self, count: int) -> int:
        """Have so many requests; how many of them are met."""
        while len(self._groups) > count:
            remove_placement_group(self._groups.pop())
        while len(self._groups) < count:
            self._groups.append(placement_group([self._each]))
        return sum(bool(group.wait(timeout_seconds=0)) for group in self._groups)

    def drop(self) -> None:
        """Give all of them up: their places are free."""
        self.keep(0)


class GroupWatch:
    """Says when a group of workers is to end, so that the next has other nodes. One for all groups of a command.

    `pending`: where places that are missing are asked for, if anywhere.
    """

    def __init__(
        self,
        config: TrainerConfig,
        *,
        each: Resources,
        look: Callable[[], Nodes] = look_at_nodes,
        clock: Callable[[], float] = time.monotonic,
        pending: PendingPlacements | None = None,
    ) -> None:
        self._least, self._most, self._each = config.min_workers, config.workers, each
        self._look, self._clock, self._pending = look, clock, pending
        self.groups = 0
        """Groups that were started."""
        self._interval_s: float = config.resize_interval_s
        self._next_look = clock() + self._interval_s
        self._grew_from = 0

    def reason_to_pause(self, homes: Sequence[str], *, world_size: int) -> str | None:
        """Why the group is to end with a checkpoint, if it is.

        `homes`: node of every worker that has started, of `world_size`. Room that turned out to be none (another job
        took it) doubles the time until the next look for it.
        """
        if not homes or len(homes) < world_size:
            return None
        reason = self._find_reason(homes, world_size=world_size)
        if reason is not None:
            self.end_group()
        return reason

    def end_group(self) -> None:
        """A group ends, or has ended: the next one needs all places itself."""
        if self._pending is not None:
            self._pending.drop()

    def _find_reason(self, homes: Sequence[str], *, world_size: int) -> str | None:
        if self._grew_from:
            self._interval_s *= 2 if world_size <= self._grew_from else 1
            self._grew_from, self._next_look = 0, self._clock() + self._interval_s
        nodes = self._look()
        for node in sorted(set(homes) & nodes.leaving.keys()):
            left = nodes.leaving[node]
            return f"node {node[:12]} will go away{f' in {left:.0f} s' if left else ''}"
        if self._least is None or world_size >= self._most:
            return None
        greatest = greatest_group(nodes, least=self._least, most=self._most, each=self._each)
        granted = 0 if self._pending is None else self._pending.keep(max(0, greatest - world_size))
        if self._clock() < self._next_look:
            return None
        self._next_look = self._clock() + self._interval_s
        places = granted + count_places(nodes.free, each=self._each, without=nodes.leaving)
        size = min(greatest, world_size + places)
        if size <= world_size:
            return None
        self._grew_from = world_size
        return f"there is room for {count_of(size, 'worker')} instead of {world_size}"


def settle(nodes: Collection[str]) -> None:
    """Wait until each of the nodes has answered, or Ray knows that it is gone: what it is told next is then true."""
    answer = ray.remote(num_cpus=0, max_retries=0)(_answer)
    calls = [
        answer.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote() for node in nodes
    ]
    if calls:
        ray.wait(calls, num_returns=len(calls), timeout=SETTLE_S)


def _answer() -> None:
    """The node lives."""
