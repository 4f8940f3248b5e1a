"""Checks of the files for Kubernetes: pods by its own schema, groups as Ray's autoscaler will read them, the operator's
rules that no schema says, and what keeps costs and doors closed."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import ray
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

from cluster import PREPROCESSING
from cluster.check_launcher import TOO_SHORT, has_version
from cluster.findings import Files, Finding
from trainer.ray_watch import GROWS_TO

KUBERNETES_VERSION = "1.33"
"""Whose schemas pods are held against; the oldest one that is supported."""
LONGEST_CLUSTER_NAME, LONGEST_JOB_NAME = 50, 47
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_PLAIN_RESOURCES = ("num-cpus", "num-gpus", "memory", "resources")
REQUEST_TIMEOUT = "RAY_AUTOSCALER_RECONCILE_REQUEST_STATUS_TIMEOUT_S"


def check_kuberay(files: Files, *, schemas: Path | None = None) -> Iterator[Finding]:
    """Every file for Kubernetes. `schemas`: folder with kuberay-*-v1.json, strict schemas of the custom resources."""
    for name, tree in files.documents("kubernetes"):
        if not isinstance(tree, Mapping):
            yield Finding(name, f"holds {tree!r} instead of a resource")
            continue
        kind = tree.get("kind")
        if kind not in ("RayCluster", "RayJob"):
            yield from (Finding(name, problem) for problem in check_schema(tree))
            continue
        if schemas is not None:
            yield from check_custom_resource(name, tree, schemas=schemas)
        if kind == "RayJob":
            yield from (Finding(name, problem) for problem in check_job(tree))
        longest = LONGEST_JOB_NAME if kind == "RayJob" else LONGEST_CLUSTER_NAME
        title = str(tree["metadata"].get("name", ""))
        if not _NAME.fullmatch(title) or len(title) > longest:
            rule = f"small letters, digits and hyphens, at most {longest} of them, a letter first"
            yield Finding(name, f"metadata.name={title}: {kind} takes {rule}")
        spec = tree["spec"]["rayClusterSpec"] if kind == "RayJob" else tree["spec"]
        for problem in check_cluster(spec, namespace=tree["metadata"].get("namespace", "default")):
            yield Finding(name, problem)


def check_custom_resource(name: str, tree: Mapping[str, Any], *, schemas: Path) -> Iterator[Finding]:
    """By the strict schema of the resource."""
    text = (schemas / f"kuberay-{tree['kind'].lower()}-v1.json").read_text(encoding="utf-8")

    for error in jsonschema.Draft202012Validator(json.loads(text)).iter_errors(tree):
        yield Finding(name, f"{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}")


def check_schema(tree: Mapping[str, Any], *, place: str = "") -> Iterator[str]:
    """By the strict schema of a Kubernetes resource."""
    import kubernetes_validate

    try:
        kubernetes_validate.validate(copy.deepcopy(dict(tree)), KUBERNETES_VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        where = ".".join(str(part) for part in error.path)
        yield f"{place}{where}: {' '.join(str(error.message).split())[:300]}"


def check_pod(template: Mapping[str, Any], *, place: str) -> Iterator[str]:
    """A pod template: schema, versions, rights."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": template.get("spec", {})}
    yield from check_schema(pod, place=f"{place}.template: ")
    volumes = {volume.get("name") for volume in template["spec"].get("volumes", [])}
    for container in template["spec"]["containers"]:
        title = f"{place}.template.{container.get('name')}"
        if not has_version(str(container.get("image"))):
            yield f"{title}.image={container.get('image')}: name a version, so that all pods run the same"
        security = container.get("securityContext", {})
        if security.get("runAsNonRoot") is not True or security.get("allowPrivilegeEscalation") is not False:
            yield f"{title}.securityContext: set runAsNonRoot: true and allowPrivilegeEscalation: false"
        for mount in container.get("volumeMounts", []):
            if mount.get("name") not in volumes:
                yield f"{title}.volumeMounts: there is no volume {mount.get('name')}"


def check_cluster(spec: Mapping[str, Any], *, namespace: str) -> Iterator[str]:
    """A RayClusterSpec."""
    groups = spec.get("workerGroupSpecs", [])
    if spec.get("rayVersion") != ray.__version__:
        yield f"rayVersion={spec.get('rayVersion')}: the images have {ray.__version__}"
    if spec.get("authOptions", {}).get("mode") != "token":
        yield "authOptions.mode: Ray runs code for whoever reaches it; set token"
    if spec["headGroupSpec"].get("serviceType", "ClusterIP") != "ClusterIP":
        yield f"headGroupSpec.serviceType={spec['headGroupSpec']['serviceType']}: opens the dashboard; set ClusterIP"
    names = [group.get("groupName") for group in groups]
    if len(set(names)) < len(names):
        yield f"workerGroupSpecs: group names {names} repeat"
    for place, group in [
        ("headGroupSpec", spec["headGroupSpec"]),
        *((f"group {g.get('groupName')}", g) for g in groups),
    ]:
        if not group.get("template", {}).get("spec", {}).get("containers"):
            yield f"{place}: has no container"
            return
        yield from check_pod(group["template"], place=place)
        yield from check_group_rules(group, place=place, spec=spec)
    yield from check_head_rules(spec)
    yield from check_autoscaling(spec)
    yield from check_resources(spec, namespace=namespace)


def check_group_rules(group: Mapping[str, Any], *, place: str, spec: Mapping[str, Any]) -> Iterator[str]:
    """What the operator refuses of any group."""
    parameters = group.get("rayStartParams", {})
    plain = [key for key in _PLAIN_RESOURCES if key in parameters]
    if plain and group.get("resources"):
        yield f"{place}: resources and rayStartParams.{plain[0]} both say what a node has; keep one"
    if "labels" in parameters:
        yield f"{place}.rayStartParams.labels: the operator takes them from labels of the group alone"
    if any(not isinstance(value, str) for value in parameters.values()):
        yield f"{place}.rayStartParams: values must be quoted, {parameters}"
    if spec.get("enableInTreeAutoscaling"):
        if group.get("suspend"):
            yield f"{place}.suspend: does not go with the autoscaler"
        policy = group["template"]["spec"].get("restartPolicy", "Never")
        if spec.get("autoscalerOptions", {}).get("version") == "v2" and policy != "Never":
            yield f"{place}.restartPolicy={policy}: autoscaler v2 needs Never"
    least, most = group.get("minReplicas", 0), group.get("maxReplicas", 2**31 - 1)
    if least > most:
        yield f"{place}: minReplicas={least} exceeds maxReplicas={most}"
    if not least <= group.get("replicas", least) <= most:
        yield f"{place}: replicas={group.get('replicas')} is not between {least} and {most}"


def check_head_rules(spec: Mapping[str, Any]) -> Iterator[str]:
    """What the operator refuses of the head."""
    head = spec["headGroupSpec"]
    if head.get("rayStartParams", {}).get("num-cpus") != "0":
        yield 'headGroupSpec.rayStartParams.num-cpus: the head is to do no work; set "0"'
    variables = {each.get("name") for each in head["template"]["spec"]["containers"][0].get("env", [])}
    if "RAY_enable_autoscaler_v2" in variables:
        yield "headGroupSpec: variable RAY_enable_autoscaler_v2: use autoscalerOptions.version"


def check_autoscaling(spec: Mapping[str, Any]) -> Iterator[str]:
    """Groups go to nothing and have time to boot."""
    if not spec.get("enableInTreeAutoscaling"):
        if spec.get("autoscalerOptions"):
            yield "autoscalerOptions without enableInTreeAutoscaling: nothing would ever scale"
        return
    options = spec.get("autoscalerOptions", {})
    if options.get("version") != "v2":
        yield f"autoscalerOptions.version={options.get('version')}: set v2"
    if not 60 <= options.get("idleTimeoutSeconds", 60) <= 3600:
        yield f"autoscalerOptions.idleTimeoutSeconds={options['idleTimeoutSeconds']}: give 60 to 3600"
    variables = {each.get("name"): each.get("value", "") for each in options.get("env", [])}
    seconds = variables.get(REQUEST_TIMEOUT, "")
    if not str(seconds).isdigit() or int(seconds) < 1200:
        yield f"autoscalerOptions.env: {REQUEST_TIMEOUT}={seconds or 'not set'}: {TOO_SHORT}"
    for group in spec.get("workerGroupSpecs", []):
        if group.get("minReplicas", 0):
            least = group["minReplicas"]
            yield f"group {group.get('groupName')}.minReplicas={least}: such pods stay, and cost, without work; set 0"


def check_resources(spec: Mapping[str, Any], *, namespace: str) -> Iterator[str]:
    """What each group has, as the autoscaler will see it, beside what its pods ask for."""
    tree = {"metadata": {"name": "cluster", "namespace": namespace}, "spec": copy.deepcopy(dict(spec))}
    try:
        types = _derive_autoscaling_config_from_ray_cr(tree)["available_node_types"]
    except Exception as error:  # Ray's own reading raises whatever it comes upon
        yield f"Ray's autoscaler cannot read it: {type(error).__name__}: {' '.join(str(error).split())}"
        return
    head = next(iter(types.values()))["resources"]
    for unit in ("CPU", "GPU"):
        may_be = sum(each["max_workers"] * each["resources"].get(unit, 0) for each in types.values())
        if head.get(f"{GROWS_TO}{unit}", 0) != may_be:
            said = head.get(f"{GROWS_TO}{unit}", 0)
            yield f"the head says {GROWS_TO}{unit}={said}, but there may be {may_be}: training asks by it"
    for group in spec.get("workerGroupSpecs", []):
        name = group["groupName"]
        seen, containers = types[name]["resources"], group["template"]["spec"]["containers"]
        limits = containers[0].get("resources", {}).get("limits", {})
        everything = [each.get("resources", {}).get("limits", {}) for each in containers]
        gpus = sum(int(each.get("nvidia.com/gpu", 0)) for each in everything)
        if containers[0].get("name") != "ray":
            yield f"group {name}: container {containers[0].get('name')} comes first, where KubeRay starts Ray"
        if seen.get("GPU", 0) != gpus or int(limits.get("nvidia.com/gpu", 0)) != gpus:
            yield f"group {name}: the autoscaler sees {seen.get('GPU', 0)} GPUs, the pod has {gpus}"
        if str(seen.get("CPU")) != str(limits.get("cpu")):
            yield f"group {name}: the autoscaler sees {seen.get('CPU')} CPUs, the pod has {limits.get('cpu')}"
        if not 2**30 <= seen.get("memory", 0) <= gibibytes(str(limits.get("memory", ""))) * 2**30:
            yield f"group {name}: the autoscaler sees {seen.get('memory', 0)} bytes, the pod has {limits.get('memory')}"
        if gpus and PREPROCESSING in seen:
            yield f"group {name} has GPUs and the resource {PREPROCESSING}: preprocessing would wake it; remove it"
        if not gpus and seen.get(PREPROCESSING) != seen.get("CPU"):
            yield f"group {name}: give it the resource {PREPROCESSING}, one a CPU, or preprocessing never runs there"
        tolerated = {each.get("key") for each in group["template"]["spec"].get("tolerations", [])}
        if bool(gpus) != bool(tolerated):
            problem = "GPU nodes are tainted; tolerate it" if gpus else "tolerates the taint of GPU nodes"
            yield f"group {name}: {problem}"
        shm = [v["emptyDir"] for v in group["template"]["spec"].get("volumes", []) if v.get("name") == "shm"]
        if not shm or shm[0].get("medium") != "Memory":
            yield f"group {name}: /dev/shm would be 64 MB; mount an emptyDir of medium Memory there"
        elif gibibytes(str(shm[0].get("sizeLimit", "0Gi"))) * 2 > gibibytes(str(limits.get("memory", ""))):
            size = shm[0]["sizeLimit"]
            yield f"group {name}: /dev/shm of {size} is more than half of the pod's {limits.get('memory')}"


def gibibytes(quantity: str) -> float:
    """The number of a quantity such as 64Gi; 0 where it is none."""
    return float(quantity.removesuffix("Gi")) if quantity.removesuffix("Gi").isdigit() else 0.0


def check_job(tree: Mapping[str, Any]) -> Iterator[str]:
    """A RayJob: its cluster ends with it, retries cannot overlap unseen, a queue gets what it can admit."""
    spec = tree["spec"]
    if spec.get("shutdownAfterJobFinishes") is not True:
        yield "spec.shutdownAfterJobFinishes: the cluster would outlive its job; set true"
    if spec.get("ttlSecondsAfterFinished", 0) < 0:
        yield f"spec.ttlSecondsAfterFinished={spec['ttlSecondsAfterFinished']}: give 0 or more"
    if spec.get("ttlSecondsAfterFinished", 0) > 3600:
        yield f"spec.ttlSecondsAfterFinished={spec['ttlSecondsAfterFinished']}: idle nodes would cost for over an hour"
    if spec.get("backoffLimit", 0) < 0:
        yield f"spec.backoffLimit={spec['backoffLimit']}: give 0 or more"
    if spec.get("submissionMode") == "InteractiveMode" and spec.get("backoffLimit", 0) > 0:
        yield "spec.backoffLimit does not go with InteractiveMode"
    if spec.get("submissionMode") == "SidecarMode" and ("submitterPodTemplate" in spec or "submitterConfig" in spec):
        yield "spec.submitterPodTemplate and submitterConfig do not go with SidecarMode"
    if spec.get("suspend") and not spec.get("shutdownAfterJobFinishes"):
        yield "spec.suspend needs shutdownAfterJobFinishes: true"
    if not spec.get("entrypoint"):
        yield "spec.entrypoint is missing"
    if "submitterPodTemplate" in spec:
        yield from check_pod(spec["submitterPodTemplate"], place="submitterPodTemplate")
        if spec["submitterPodTemplate"]["spec"].get("restartPolicy") not in ("Never", "OnFailure"):
            yield "submitterPodTemplate: restartPolicy must be Never or OnFailure, as in every Kubernetes job"
    labels = tree["metadata"].get("labels", {})
    cluster = spec.get("rayClusterSpec", {})
    queued = "kueue.x-k8s.io/queue-name" in labels or "ray.io/scheduler-name" in labels
    if queued and cluster.get("enableInTreeAutoscaling"):
        yield "the queue admits what is there from the start: take enableInTreeAutoscaling out and set replicas"
    if "ray.io/scheduler-name" in labels and "volcano.sh/queue-name" not in labels:
        yield "metadata.labels: Volcano needs volcano.sh/queue-name"
