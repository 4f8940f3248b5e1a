"""Which nodes are about to go, how many workers there is room for, and when a group ends for it; without Ray."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray.train
from ray.exceptions import ActorDiedError

from small_runs import make_config
from trainer.launch import ray_train
from trainer.launch.elastic import GroupWatch, Nodes, count_places, max_group_size, next_group_size
from trainer.launch.failures import WorkerError

GPU = {"GPU": 1.0}


def nodes(*, free: dict[str, float] | None = None, leaving: dict[str, float] | None = None, **total: float) -> Nodes:
    """A cluster of GPU nodes."""
    return Nodes(
        total={name: {"GPU": count} for name, count in total.items()},
        free={name: {"GPU": count} for name, count in (free or {}).items()},
        leaving=leaving or {},
    )


def test_places_are_counted_node_by_node() -> None:
    cpus = {"a": {"CPU": 2.9}, "b": {"CPU": 0.3, "GPU": 8.0}, "c": {"memory": 5.0}}
    assert count_places(cpus, per_worker={"CPU": 0.3}) == 10
    assert count_places(cpus, per_worker={"CPU": 1.5}) == 1
    assert count_places(cpus, per_worker={"CPU": 0.1, "GPU": 1.0}) == 3
    assert count_places(cpus, per_worker={"CPU": 0.3}, without=["a"]) == 1


def test_no_more_workers_are_asked_for_than_stay() -> None:
    assert max_group_size(nodes(a=1), least=1, most=8, per_worker=GPU) == 8  # an autoscaler may bring the others
    assert max_group_size(nodes(a=4, b=4, leaving={"b": 30.0}), least=1, most=8, per_worker=GPU) == 4
    assert max_group_size(nodes(a=4, leaving={"a": 0.0}), least=2, most=8, per_worker=GPU) == 2
    cpus = Nodes(total={"a": {"CPU": 2.0}, "b": {"CPU": 2.0}}, free={}, leaving={})
    assert max_group_size(cpus, least=1, most=8, per_worker={"CPU": 0.5}) == 6  # one CPU is left to the reading of data


def test_a_group_asks_for_the_places_that_there_are() -> None:
    """Ray Train waits for a node that has just gone, as long as a start may take."""
    assert next_group_size(nodes(a=1), least=1, most=8, per_worker=GPU) == 1
    assert next_group_size(nodes(a=1, b=2, leaving={"b": 3.0}), least=1, most=8, per_worker=GPU) == 1
    assert next_group_size(nodes(a=8, b=8), least=1, most=8, per_worker=GPU) == 8
    assert next_group_size(nodes(a=1), least=2, most=8, per_worker=GPU) == 8  # it waits for an autoscaler
    assert next_group_size(nodes(), least=1, most=8, per_worker=GPU) == 8


class Granted:
    """Wishes that come true after so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks, self.kept, self.dropped = looks, 0, 0

    def keep(self, count: int) -> int:
        self.looks, self.kept = self.looks - 1, count
        return count if self.looks < 0 else 0

    def drop(self) -> None:
        self.dropped += 1


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make_watch(tmp_path: Path, seen: list[Nodes], clock: Clock, **settings: Any) -> GroupWatch:
    elastic = {"min_workers": 1, "resize_interval_s": 10} if "min_workers" not in settings else {}
    config = make_config(tmp_path, tmp_path, launcher="ray", workers=4, **{**elastic, **settings})
    return GroupWatch(config, per_worker=GPU, list_nodes=lambda: seen[-1], clock=clock)


def test_notice_of_a_node_with_a_worker_ends_the_group(tmp_path: Path) -> None:
    """ray#63968: the notice of pre-emption is used."""
    seen = [nodes(a=1, b=1, c=1, leaving={"c": 30.0})]
    for settings in ({}, {"min_workers": None}):
        watch = make_watch(tmp_path, seen, Clock(), **settings)
        assert watch.reason_to_pause(["a", "b"], world_size=2) is None
        assert watch.reason_to_pause(["a"], world_size=2) is None  # the other worker has yet to say where it is
        assert watch.reason_to_pause(["a", "c"], world_size=2) == "node c will go away in 30 s"
    seen.append(nodes(a=1, leaving={"a": 0.0}))
    assert watch.reason_to_pause(["a"], world_size=1) == "node a will go away"


def test_room_for_more_workers_ends_the_group_at_the_interval(tmp_path: Path) -> None:
    clock, seen = Clock(), [nodes(a=1, b=2, free={"a": 0.0, "b": 2.0})]
    watch = make_watch(tmp_path, seen, clock)
    assert watch.reason_to_pause(["a"], world_size=1) is None
    clock.now = 10.0
    assert watch.reason_to_pause(["a"], world_size=1) == "there is room for 3 workers instead of 1"
    fixed = make_watch(tmp_path, seen, Clock(), min_workers=None)
    clock.now = 1000.0
    assert fixed.reason_to_pause(["a"], world_size=1) is None
    seen.append(nodes(a=1, b=9, free={"b": 9.0}))
    full = make_watch(tmp_path, seen, clock, resize_interval_s=1)
    clock.now = 2000.0
    assert full.reason_to_pause(["a"] * 4, world_size=4) is None
    assert full.reason_to_pause(["a"] * 3, world_size=3) == "there is room for 4 workers instead of 3"


def test_room_on_a_node_that_goes_is_none(tmp_path: Path) -> None:
    clock = Clock()
    watch = make_watch(tmp_path, [nodes(a=1, b=2, free={"b": 2.0}, leaving={"b": 60.0})], clock)
    clock.now = 10.0
    assert watch.reason_to_pause(["a"], world_size=1) is None


def test_growing_in_vain_is_tried_ever_less_often(tmp_path: Path) -> None:
    clock = Clock()
    watch = make_watch(tmp_path, [nodes(a=1, b=1, free={"b": 1.0})], clock)
    ends = []
    for second in range(200):
        clock.now = float(second)
        if watch.reason_to_pause(["a"], world_size=1) is not None:
            ends.append(second)
    assert ends == [10, 31, 72, 153]


def test_a_lost_worker_is_named(tmp_path: Path) -> None:
    """ray#22349: the worker whose node was lost is named, whatever the others complain of."""
    died = SimpleNamespace(health_check_failure=ActorDiedError())
    failures = {0: RuntimeError("Connection closed by peer"), 1: died, 2: ActorDiedError()}
    with pytest.raises(WorkerError, match=r"^workers 1, 2 were lost: .*; the same command continues"):
        ray_train.raise_lost(ray.train.WorkerGroupError("text", failures))  # type: ignore[arg-type]
    with pytest.raises(WorkerError, match=r"^worker 2 was lost: "):
        ray_train.raise_lost(ray.train.WorkerGroupError("text", {2: ActorDiedError()}))
    ray_train.raise_lost(ray.train.WorkerGroupError("text", {0: RuntimeError("a fault of its own")}))
    ray_train.raise_lost(RuntimeError("another"))


def test_places_that_are_missing_are_asked_for_and_given_up_for_the_next_group(tmp_path: Path) -> None:
    """An autoscaler brings nodes for what waits alone; a place that came is kept from going idle until then."""
    clock, pending = Clock(), Granted(looks=1)
    config = make_config(tmp_path, tmp_path, launcher="ray", workers=4, min_workers=1, resize_interval_s=10)
    seen = nodes(a=1, free={"a": 0.0})
    watch = GroupWatch(config, per_worker=GPU, list_nodes=lambda: seen, clock=clock, pending=cast(Any, pending))
    assert watch.reason_to_pause([], world_size=0) is None
    assert pending.kept == 0  # the group that starts asks for itself
    assert watch.reason_to_pause(["a"], world_size=1) is None
    assert (pending.kept, pending.dropped) == (3, 0)
    clock.now = 11.0
    assert watch.reason_to_pause(["a"], world_size=1) == "there is room for 4 workers instead of 1"
    assert pending.dropped == 1
    full = GroupWatch(config, per_worker=GPU, list_nodes=lambda: seen, clock=clock, pending=cast(Any, pending))
    pending.kept = 0
    assert full.reason_to_pause(["a"] * 4, world_size=4) is None
    assert pending.kept == 0
