"""Files for Kubernetes: a RayCluster and RayJobs for KubeRay (1.6 or later), with and without a queue.

The Ray container comes first in its pod. Only CPU pods have the preprocessing resource. Without a queue, every group of
pods can shrink to no pods. Nothing listens outside the cluster, and Ray requires a token. Before a pod ends, its
preStop hook has each job write a checkpoint. All this is checked in tests/cluster/test_cluster_kuberay.py.
"""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any, Literal

from cluster import IMAGE_FOLDER, PREPROCESSING, USER_ID
from cluster.render.launcher import NCCL, STOP_S, growth_resources, ray_memory
from cluster.render.values import SHARED, Group, KubernetesValues
from pipeline.settings import to_tree

Tree = dict[str, Any]
Queue = Literal["none", "kueue", "volcano"]

RESERVE_S = 30
"""Seconds between the end of a preStop hook and the kill of its pod, in which Ray shuts down."""
NO_SECOND_DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
"""Environment variable: how long `ray start` drains its node at SIGTERM (Ray 2.60, 30 s by default, and as long where
the head is gone). The preStop hook has drained it already."""
PART_OF = "app.kubernetes.io/part-of"
"""Label of all pods of our clusters, with the clusters' name as its value."""
LOGS = "ray-logs"
"""Name of the volume with Ray's logs. KubeRay mounts the volume of this name into the autoscaler's container, whose
logs Ray's dashboard then shows (1.7.0, RayLogVolumeName)."""
SMALL = {"cpu": "500m", "memory": "1Gi"}
"""CPUs and memory of a container that mostly waits."""


def render_cluster(values: KubernetesValues) -> Tree:
    """Return a RayCluster that runs until it is deleted, for jobs from `make submit`."""
    named = {"name": values.name, "namespace": values.namespace}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": named, "spec": cluster_spec(values)}


def render_job(values: KubernetesValues, *, work: Literal["train", "preprocess"], queue: Queue = "none") -> Tree:
    """Return a RayJob. It has a Ray cluster of its own, and the cluster ends when the job ends. Kubernetes completes
    its name, so each `kubectl create` starts a job of its own.

    A job that fails starts again on a new cluster, and continues from its last checkpoint or finished shard; a job that
    was refused does not (cluster/job.py). While a job runs, its lease on the run directory keeps a second job out. A
    queue admits either all nodes of a job at once or no nodes. So if there is a `queue`, the cluster has its full size
    from the start, except that Kueue also admits nodes one by one if kueue_autoscaling is set.
    """
    elastic = queue == "kueue" and values.kueue_autoscaling
    groups: tuple[Literal["cpu", "gpu"], ...] = ("gpu",) if work == "train" else ("cpu",)
    spec: Tree = {
        "entrypoint": entrypoint(values, values.commands.train if work == "train" else values.commands.preprocess),
        "submissionMode": "K8sJobMode",
        "submitterConfig": {"backoffLimit": 2},
        "submitterPodTemplate": submitter(values),
        "backoffLimit": values.retries,
        "activeDeadlineSeconds": 3600 * values.deadline_hours,
    }
    if queue != "volcano":  # Volcano's queue keeps pods waiting for as long as it likes; Kueue's suspends the job
        spec["preRunningDeadlineSeconds"] = 2 * values.boot_timeout_s
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "generateName": f"{values.name}-{work}-",
            "namespace": values.namespace,
            **queue_metadata(values, queue, elastic=elastic),
        },
        "spec": spec
        | {
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 60,
            "rayClusterSpec": cluster_spec(values, groups=groups, fixed=queue != "none" and not elastic),
        },
    }


def queue_metadata(values: KubernetesValues, queue: Queue, *, elastic: bool) -> Tree:
    """Return the labels and annotations of a RayJob by which `queue` finds it. The operator has Volcano schedule every
    cluster if it runs with --batch-scheduler=volcano (1.6 and 1.7, batchscheduler/volcano/volcano_scheduler.go).

    If `elastic`, Kueue admits changes of the cluster's size. It refuses Ray's autoscaler in any other job (Kueue 0.19,
    pkg/controller/jobs/raycluster/common.go).
    """
    if queue == "kueue":
        labels = {"kueue.x-k8s.io/queue-name": values.kueue_queue}
        return {"labels": labels} | ({"annotations": {"kueue.x-k8s.io/elastic-job": "true"}} if elastic else {})
    if queue == "volcano":
        labels = {"volcano.sh/queue-name": values.volcano_queue}
        if values.priority_class is not None:
            labels["ray.io/priority-class-name"] = values.priority_class
        return {"labels": labels}
    return {}


def entrypoint(values: KubernetesValues, command: str) -> str:
    """Return the entrypoint of a RayJob that runs `command`. If the command is refused, it is tried once more after the
    pods of a previous job have ended."""
    words = ["python", "-m", "cluster.job", f"--again-after={values.grace_s + RESERVE_S}"]
    if values.log_folder is not None:
        words.append(f"--logs={values.log_folder}")
    return f"{' '.join(words)} {command}"


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
            "securityContext": locked_down(),
        }
    return spec


def head_group(values: KubernetesValues, *, groups: list[Group]) -> Tree:
    """Return the headGroupSpec. The head runs only the drivers (main processes) of jobs. Its resources tell the trainer
    how far `groups` (the groups of workers) may grow."""
    group = values.head
    container = ray_container(values, image=values.images.head, group=group)
    container["env"].append({"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": str(STOP_S)})
    container["lifecycle"] = run_before_end(values, "cluster.head")
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
        "template": pod(values, container, shm_gib=max(1, group.memory_gib // 4)),
    }


def cpu_group(values: KubernetesValues, *, fixed: bool) -> Tree:
    """Return the workerGroupSpec of the pods that preprocess. Only these pods have the resource that preprocessing asks
    for. If `fixed`, all pods start at once."""
    group = values.cpu
    container = ray_container(values, image=values.images.preprocessing, group=group)
    resources = {"CPU": str(group.cpus), "memory": str(ray_memory(group)), PREPROCESSING: str(group.cpus)}
    template = pod(values, container, shm_gib=max(1, group.memory_gib // 4))
    return worker_group(values, "cpu", resources=resources, template=template, fixed=fixed)


def gpu_group(values: KubernetesValues, *, fixed: bool) -> Tree:
    """Return the workerGroupSpec of the pods that train. If `fixed`, all pods start at once."""
    group = values.gpu
    container = ray_container(values, image=values.images.training, group=group)
    devices: Tree = {"nvidia.com/gpu": group.gpus, **values.gpu_devices}
    if values.efa_interfaces:
        devices["vpc.amazonaws.com/efa"] = values.efa_interfaces
    for part in ("requests", "limits"):
        container["resources"][part] |= devices
    container["env"] += [{"name": name, "value": value} for name, value in NCCL.items()]
    resources = {"CPU": str(group.cpus), "GPU": str(group.gpus), "memory": str(ray_memory(group))}
    template = pod(values, container, shm_gib=values.shm_gib, on_gpus=True)
    return worker_group(values, "gpu", resources=resources, template=template, fixed=fixed)


def worker_group(
    values: KubernetesValues, name: Literal["cpu", "gpu"], *, resources: dict[str, str], template: Tree, fixed: bool
) -> Tree:
    """Return the workerGroupSpec of the group `name`. If `fixed`, all its pods start at once. Before a pod ends, Ray
    drains it (moves work off it).

    `resources` are the resources of a pod as Ray counts them, and `template` is the pod template.
    """
    group: Group = getattr(values, name)
    template["spec"]["automountServiceAccountToken"] = False  # only the head talks to Kubernetes, to scale
    template["spec"]["containers"][0]["lifecycle"] = run_before_end(values, "cluster.notice")
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


def run_before_end(values: KubernetesValues, module: str) -> Tree:
    """Return the lifecycle of a container that runs one of our modules before it ends. The kubelet runs hooks in the
    folder / (Kubernetes API, ExecAction), so the hook goes to the repository first."""
    script = f"cd {IMAGE_FOLDER} && exec python -m {module} --seconds={values.grace_s - RESERVE_S}"
    return {"preStop": {"exec": {"command": ["sh", "-c", script]}}}


def ray_container(values: KubernetesValues, *, image: str, group: Group) -> Tree:
    """Return the container in which KubeRay starts Ray, with the CPUs and memory of a node of `group`. This container
    must be the first of its pod."""
    size = {"cpu": str(group.cpus), "memory": f"{group.memory_gib}Gi"}
    return {
        "name": "ray",
        "image": image,
        "env": [
            {"name": "RAY_DATA_DISABLE_PROGRESS_BARS", "value": "1"},
            {"name": NO_SECOND_DRAIN, "value": "0"},
        ],
        "resources": {"requests": dict(size), "limits": dict(size)},
        "volumeMounts": [
            {"name": "shared", "mountPath": SHARED},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": LOGS, "mountPath": "/tmp/ray"},
        ],
        "securityContext": locked_down(),
    }


def locked_down() -> Tree:
    """Return the security context of a container that does not run as root, has no capabilities, and cannot gain
    rights. IPC_LOCK is not among the added capabilities, since none reaches a user other than root
    (kubernetes/kubernetes#56374). NCCL pins memory within the container runtime's limit on locked memory."""
    return {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}}


def pod(values: KubernetesValues, container: Tree, *, shm_gib: int, on_gpus: bool = False) -> Tree:
    """Return a pod template that runs `container`, on nodes with GPUs if `on_gpus`. The pod mounts the shared storage
    and has a /dev/shm of `shm_gib` GiB."""
    template = plain_pod(values, container, on_gpus=on_gpus)
    # OnRootMismatch: otherwise the kubelet changes the group of every file of the shared storage at each start.
    template["spec"]["securityContext"] |= {"fsGroup": USER_ID, "fsGroupChangePolicy": "OnRootMismatch"}
    template["spec"] |= {
        "terminationGracePeriodSeconds": values.grace_s,
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": values.storage_claim}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shm_gib}Gi"}},
            {"name": LOGS, "emptyDir": {}},
        ],
    }
    if values.service_account is not None:
        template["spec"]["serviceAccountName"] = values.service_account
    return template


def plain_pod(values: KubernetesValues, container: Tree, *, on_gpus: bool) -> Tree:
    """Return a pod template that runs `container`, on nodes with GPUs if `on_gpus`, without volumes."""
    spec: Tree = {
        "containers": [container],
        "securityContext": {"runAsUser": USER_ID, "runAsGroup": USER_ID, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    selector = values.gpu_node_selector if on_gpus else values.cpu_node_selector
    tolerations = values.gpu_tolerations if on_gpus else values.cpu_tolerations
    if selector:
        spec["nodeSelector"] = dict(selector)
    if tolerations:
        trees = (to_tree(each) for each in tolerations)
        spec["tolerations"] = [{key: value for key, value in tree.items() if value is not None} for tree in trees]
    if values.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in values.image_pull_secrets]
    if values.priority_class is not None:
        spec["priorityClassName"] = values.priority_class
    return {"metadata": {"labels": {PART_OF: values.name}}, "spec": spec}


def submitter(values: KubernetesValues) -> Tree:
    """Return the template of the pod that submits the job and follows its log."""
    container = {
        "name": "submit",
        "image": values.images.head,
        "resources": {"requests": dict(SMALL), "limits": dict(SMALL)},
        "securityContext": locked_down(),
    }
    template = plain_pod(values, container, on_gpus=False)
    template["spec"] |= {"restartPolicy": "Never", "automountServiceAccountToken": False}
    return template
