"""Files for KubeRay: pods by Kubernetes' schema, groups as Ray's autoscaler reads them, the operator's rules that no
schema states, and what keeps costs and doors closed."""

from __future__ import annotations

import copy
import json
import re
import shlex
from importlib import metadata
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from ray._private import ray_constants
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

from cluster import CLUSTER, PREPROCESSING
from cluster.render import SHORTEST_BOOT_S, VALUES, read_values, render, validate_values
from kuberay_trees import ALL, JOBS, KUBERNETES, TREES, Tree, cluster_of, groups_of, pods_of
from pipeline.settings import ConfigError, load_tree
from trainer.launch.elastic import GROWS_TO

REQUEST_TIMEOUT = "RAY_AUTOSCALER_RECONCILE_REQUEST_STATUS_TIMEOUT_S"
DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
every_file = pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
every_job = pytest.mark.parametrize("tree", JOBS.values(), ids=JOBS)


@every_file
def test_the_custom_resource_is_as_its_strict_schemas_say(tree: Tree, repository: Path) -> None:
    """The definitions of 1.6.0, 1.6.2 and 1.7.0 (ray-operator/config/crd/bases) take every file. That of 1.5.1 knows no
    preRunningDeadlineSeconds."""
    folder = repository.parent / "shared" / "schemas"
    files = sorted(folder.glob(f"kuberay-*{tree['kind'].lower()}-v1.json"))
    if not files:
        pytest.skip(f"strict schemas of KubeRay's resources are absent: {folder}")
    for file in files:
        schema = jsonschema.Draft202012Validator(json.loads(file.read_text(encoding="utf-8")))
        schema.validate(tree)
        with pytest.raises(jsonschema.ValidationError):
            schema.validate({**tree, "spec": {**tree["spec"], "shutDownAfterJobFinishes": True}})


@every_file
def test_pods_are_as_kubernetes_says(tree: Tree) -> None:
    for pod in pods_of(tree):
        check_pod(pod)
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes


def check_pod(spec: Tree) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
    kubernetes_validate.validate(copy.deepcopy(pod), KUBERNETES, strict=True)


@every_file
def test_the_operator_takes_it_and_ray_wants_a_token(tree: Tree) -> None:
    """The rules of utils/validation.go in 1.6.2; what 1.7.0 adds there concerns fields that our files do not have."""
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
        assert group["template"]["spec"]["containers"]
        assert "labels" not in group
        assert "serviceType" in group or {"minReplicas", "maxReplicas"} <= set(group)
        assert all(isinstance(value, str) for value in parameters.values())
        assert not {"num-gpus", "memory", "labels", "redis-password"} & set(parameters)
        assert not ("resources" in group and {"num-cpus", "resources"} & set(parameters)), "both say what a node has"
    variables = {each["name"] for each in head["template"]["spec"]["containers"][0]["env"]}
    assert not {"RAY_enable_autoscaler_v2", "RAY_REDIS_ADDRESS"} & variables, "the operator sets these itself"
    scaling = {each["name"] for each in spec.get("autoscalerOptions", {}).get("env", [])}
    assert "KUBERAY_GEN_AUTOSCALER_START_CMD" not in scaling
    assert "enableK8sTokenAuth" not in spec["authOptions"], "not for RayJobs"
    assert tuple(int(part) for part in spec["rayVersion"].split(".")[:2]) >= (2, 52), "it has tokens"


def test_names_fit_whatever_the_cluster_is_called_and_each_job_gets_its_own() -> None:
    """Kubernetes adds 5 characters to generateName. KubeRay refuses a RayJob of more than 47 and a RayCluster of more
    than 53 (1.6 and 1.7, utils/constant.go)."""
    values = read_values("kubernetes").model_copy(update={"name": "a" * 30})
    for text in render("kubernetes", values).values():
        tree = yaml.safe_load(text)
        named = tree["metadata"]
        assert ("generateName" in named) == (tree["kind"] == "RayJob"), "a second run is a second job"
        name = f"{named['generateName']}x7b2q" if "generateName" in named else named["name"]
        assert re.fullmatch(r"[a-z][-a-z0-9]{,45}[a-z0-9]", name)


@every_file
def test_groups_shrink_to_nothing_and_have_time_to_boot_unless_a_queue_admits_all_at_once(tree: Tree) -> None:
    spec = cluster_of(tree)
    labels = tree["metadata"].get("labels", {})
    elastic = tree["metadata"].get("annotations", {}) == {"kueue.x-k8s.io/elastic-job": "true"}
    for group in spec["workerGroupSpecs"]:
        least = group["maxReplicas"] if labels and not elastic else 0
        assert group["replicas"] == group["minReplicas"] == least <= group["maxReplicas"]
    if labels:
        queues = ({"kueue.x-k8s.io/queue-name"}, {"volcano.sh/queue-name"})
        assert set(labels) - {"ray.io/priority-class-name"} in queues
    if labels and not elastic:
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
    resource = {"metadata": {"name": "cloze", **tree["metadata"]}, "spec": copy.deepcopy(spec)}
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
    assert "suspend" not in spec
    assert spec["submitterPodTemplate"]["spec"]["restartPolicy"] in ("Never", "OnFailure"), "as in every Kubernetes job"
    assert spec["activeDeadlineSeconds"] == 168 * 3600
    waits_in_pods = "volcano.sh/queue-name" in tree["metadata"].get("labels", {})
    waits = None if waits_in_pods else 3000
    assert spec.get("preRunningDeadlineSeconds") == waits, "a node may boot twice; who waits in a queue may wait"


@every_job
def test_a_refused_command_is_stopped_after_the_previous_pods_are_gone(tree: Tree) -> None:
    words = shlex.split(tree["spec"]["entrypoint"])
    assert words[:3] == ["python", "-m", "cluster.job"]
    grace_s = cluster_of(tree)["headGroupSpec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    (again,) = [int(word.partition("=")[2]) for word in words if word.startswith("--again-after=")]
    assert again > grace_s
    assert ("--logs=/shared/logs" in words) == (grace_s == 120)
    script = words.index("python", 1)
    assert words[script + 1] in ("trainer/run.py", "pipeline/run.py")
    assert "'" not in tree["spec"]["entrypoint"]


@every_file
def test_every_pod_lets_its_jobs_write_a_checkpoint_before_it_ends(tree: Tree) -> None:
    """KubeRay stops no job before it deletes a cluster, as when Kueue preempts or a user suspends a job (1.7.0,
    rayjob_controller.go: "users need to set the Pod's preStop hook by themselves")."""
    for group in groups_of(tree):
        pod = group["template"]["spec"]
        hook = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        module = "cluster.head" if "serviceType" in group else "cluster.notice"
        found = re.fullmatch(rf"cd /opt/cloze && exec python -m {module} --seconds=(\d+)", hook[-1])
        assert hook[:-1] == ["sh", "-c"]
        assert found is not None
        assert pod["terminationGracePeriodSeconds"] - int(found[1]) >= 30, "Ray shuts down after it"
        assert int(found[1]) >= 90
        variables = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
        assert float(variables[DRAIN]) == 0, "GPU pods would drain a second time, for 30 s"
    assert hasattr(ray_constants, DRAIN)
    assert (CLUSTER / "head.py").is_file()
    assert (CLUSTER / "notice.py").is_file()


def test_options_reach_the_pods_that_they_are_for() -> None:
    spec = cluster_of(ALL["raycluster-options"])
    head, (cpu, gpu) = spec["headGroupSpec"], spec["workerGroupSpecs"]
    pods = [each["template"]["spec"] for each in (head, cpu, gpu)]
    pods.append(ALL["rayjob-train-options"]["spec"]["submitterPodTemplate"]["spec"])
    for pod in pods:
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["priorityClassName"] == "high"
    assert pods[2]["tolerations"] == [
        {"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"},
        {"operator": "Exists"},
    ]
    for pod in (pods[0], pods[1], pods[3]):
        assert pod["tolerations"] == [{"key": "pool", "operator": "Exists", "effect": "NoSchedule"}]
        assert pod["nodeSelector"] == {"pool": "cpu"}
    limits = pods[2]["containers"][0]["resources"]["limits"]
    assert (limits["rdma/hca"], limits["vpc.amazonaws.com/efa"], limits["nvidia.com/gpu"]) == (8, 32, 8)
    assert ALL["rayjob-train-volcano-options"]["metadata"]["labels"]["ray.io/priority-class-name"] == "high"
    plain = cluster_of(ALL["raycluster"])
    assert "tolerations" not in plain["headGroupSpec"]["template"]["spec"]
    (default,) = plain["workerGroupSpecs"][1]["template"]["spec"]["tolerations"]
    assert default == {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    images = [each["template"]["spec"]["containers"][0]["image"] for each in (head, cpu, gpu)]
    assert [image.split("/")[1] for image in images] == [
        "cloze-head:0.1.0",
        "cloze-preprocessing:0.1.0",
        "cloze-training:0.1.0",
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "image_pull_secrets=[Mine]",
            "image_pull_secrets='Mine': Kubernetes refuses this name; give at most 253 lower",
        ),
        ("priority_class=High Class", "priority_class='High Class': Kubernetes refuses this name; give at most 253"),
        ("gpu_tolerations=[{operator: Equal, key: a}]", "operator=Equal: give key and value of the taint"),
        ("gpu_tolerations=[{key: a, value: b}]", "value=b: set operator: Equal, or leave out the value"),
        ("cpu_tolerations=[{efect: NoSchedule}]", r"unknown key 'cpu_tolerations\.0\.efect'.*did you mean 'effect'"),
        (
            "gpu_devices={rdma: 1}",
            "gpu_devices.rdma='rdma': give DOMAIN/NAME as the device plugin names it, such as rdma/hca",
        ),
        ("gpu_devices={rdma/hca: 0}", "greater than or equal to 1"),
        ("gpu_devices={nvidia.com/gpu: 8}", r"nvidia\.com/gpu=8: set gpu\.gpus instead"),
        ("gpu_devices={vpc.amazonaws.com/efa: 8}", "set efa_interfaces instead"),
        ("grace_s=30", "grace_s=30: Input should be greater than or equal to 60"),
        ("deadline_hours=0", "deadline_hours=0: Input should be greater"),
        ("log_folder=logs", "log_folder='logs': give a folder in /shared, of letters"),
        ("log_folder='/shared/my logs'", "log_folder='/shared/my logs': give a folder in /shared, of letters"),
    ],
)
def test_values_that_kubernetes_would_refuse_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate_values("kubernetes", load_tree(VALUES / "kubernetes.yaml", overrides=[override]), origin="values")


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
