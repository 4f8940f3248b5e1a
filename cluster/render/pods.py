"""Values of a cluster on Kubernetes that say where and how its pods run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cluster.render.texts import matches
from pipeline.settings import Settings

DOMAIN = r"(?=.{1,253}(/|$))[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
"""Matches a DNS subdomain (apimachinery, pkg/util/validation, 1.34)."""
DeviceName = Annotated[
    str,
    matches(
        rf"(?!requests\.)(?!([^/]*\.)?kubernetes\.io/){DOMAIN}/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,52}}[A-Za-z0-9])?",
        "give DOMAIN/NAME as the device plugin names it",
        example="rdma/hca",
    ),
]
"""The name of an extended resource of Kubernetes (kubernetes 1.34, pkg/apis/core/v1/helper, IsExtendedResourceName:
with `requests.` in front it must still be a name, so NAME and DOMAIN are shorter)."""
LogFolder = Annotated[
    str, matches(r"/[-A-Za-z0-9_./]+", "give a folder in /shared, of letters, digits and -_./", example="/shared/logs")
]
"""A folder that is written without quotes into a command."""
OWN_DEVICES = {"nvidia.com/gpu": "gpu.gpus", "vpc.amazonaws.com/efa": "efa_interfaces"}
"""Maps each device that has a key of its own to this key."""


class Toleration(Settings):
    """A toleration, as Kubernetes defines it: pods that have it may run on nodes with a matching taint."""

    key: str | None = None
    """Key of the taint; null, with operator Exists, matches every taint."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """Exists matches every value of the taint, Equal only `value`."""
    value: str | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = "NoSchedule"
    """Effect of the taint; null matches every effect."""

    @model_validator(mode="after")
    def _check_operator(self) -> Toleration:
        if self.operator == "Exists" and self.value is not None:
            raise ValueError(f"value={self.value}: set operator: Equal, or leave out the value")
        if self.operator == "Equal" and (self.key is None or self.value is None):
            raise ValueError("operator=Equal: give key and value of the taint, or set operator: Exists")
        return self


class PodValues(Settings):
    """Values of all pods of a cluster on Kubernetes."""

    image_pull_secrets: tuple[str, ...] = ()
    """Secrets of the namespace with which nodes fetch the images; [] if the registry is open to the nodes."""
    gpu_tolerations: tuple[Toleration, ...] = (Toleration(key="nvidia.com/gpu"),)
    """Taints of nodes on which training pods may run."""
    cpu_tolerations: tuple[Toleration, ...] = ()
    """Taints of nodes on which all other pods may run."""
    gpu_devices: dict[DeviceName, Annotated[int, Field(ge=1, le=1000)]] = Field(default_factory=dict)
    """Further devices of a training pod and their numbers, as the device plugins name them, such as rdma/hca: 8."""
    priority_class: str | None = None
    """PriorityClass of the pods; with Volcano, also of the job."""
    grace_s: Annotated[int, Field(ge=60, le=3600)] = 120
    """Seconds from the notice that a pod will end until it is killed. A job has 30 s less for its checkpoint."""
    deadline_hours: Annotated[int, Field(ge=1, le=8760)] = 168
    """Longest duration of a RayJob from its start or, if it failed, from its last restart (KubeRay 1.7,
    rayjob_controller.go, initRayJobStatusIfNeed); with Volcano, time in the queue counts. Then it ends with a
    checkpoint, and does not start again."""
    log_folder: LogFolder | None = "/shared/logs"
    """Folder in /shared in which each RayJob keeps its output, which outlives the pods; null keeps none."""
    monitor_labels: dict[str, str] = Field(default_factory=dict)
    """Labels of pod-monitor.yaml by which your Prometheus Operator selects it, often release: NAME."""

    @model_validator(mode="after")
    def _check_devices(self) -> PodValues:
        for device, key in OWN_DEVICES.items():
            if device in self.gpu_devices:
                raise ValueError(f"gpu_devices.{device}={self.gpu_devices[device]}: set {key} instead")
        for device in self.gpu_devices:
            if device.endswith("gpu"):  # Ray would count it as GPUs
                raise ValueError(f"gpu_devices.{device}: the images are for NVIDIA's GPUs; set gpu.gpus instead")
        return self
