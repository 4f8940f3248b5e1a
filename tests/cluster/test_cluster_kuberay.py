"""Files for KubeRay: pods by Kubernetes' schema, groups as Ray's autoscaler reads them, the operator's rules that no
schema states, and what keeps costs and doors closed."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

from cluster import PREPROCESSING
from cluster.render import SHORTEST_BOOT_S, read_values, render
from trainer.launch.elastic import GROWS_TO

Tree = dict[str, Any]
KUBERNETES = "1.33"
"""The oldest version that is supported."""
OPTIONS: Tree = {
    "efa_interfaces": 32,
    "service_account": "cloze",
    "cpu_node_selector": {"pool": "cpu"},
    "gpu_node_selector": {},
    "retries": 0,
}
REQUEST_TIMEOUT = "RAY_AUTOSCALER_RECONCILE_REQUEST_STATUS_TIMEOUT_S"


def render_trees() -> dict[str, Tree]:
    """Every file, as shipped and with all options."""
    values = read_values("kubernetes")
    return {
        f"{Path(name).stem}{label}": yaml.safe_load(text)
        for label, update in (("", {}), ("-options", OPTIONS))
        for name, text in render("kubernetes", values.model_copy(update=update)).items()
    }


TREES = render_trees()
every_file = pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
every_job = pytest.mark.parametrize("tree", [t for t in TREES.values() if t["kind"] == "RayJob"])


def cluster_of(tree: Tree) -> Tree:
    spec: Tree = tree["spec"]["rayClusterSpec"] if tree["kind"] == "RayJob" else tree["spec"]
    return spec


def groups_of(tree: Tree) -> list[Tree]:
    spec = cluster_of(tree)
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def pods_of(tree: Tree) -> Iterator[Tree]:
    for group in groups_of(tree):
        yield group["template"]["spec"]
    if tree["kind"] == "RayJob":
        yield tree["spec"]["submitterPodTemplate"]["spec"]


@every_file
def test_the_custom_resource_is_as_its_strict_schema_says(tree: Tree, repository: Path) -> None:
    schemas = repository.parent / "shared" / "schemas"
    if not schemas.is_dir():
        pytest.skip(f"strict schemas of KubeRay's resources are absent: {schemas}")
    text = (schemas / f"kuberay-{tree['kind'].lower()}-v1.json").read_text(encoding="utf-8")
    schema = jsonschema.Draft202012Validator(json.loads(text))
    schema.validate(tree)
    with pytest.raises(jsonschema.ValidationError):
        schema.validate({**tree, "spec": {**tree["spec"], "shutDownAfterJobFinishes": True}})


@every_file
def test_pods_are_as_kubernetes_says_and_cannot_gain_rights(tree: Tree) -> None:
    for pod in pods_of(tree):
        check_pod(pod)
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        for container in pod["containers"]:
            assert container["securityContext"]["runAsNonRoot"] is True
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes


def check_pod(spec: Tree) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
    kubernetes_validate.validate(copy.deepcopy(pod), KUBERNETES, strict=True)


@every_file
def test_the_operator_takes_it_and_ray_wants_a_token(tree: Tree) -> None:
    spec, head = cluster_of(tree), cluster_of(tree)["headGroupSpec"]
    assert spec["rayVersion"] == metadata.version("ray")
    assert spec["authOptions"] == {"mode": "token"}
    assert head["serviceType"] == "ClusterIP", "the dashboard stays inside the cluster"
    assert head["rayStartParams"]["num-cpus"] == "0", "the head does no work"
    names = [group["groupName"] for group in spec["workerGroupSpecs"]]
    assert len(set(names)) == len(names)
    for group in groups_of(tree):
        assert "suspend" not in group, "it does not go with the autoscaler"
        assert group["template"]["spec"].get("restartPolicy", "Never") == "Never", "autoscaler v2 needs it"
        parameters = group["rayStartParams"]
        assert all(isinstance(value, str) for value in parameters.values())
        assert not {"num-gpus", "memory", "labels", "redis-password"} & set(parameters)
        assert not ("resources" in group and {"num-cpus", "resources"} & set(parameters)), "both say what a node has"
    variables = {each["name"] for each in head["template"]["spec"]["containers"][0]["env"]}
    assert not {"RAY_enable_autoscaler_v2", "RAY_REDIS_ADDRESS"} & variables, "the operator sets these itself"


def test_names_fit_whatever_the_cluster_is_called() -> None:
    values = read_values("kubernetes").model_copy(update={"name": "a" * 30})
    for text in render("kubernetes", values).values():
        assert re.fullmatch(r"[a-z][-a-z0-9]{,45}[a-z0-9]", yaml.safe_load(text)["metadata"]["name"])


@every_file
def test_groups_shrink_to_nothing_and_have_time_to_boot_unless_a_queue_admits_all_at_once(tree: Tree) -> None:
    spec = cluster_of(tree)
    labels = tree["metadata"].get("labels", {})
    for group in spec["workerGroupSpecs"]:
        least = group["maxReplicas"] if labels else 0
        assert group["replicas"] == group["minReplicas"] == least <= group["maxReplicas"]
    if labels:
        assert set(labels) in ({"kueue.x-k8s.io/queue-name"}, {"ray.io/scheduler-name", "volcano.sh/queue-name"})
        assert not {"enableInTreeAutoscaling", "autoscalerOptions"} & set(spec)
        return
    assert spec["enableInTreeAutoscaling"] is True
    options = spec["autoscalerOptions"]
    assert options["version"] == "v2"
    assert 60 <= options["idleTimeoutSeconds"] <= 3600
    variables = {each["name"]: each["value"] for each in options["env"]}
    assert int(variables[REQUEST_TIMEOUT]) >= SHORTEST_BOOT_S


@every_file
def test_the_autoscaler_sees_what_the_pods_have(tree: Tree) -> None:
    """kuberay (reproduced): with a side car before the Ray container the GPU group counts as one CPU."""
    spec = cluster_of(tree)
    resource = {"metadata": tree["metadata"], "spec": copy.deepcopy(spec)}
    types = _derive_autoscaling_config_from_ray_cr(resource)["available_node_types"]
    head = next(iter(types.values()))["resources"]
    for unit in ("CPU", "GPU"):
        may_be = sum(each["max_workers"] * each["resources"].get(unit, 0) for each in types.values())
        assert head.get(f"{GROWS_TO}{unit}", 0) == may_be
    for group in spec["workerGroupSpecs"]:
        seen, pod = types[group["groupName"]]["resources"], group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["name"] == "ray"
        limits = container["resources"]["limits"]
        memory_gib, gpus = gibibytes(limits["memory"]), int(limits.get("nvidia.com/gpu", 0))
        assert seen.get("GPU", 0) == gpus
        assert str(seen["CPU"]) == limits["cpu"]
        assert 1 <= seen["memory"] / 2**30 <= memory_gib
        assert seen.get(PREPROCESSING) == (None if gpus else seen["CPU"]), "preprocessing never wakes a GPU node"
        assert bool(pod.get("tolerations")) == bool(gpus), "only GPU nodes are tainted"
        (shm,) = [volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shm"]
        assert shm["medium"] == "Memory", "/dev/shm would be 64 MB"
        assert 2 * gibibytes(shm["sizeLimit"]) <= memory_gib


def gibibytes(quantity: str) -> int:
    return int(quantity.removesuffix("Gi"))


@every_job
def test_a_job_ends_its_cluster_and_starts_again_if_it_fails(tree: Tree) -> None:
    spec = tree["spec"]
    assert spec["submissionMode"] == "K8sJobMode"
    assert spec["shutdownAfterJobFinishes"] is True
    assert 0 <= spec["ttlSecondsAfterFinished"] <= 3600, "idle nodes cost"
    assert spec["backoffLimit"] >= 0
    assert spec["entrypoint"]
    assert "suspend" not in spec
    assert spec["submitterPodTemplate"]["spec"]["restartPolicy"] in ("Never", "OnFailure"), "as in every Kubernetes job"


def test_the_rules_find_planted_mistakes() -> None:
    """Foreign validators judge the pods; this shows that they do."""
    pod = next(pods_of(TREES["rayjob-train"]))
    for broken in ({"volumess": []}, {"containers": [{"image": "a"}]}, {"terminationGracePeriodSeconds": "1"}):
        with pytest.raises(kubernetes_validate.ValidationError):
            check_pod(pod | broken)
    side_car = {"name": "log", "image": "log:1"}
    tree = copy.deepcopy(TREES["rayjob-train"])
    tree["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"].insert(0, side_car)
    with pytest.raises((AssertionError, ValueError)):
        test_the_autoscaler_sees_what_the_pods_have(tree)
