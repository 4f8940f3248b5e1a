"""What Ray's autoscaler (v2) starts for our jobs, decided by its own scheduler from our files for Kubernetes, AWS and
Google Cloud. KubeRay and `ray up` both run it (ray 2.60, autoscaler/_private/commands.py)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler._private.util import prepare_config
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import GangResourceRequest

from cluster import PREPROCESSING
from cluster.render import read_values, render
from kuberay_trees import TREES, Tree, cluster_of


def configs() -> dict[str, Tree]:
    """The autoscaler's configuration by each file whose cluster grows."""
    made = {}
    for name, tree in TREES.items():
        resource = {"metadata": {"name": "cloze", "namespace": "lab"}, "spec": copy.deepcopy(cluster_of(tree))}
        if resource["spec"].get("enableInTreeAutoscaling"):
            made[name] = _derive_autoscaling_config_from_ray_cr(resource)
    for kind in ("aws", "gcp"):
        made |= {name: yaml.safe_load(text) for name, text in render(kind, read_values(kind)).items()}
    return made


CONFIGS = configs()


def started(config: Tree, need: Mapping[str, float], *, count: int, together: bool = False) -> dict[str, int]:
    """How many nodes of each type the scheduler starts for `count` times `need`; `together`: as a placement group."""
    parsed: Any = AutoscalingConfig(prepare_config(copy.deepcopy(config)), skip_content_hash=True)
    requests = [ResourceRequestUtil.make(dict(need)) for _ in range(count)]
    work = (
        {"gang_resource_requests": [GangResourceRequest(requests=requests)]}
        if together
        else {"resource_requests": ResourceRequestUtil.group_by_count(requests)}
    )
    reply = ResourceDemandScheduler(event_logger=None).schedule(
        SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs=parsed.get_node_type_configs(),
            max_num_nodes=parsed.get_max_num_nodes(),
            idle_timeout_s=parsed.get_idle_timeout_s(),
            **work,
        )
    )
    assert not reply.infeasible_resource_requests
    assert not reply.infeasible_gang_resource_requests
    return {launch.instance_type: launch.count for launch in reply.to_launch if "head" not in launch.instance_type}


@pytest.mark.parametrize("name", CONFIGS)
def test_preprocessing_starts_cpu_nodes_alone_and_training_gpu_nodes_alone(name: str) -> None:
    config = CONFIGS[name]
    types = config["available_node_types"]
    if "cpu" in types:
        cpus = types["cpu"]["resources"]["CPU"]
        need = {"CPU": 1.0, PREPROCESSING: 1.0}
        assert started(config, need, count=1) == {"cpu": 1}
        assert started(config, need, count=cpus + 1) == {"cpu": 2}
        assert "gpu" not in started(config, {"CPU": 1.0}, count=1), "nor does work of another kind"
    if "gpu" in types:
        gpus, most = types["gpu"]["resources"]["GPU"], types["gpu"]["max_workers"]
        for together in (False, True):
            assert started(config, {"GPU": 1.0}, count=gpus, together=together) == {"gpu": 1}
            assert started(config, {"GPU": 1.0}, count=gpus * most, together=together) == {"gpu": most}
    assert len(CONFIGS) >= 8


def test_the_scheduler_would_take_gpu_nodes_that_have_the_resource() -> None:
    config = copy.deepcopy(CONFIGS["raycluster"])
    types = config["available_node_types"]
    types["gpu"]["resources"][PREPROCESSING] = types["cpu"]["resources"].pop(PREPROCESSING)
    assert started(config, {"CPU": 1.0, PREPROCESSING: 1.0}, count=1) == {"gpu": 1}
