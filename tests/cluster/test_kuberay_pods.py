"""The pods as KubeRay builds them from our files (1.6.2 and 1.7.0, common/pod.go).

Kubernetes takes them, also where the policy of the namespace is "restricted", probes need nothing that the images lack,
and only our pods may connect.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import kubernetes_validate
import pytest

from cluster import CLUSTER
from kuberay_trees import ALL, JOBS, KUBERNETES, TREES, Tree, cluster_of, groups_of

LOGS = {"name": "ray-logs", "mountPath": "/tmp/ray"}
LATER_THAN_1_6 = {
    "historyServerOptions",
    "networkPolicy",
    "tlsOptions",
    "ingressOptions",
    "priority",
    "args",
    "command",
}
"""Fields of the two resources, outside of pods, that 1.7.0 has and 1.6.0 refuses (compared by their definitions)."""


def build_pods(tree: Tree) -> Iterator[Tree]:
    """The pods of a cluster and of the submitter, with what the operator adds to them."""
    spec = cluster_of(tree)
    for group in groups_of(tree):
        pod = copy.deepcopy(group["template"]["spec"])
        ray = pod["containers"][0]
        add_empty_dir(pod, ray, {"name": "shared-mem", "mountPath": "/dev/shm"})
        if "serviceType" not in group:
            added = {key: copy.deepcopy(ray[key]) for key in ("image", "env", "volumeMounts", "securityContext")}
            pod["initContainers"] = [{"name": "wait-gcs-ready", **added}]
        elif spec.get("enableInTreeAutoscaling"):
            options = spec["autoscalerOptions"]
            scaler = {key: options[key] for key in ("env", "resources", "securityContext") if key in options}
            scaler |= {"name": "autoscaler", "image": ray["image"]}
            pod["containers"].append(scaler)
            add_empty_dir(pod, ray, LOGS)
            add_empty_dir(pod, scaler, LOGS)
        yield pod
    if tree["kind"] == "RayJob":
        yield copy.deepcopy(tree["spec"]["submitterPodTemplate"]["spec"])


def add_empty_dir(pod: Tree, container: Tree, mount: Tree) -> None:
    mounts = container.setdefault("volumeMounts", [])
    if any(each["mountPath"] == mount["mountPath"] for each in mounts):
        return
    if all(volume["name"] != mount["name"] for volume in pod["volumes"]):
        pod["volumes"].append({"name": mount["name"], "emptyDir": {}})
    mounts.append(mount)


def containers_of(pod: Tree) -> list[Tree]:
    return [*pod["containers"], *pod.get("initContainers", [])]


every_file = pytest.mark.parametrize("tree", TREES.values(), ids=TREES)


@every_file
def test_kubernetes_takes_what_the_operator_builds(tree: Tree) -> None:
    for pod in build_pods(tree):
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": copy.deepcopy(pod)}
        kubernetes_validate.validate(whole, KUBERNETES, strict=True)
        volumes = [volume["name"] for volume in pod.get("volumes", [])]
        assert len(set(volumes)) == len(volumes)
        for container in containers_of(pod):
            mounts = container.get("volumeMounts", [])
            assert {mount["name"] for mount in mounts} <= set(volumes)
            assert len({mount["mountPath"] for mount in mounts}) == len(mounts)


@every_file
def test_the_dashboard_sees_the_autoscalers_logs(tree: Tree) -> None:
    head = next(build_pods(tree))
    of_logs = {each["name"] for container in head["containers"] for each in container["volumeMounts"][-1:]}
    assert of_logs == {"ray-logs"}, "two volumes at /tmp/ray would not be shared"


@every_file
def test_pods_fit_a_restricted_namespace(tree: Tree) -> None:
    """Kubernetes 1.33, Pod Security Standards, "restricted", which includes "baseline"."""
    for pod in build_pods(tree):
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["securityContext"]["runAsUser"] != 0
        for volume in pod.get("volumes", []):
            assert set(volume) - {"name"} <= {"emptyDir", "persistentVolumeClaim"}
        for container in containers_of(pod):
            context = container["securityContext"]
            assert context["runAsNonRoot"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}, "IPC_LOCK is outside of baseline"
            assert "privileged" not in context
            assert not any("hostPort" in port for port in container.get("ports", []))


@every_file
def test_only_the_head_gets_a_token_of_kubernetes(tree: Tree) -> None:
    head, *others = build_pods(tree)
    assert "automountServiceAccountToken" not in head, "its autoscaler talks to Kubernetes"
    assert all(pod["automountServiceAccountToken"] is False for pod in others)


@every_file
def test_no_field_is_newer_than_the_oldest_operator(tree: Tree) -> None:
    spec = cluster_of(tree)
    parts = [spec, spec.get("autoscalerOptions", {}), *groups_of(tree)]
    assert not LATER_THAN_1_6 & {key for part in parts for key in part}
    readme = (CLUSTER / "README.md").read_text(encoding="utf-8")
    assert "KubeRay 1.6 or later" in readme
    assert "gcsFaultToleranceOptions" not in spec, "the driver dies with the head all the same"


def rename_logs(spec: Tree) -> None:
    pod = spec["headGroupSpec"]["template"]["spec"]
    pod["volumes"][-1]["name"] = pod["containers"][0]["volumeMounts"][-1]["name"] = "logs"


def mount_twice(spec: Tree) -> None:
    ray = spec["headGroupSpec"]["template"]["spec"]["containers"][0]
    ray["volumeMounts"].append({"name": "shared", "mountPath": "/dev/shm"})


def lock_memory(spec: Tree) -> None:
    ray = spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    ray["securityContext"]["capabilities"]["add"] = ["IPC_LOCK"]


PLANTED: list[tuple[Callable[[Tree], object], Callable[[Tree], None]]] = [
    (rename_logs, test_the_dashboard_sees_the_autoscalers_logs),
    (mount_twice, test_kubernetes_takes_what_the_operator_builds),
    (
        lambda spec: spec["autoscalerOptions"]["resources"].update(memory="1Gi"),
        test_kubernetes_takes_what_the_operator_builds,
    ),
    (lock_memory, test_pods_fit_a_restricted_namespace),
    (lambda spec: spec["autoscalerOptions"].pop("securityContext"), test_pods_fit_a_restricted_namespace),
    (
        lambda spec: spec["headGroupSpec"]["template"]["spec"]["securityContext"].pop("seccompProfile"),
        test_pods_fit_a_restricted_namespace,
    ),
    (
        lambda spec: spec["headGroupSpec"]["template"]["spec"]["volumes"].append(
            {"name": "a", "hostPath": {"path": "/"}}
        ),
        test_pods_fit_a_restricted_namespace,
    ),
    (
        lambda spec: spec["workerGroupSpecs"][0]["template"]["spec"].pop("automountServiceAccountToken"),
        test_only_the_head_gets_a_token_of_kubernetes,
    ),
    (lambda spec: spec.update(networkPolicy={}), test_no_field_is_newer_than_the_oldest_operator),
    (lambda spec: spec["workerGroupSpecs"][0].update(priority=1), test_no_field_is_newer_than_the_oldest_operator),
    (lambda spec: spec.update(gcsFaultToleranceOptions={}), test_no_field_is_newer_than_the_oldest_operator),
]


@pytest.mark.parametrize(("plant", "check"), PLANTED)
def test_the_checks_find_what_is_planted(plant: Callable[[Tree], object], check: Callable[[Tree], None]) -> None:
    tree = copy.deepcopy(TREES["rayjob-train"])
    check(tree)
    plant(cluster_of(tree))
    with pytest.raises((AssertionError, KeyError, kubernetes_validate.ValidationError)):
        check(tree)


def test_what_probes_and_submitters_call_is_in_the_images() -> None:
    """KubeRay 1.6 and later ask Ray 2.53 and later by HTTP. With Ray below that, or KubeRay 1.5, a probe runs `bash -c`
    with wget and grep; the submitter of 1.5 runs wget too (common/job.go), that of 1.6 and later `python`."""
    assert tuple(int(part) for part in cluster_of(JOBS["rayjob-train"])["rayVersion"].split(".")[:2]) >= (2, 53)
    for file in (CLUSTER / "images").glob("*.Dockerfile"):
        assert " wget" in file.read_text(encoding="utf-8"), file.name


def test_only_our_pods_connect_to_each_other() -> None:
    """Of others, only KubeRay's operator and Prometheus, each on its port."""
    policy = ALL["network-policy"]
    check_resource(policy)
    ours = {"app.kubernetes.io/part-of": "cloze"}
    assert policy["spec"]["podSelector"] == {"matchLabels": ours}
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    inside, *outside = policy["spec"]["ingress"]
    assert inside == {"from": [{"podSelector": {"matchLabels": ours}}]}
    assert [[port["port"] for port in rule["ports"]] for rule in outside] == [[8265], [8080]]
    for rule in outside:
        (source,) = rule["from"]
        (label,) = source["podSelector"]["matchLabels"].items()
        assert label in {
            ("app.kubernetes.io/component", "kuberay-operator"),
            ("app.kubernetes.io/name", "prometheus"),
        }, "KubeRay gives the name kuberay to all Ray pods of all namespaces"
    for tree in TREES.values():
        templates = [group["template"] for group in groups_of(tree)]
        templates += [tree["spec"]["submitterPodTemplate"]] if tree["kind"] == "RayJob" else []
        assert all(template["metadata"]["labels"] == ours for template in templates)


def test_prometheus_finds_every_ray_pod() -> None:
    monitor = ALL["pod-monitor-options"]
    assert monitor["metadata"]["labels"] == {"release": "prometheus"}
    assert "labels" not in ALL["pod-monitor"]["metadata"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for tree in TREES.values():
        head, *workers = groups_of(tree)
        ports = {port["name"]: port["containerPort"] for port in head["template"]["spec"]["containers"][0]["ports"]}
        assert ports[endpoint["port"]] == int(head["rayStartParams"]["metrics-export-port"]) == 8080
        for group in workers:  # KubeRay adds its port 8080 named metrics where a container has none of that name
            assert "ports" not in group["template"]["spec"]["containers"][0]
            assert group["rayStartParams"]["metrics-export-port"] == "8080"


def check_resource(tree: Tree) -> None:
    kubernetes_validate.validate(copy.deepcopy(tree), KUBERNETES, strict=True)
