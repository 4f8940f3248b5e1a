"""What Ray can hold is checked before anything starts, and a Ray that is silent or lost is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray.exceptions import ActorUnavailableError

from pipeline.settings import ConfigError
from small_runs import make_config
from trainer.launch import ray_train
from trainer.launch.elastic import largest_resources
from trainer.launch.failures import ClusterError


def test_workers_that_the_logical_cpus_cannot_hold_are_refused(data: Path, tmp_path: Path) -> None:
    """ray#41603: no CPU is left for ingest, and the run hangs."""
    config = make_config(data, tmp_path, device="auto", launcher="ray")
    settled = ray_train.check_resources(config, {"CPU": 2.0}, cluster=True)
    assert settled.device == "cpu"  # 2 workers at half a CPU, and ingest, fit two cores
    with pytest.raises(
        ConfigError, match=r"workers=4 at cpus_per_worker=0\.5 .* need 3 logical CPUs, the Ray cluster has 2"
    ):
        ray_train.check_resources(config.model_copy(update={"workers": 4}), {"CPU": 2.0}, cluster=True)
    least = config.model_copy(update={"workers": 8, "min_workers": 2})
    assert ray_train.check_resources(least, {"CPU": 2.0}, cluster=True) == least.model_copy(update={"device": "cpu"})
    with pytest.raises(ConfigError, match=r"min_workers=2 need 2 GPUs, the Ray cluster has 1; lower min_workers"):
        ray_train.check_resources(least, {"CPU": 2.0, "GPU": 1.0}, cluster=True)
    assert ray_train.check_resources(config, {"CPU": 2.0, "GPU": 2.0}, cluster=True).device == "cuda"
    with pytest.raises(ConfigError, match="workers=2 need 2 GPUs, Ray on this machine has 1; lower workers"):
        ray_train.check_resources(config, {"CPU": 8.0, "GPU": 1.0}, cluster=False)


def test_what_a_cluster_may_grow_to_counts(data: Path, tmp_path: Path) -> None:
    """Ray's autoscalers do not say it: from zero GPU nodes no training could begin."""
    config = make_config(data, tmp_path, device="auto", launcher="ray", workers=16, batch={"pairs": 64, "lanes": 16})
    head = {"memory": 1e9, "grows_to_CPU": 64.0, "grows_to_GPU": 16.0}
    largest = largest_resources(head, config=None)
    assert (largest["CPU"], largest["GPU"]) == (64.0, 16.0)
    assert ray_train.check_resources(config, largest, cluster=True).device == "cuda"
    assert largest_resources({"CPU": 2.0}, config={"CPU": 8, "GPU": 4}) == {"CPU": 8.0, "GPU": 4.0}
    assert largest_resources({"CPU": 2.0}, config=None) == {"CPU": 2.0, "GPU": 0.0}


def test_what_ray_waits_for_is_said(data: Path, tmp_path: Path) -> None:
    config = make_config(data, tmp_path)
    assert ray_train.describe_waiting(config, {"CPU": 0.5}) == (
        "waiting for Ray to start 2 workers of 0.5 CPU each: 0.5 CPU free now"
    )
    ranged = config.model_copy(update={"workers": 8, "min_workers": 2, "device": "cuda"})
    assert ray_train.describe_waiting(ranged, {}) == (
        "waiting for Ray to start 2 to 8 workers of 1 GPU each: 0 GPU free now"
    )


def test_a_ray_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, object]] = []

    def refuse(**arguments: object) -> None:
        calls.append(arguments)
        raise ConnectionError("nobody there")

    monkeypatch.setattr(ray_train.ray, "init", refuse)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(ClusterError, match=r"Ray \(10\.0\.0\.1:6379\) does not answer: nobody there"):
        ray_train.connect(attempts=2, num_cpus=3)
    assert [call["num_cpus"] for call in calls] == [3, 3]


def test_a_ray_that_is_lost_on_the_way_is_named() -> None:
    lost = r"the connection to Ray was lost: .*; the same command continues from the last checkpoint"
    with pytest.raises(ClusterError, match=lost), ray_train.raise_cluster_error_if_lost():
        raise ActorUnavailableError("the node\nis gone", None)
    with pytest.raises(ConfigError), ray_train.raise_cluster_error_if_lost():
        raise ConfigError("not Ray's")


def test_the_object_store_holds_every_workers_read_ahead(data: Path, tmp_path: Path) -> None:
    config = make_config(data, tmp_path, launcher="ray", ingest={"object_store_mb": 100})
    assert ray_train.object_store_bytes(config) >= 2 * 100 * 2**20
