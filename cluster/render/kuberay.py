"""Files for Kubernetes: a RayCluster and RayJobs for KubeRay (1.5 or later), with and without a queue.

The Ray container comes first in its pod. Only CPU pods have the preprocessing resource. Without a queue, every group of
pods can shrink to no pods. Nothing listens outside the cluster, and Ray requires a token. All this is checked in
tests/cluster/test_cluster_kuberay.py.
"""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any, Literal

from cluster import PREPROCESSING
from cluster.render.launcher import EFA, STOP_S, growth_resources, ray_memory
from cluster.render.values import SHARED, Group, KubernetesValues

Tree = dict[str, Any]
Queue = Literal["none", "kueue", "volcano"]

USER = 1000
"""User id and group id of the user in the images."""
GRACE_S = 120
"""Seconds from the notice that a pod will end until the pod ends, which is enough for a checkpoint."""
SMALL = {"cpu": "500m", "memory": "1Gi"}
"""CPUs and memory of a container that mostly waits."""


def render_cluster(values: KubernetesValues) -> Tree:
    """Return a RayCluster that runs until it is deleted, for jobs from `make submit`."""
    named = resource_metadata(values, values.name)
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": named, "spec": cluster_spec(values)}


def render_job(values: KubernetesValues, *, work: Literal["train", "preprocess"], queue: Queue = "none") -> Tree:
    """Return a RayJob. It has a Ray cluster of its own, and the cluster ends when the job ends.

    A job that fails starts again on a new cluster, and continues from its last checkpoint or finished shard. While a
    job runs, its lease on the run directory keeps a second job out. A queue admits either all nodes of a job at once or
    no nodes. So if there is a `queue`, the cluster has its full size from the start.
    """
    name = f"{values.name}-{work}"
    labels = {}
    if queue == "kueue":
        labels = {"kueue.x-k8s.io/queue-name": values.kueue_queue}
    elif queue == "volcano":
        labels = {"ray.io/scheduler-name": "volcano", "volcano.sh/queue-name": values.volcano_queue}
    groups: tuple[Literal["cpu", "gpu"], ...] = ("gpu",) if work == "train" else ("cpu",)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": resource_metadata(values, name, **labels),
        "spec": {
            "entrypoint": values.commands.train if work == "train" else values.commands.preprocess,
            "submissionMode": "K8sJobMode",
            "submitterConfig": {"backoffLimit": 2},
            "submitterPodTemplate": submitter(values),
            "backoffLimit": values.retries,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 60,
            "rayClusterSpec": cluster_spec(values, groups=groups, fixed=queue != "none"),
        },
    }


def resource_metadata(values: KubernetesValues, name: str, **labels: str) -> Tree:
    """Return the metadata of a Kubernetes resource: name, namespace and, if there are any, labels."""
    tree: Tree = {"name": name, "namespace": values.namespace}
    return {**tree, "labels": labels} if labels else tree


def cluster_spec(
    values: KubernetesValues, *, groups: tuple[Literal["cpu", "gpu"], ...] = ("cpu", "gpu"), fixed: bool = False
) -> Tree:
    """Return a RayClusterSpec with a head and the `groups` of pods. If `fixed`, all pods start at once and there is no
    autoscaler."""
    made = {"cpu": cpu_group, "gpu": gpu_group}
    spec: Tree = {
        "rayVersion": metadata.version("ray"),
        "authOptions": {"mode": "token"},
        "headGroupSpec": head_group(values, groups=[getattr(values, name) for name in groups]),
        "workerGroupSpecs": [made[name](values, fixed=fixed) for name in groups],
    }
    if not fixed:
        timeouts = {
            "RAY_AUTOSCALER_RECONCILE_REQUEST_STATUS_TIMEOUT_S": str(values.boot_timeout_s),
            "RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S": str(2 * values.boot_timeout_s),
            "RAY_AUTOSCALER_RECONCILE_RAY_INSTALL_STATUS_TIMEOUT_S": str(2 * values.boot_timeout_s),
        }
        spec["enableInTreeAutoscaling"] = True
        spec["autoscalerOptions"] = {
            "version": "v2",
            "upscalingMode": "Default",
            "idleTimeoutSeconds": 60 * values.idle_minutes,
            "env": [{"name": name, "value": value} for name, value in timeouts.items()],
            "resources": {"requests": dict(SMALL), "limits": dict(SMALL)},
        }
    return spec


def head_group(values: KubernetesValues, *, groups: list[Group]) -> Tree:
    """Return the headGroupSpec. The head runs only the drivers (main processes) of jobs. Its resources tell the trainer
    how far `groups` (the groups of workers) may grow."""
    group = values.head
    container = ray_container(values, image=values.images.training, group=group)
    container["env"].append({"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": str(STOP_S)})
    container["ports"] = [
        {"containerPort": 6379, "name": "gcs-server"},
        {"containerPort": 8265, "name": "dashboard"},
        {"containerPort": 10001, "name": "client"},
        {"containerPort": 8080, "name": "metrics"},
    ]
    return {
        "serviceType": "ClusterIP",
        "rayStartParams": {
            "num-cpus": "0",
            "resources": json.dumps(json.dumps(growth_resources(*groups))),  # KubeRay passes it through a shell
            "dashboard-host": "0.0.0.0",
            "metrics-export-port": "8080",
        },
        "template": pod(values, container, selector=values.cpu_node_selector, shm_gib=max(1, group.memory_gib // 4)),
    }


def cpu_group(values: KubernetesValues, *, fixed: bool) -> Tree:
    """Return the workerGroupSpec of the pods that preprocess. Only these pods have the resource that preprocessing asks
    for. If `fixed`, all pods start at once."""
    group = values.cpu
    container = ray_container(values, image=values.images.preprocessing, group=group)
    resources = {"CPU": str(group.cpus), "memory": str(ray_memory(group)), PREPROCESSING: str(group.cpus)}
    shm_gib = max(1, group.memory_gib // 4)
    template = pod(values, container, selector=values.cpu_node_selector, shm_gib=shm_gib)
    return worker_group("cpu", group, resources=resources, template=template, fixed=fixed)


def gpu_group(values: KubernetesValues, *, fixed: bool) -> Tree:
    """Return the workerGroupSpec of the pods that train. If `fixed`, all pods start at once."""
    group = values.gpu
    container = ray_container(values, image=values.images.training, group=group)
    devices: Tree = {"nvidia.com/gpu": group.gpus}
    if values.efa_interfaces:
        devices["vpc.amazonaws.com/efa"] = values.efa_interfaces
    for part in ("requests", "limits"):
        container["resources"][part] |= devices
    variables = EFA if values.efa_interfaces else {"NCCL_SOCKET_IFNAME": "^lo,docker0", "NCCL_DEBUG": "WARN"}
    container["env"] += [{"name": name, "value": value} for name, value in variables.items()]
    container["securityContext"]["capabilities"]["add"] = ["IPC_LOCK"]  # NCCL pins memory
    resources = {"CPU": str(group.cpus), "GPU": str(group.gpus), "memory": str(ray_memory(group))}
    template = pod(values, container, selector=values.gpu_node_selector, shm_gib=values.shm_gib)
    template["spec"]["tolerations"] = [{"key": values.gpu_taint, "operator": "Exists", "effect": "NoSchedule"}]
    return worker_group("gpu", group, resources=resources, template=template, fixed=fixed)


def worker_group(name: str, group: Group, *, resources: dict[str, str], template: Tree, fixed: bool) -> Tree:
    """Return a workerGroupSpec. If `fixed`, all its pods start at once. Before a pod ends, Ray drains it (moves work
    off it).

    `resources` are the resources of a pod as Ray counts them, and `template` is the pod template.
    """
    notice = ["python", "-m", "cluster.notice", f"--seconds={GRACE_S - 30}"]
    template["spec"]["containers"][0]["lifecycle"] = {"preStop": {"exec": {"command": notice}}}
    least = group.max_nodes if fixed else group.min_nodes
    return {
        "groupName": name,
        "replicas": least,
        "minReplicas": least,
        "maxReplicas": group.max_nodes,
        "rayStartParams": {"metrics-export-port": "8080"},
        "resources": resources,
        "template": template,
    }


def ray_container(values: KubernetesValues, *, image: str, group: Group) -> Tree:
    """Return the container in which KubeRay starts Ray, with the CPUs and memory of a node of `group`. This container
    must be the first of its pod."""
    size = {"cpu": str(group.cpus), "memory": f"{group.memory_gib}Gi"}
    return {
        "name": "ray",
        "image": image,
        "env": [{"name": "RAY_DATA_DISABLE_PROGRESS_BARS", "value": "1"}],
        "resources": {"requests": dict(size), "limits": dict(size)},
        "volumeMounts": [
            {"name": "shared", "mountPath": SHARED},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "logs", "mountPath": "/tmp/ray"},
        ],
        "securityContext": locked_down(),
    }


def locked_down() -> Tree:
    """Return the security context of a container that does not run as root, has no capabilities, and cannot gain
    rights."""
    return {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}}


def pod(values: KubernetesValues, container: Tree, *, selector: dict[str, str], shm_gib: int) -> Tree:
    """Return a pod template that runs `container` on nodes with the labels `selector`. The pod mounts the shared
    storage and has a /dev/shm of `shm_gib` GiB."""
    spec: Tree = {
        "containers": [container],
        "securityContext": {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER},
        "terminationGracePeriodSeconds": GRACE_S,
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": values.storage_claim}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shm_gib}Gi"}},
            {"name": "logs", "emptyDir": {}},
        ],
    }
    if selector:
        spec["nodeSelector"] = dict(selector)
    if values.service_account is not None:
        spec["serviceAccountName"] = values.service_account
    return {"spec": spec}


def submitter(values: KubernetesValues) -> Tree:
    """Return the template of the pod that submits the job and follows its log."""
    container = {
        "name": "submit",
        "image": values.images.training,
        "resources": {"requests": dict(SMALL), "limits": dict(SMALL)},
        "securityContext": locked_down(),
    }
    spec: Tree = {
        "restartPolicy": "Never",
        "containers": [container],
        "securityContext": {"runAsUser": USER, "runAsGroup": USER},
    }
    if values.cpu_node_selector:
        spec["nodeSelector"] = dict(values.cpu_node_selector)
    return {"spec": spec}
