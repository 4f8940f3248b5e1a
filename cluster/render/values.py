"""The values that every kind of cluster has, and those of Kubernetes.

Each name and number of a cluster is written only in its values file, and cluster/render copies it into all files that
need it. Values that cannot work are refused when they are read, so no file is made from them. launcher_values.py and
batch_values.py have the classes of the other kinds.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, model_validator

from cluster.render.commands import check_command, find_path_faults
from cluster.render.pods import PodValues
from cluster.render.texts import Image, Name
from pipeline.settings import Settings

SHARED = "/shared"
"""Folder at which every node mounts the shared file system."""
HOME = "/home/cloze"
"""Home folder of the user in the images (cluster/images)."""
SHORTEST_BOOT_S = 1200
"""Smallest value of boot_timeout_s allowed. Ray's own defaults (900 s and 600 s) are too short for a GPU node to
boot."""


Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Price = Annotated[float, Field(gt=0.0)]


class Group(Settings):
    """A group of nodes of one kind. The nodes start when a job asks for them and stop when idle."""

    machine: str = ""
    """Machine type, as the provider names it."""
    cpus: Annotated[int, Field(ge=1, le=4096)]
    """Logical CPUs of a node."""
    memory_gib: Annotated[int, Field(ge=2, le=65_536)]
    """Memory of a node in GiB."""
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of GPUs of a node."""
    min_nodes: Count = 0
    """Number of nodes that keep running even without work."""
    max_nodes: Annotated[int, Field(ge=1, le=5000)]
    """Largest number of nodes at a time. Kubernetes has at most 5,000 ("Considerations for large clusters")."""
    disk_gib: Annotated[int, Field(ge=50, le=65_536)] = 200
    """Local disk of a node in GiB, with room for the operating system and the image. Clouds have no larger ones."""
    price_per_hour: Price | None = None
    """Price of an on-demand node in dollars per hour, for the greatest price and the table of cluster/README.md."""
    spot_price_per_hour: Price | None = None
    """Price of a spot node in dollars per hour."""

    @model_validator(mode="after")
    def _check_range(self) -> Group:
        if self.min_nodes > self.max_nodes:
            raise ValueError(f"min_nodes={self.min_nodes} exceeds max_nodes={self.max_nodes}; lower it")
        return self


class Images(Settings):
    """Container images. `make images` builds them; cluster/README.md says how to push them."""

    preprocessing: Image
    """Image of the CPU nodes."""
    training: Image
    """Image of the GPU nodes and the head."""


class Commands(Settings):
    """Commands of the cluster's two jobs. They run in the folder of the repository."""

    preprocess: str
    """Command of the preprocessing job."""
    train: str
    """Command of the training job."""


class ClusterValues(Settings):
    """Values that every kind of cluster has."""

    kind: str = ""
    """Kind of the cluster. A file in clusters/ must give it; that of an example is the file's name."""
    name: Name
    """Name of the cluster. The names of its jobs begin with it."""
    idle_minutes: Annotated[int, Field(ge=1, le=60)] = 5
    """Minutes after which an idle node stops."""
    boot_timeout_s: Positive = 1500
    """Longest wait in seconds from the request for a node until the node has its image and is ready. The trainer's
    start_timeout_s must be longer."""

    @model_validator(mode="after")
    def _check_groups(self) -> ClusterValues:
        for name in ("head", "cpu", "gpu"):
            group: Group | None = getattr(self, name, None)
            if group is not None and name == "head" and group.max_nodes != 1:
                raise ValueError(f"head.max_nodes={group.max_nodes}: a cluster has one head; give 1")
            if group is not None and (group.gpus > 0) != (name == "gpu"):
                remedy = "give the number of a node" if name == "gpu" else "only the group gpu has machines with GPUs"
                raise ValueError(f"{name}.gpus={group.gpus}: {remedy}")
        return self


class ScalingValues(ClusterValues):
    """Values of clusters whose nodes Ray's autoscaler starts."""

    @model_validator(mode="after")
    def _check_boot_timeout(self) -> ScalingValues:
        if self.boot_timeout_s < SHORTEST_BOOT_S:
            raise ValueError(
                f"boot_timeout_s={self.boot_timeout_s}: Ray would stop a GPU node before it is ready, and ask for it "
                f"again without end; set {SHORTEST_BOOT_S} or more"
            )
        return self


class KubernetesImages(Images):
    """Container images on Kubernetes, where head and submitter have an image of their own, without CUDA."""

    head: Image
    """Image of the head and of the pods that submit jobs."""
    training: Image
    """Image of the GPU nodes."""


class KubernetesValues(PodValues, ScalingValues):
    """Values for KubeRay (Ray on Kubernetes)."""

    namespace: str
    """Kubernetes namespace. It must exist."""
    service_account: str | None = None
    """Service account of the pods, needed if their rights to the bucket depend on it."""
    storage_claim: str
    """PersistentVolumeClaim (ReadWriteMany), mounted at /shared."""
    gpu_node_selector: dict[str, str]
    """Labels of nodes with GPUs."""
    cpu_node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of nodes for all other pods; {} allows any node."""
    efa_interfaces: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of EFA devices of a GPU pod (vpc.amazonaws.com/efa); 0 without EFA."""
    shm_gib: Positive = 64
    """Size of /dev/shm in a GPU pod, in GiB. It counts as memory of the pod."""
    kueue_queue: str
    """Name of the LocalQueue of Kueue that rayjob-train-kueue.yaml uses."""
    kueue_autoscaling: bool = False
    """Whether this job grows and shrinks within Kueue's quota. Needs Kueue 0.18 or later, where elastic jobs are on."""
    volcano_queue: str
    """Name of the queue of Volcano that rayjob-train-volcano.yaml uses."""
    retries: Annotated[int, Field(ge=0, le=100)] = 2
    """How often a failed job starts again. The run's lease keeps two jobs from training in one folder."""
    images: KubernetesImages
    """Container images."""
    commands: Commands
    """Commands of the jobs."""
    head: Group
    """The head, which runs no work."""
    cpu: Group
    """Pods that preprocess."""
    gpu: Group
    """Pods that train."""

    @model_validator(mode="after")
    def _check_pods(self) -> KubernetesValues:
        found = re.search(r"\sstart_timeout_s=(\d{1,9})(\s|$)", self.commands.train)
        if found and int(found[1]) <= self.boot_timeout_s:
            raise ValueError(
                f"commands.train: start_timeout_s={found[1]}: nodes may take boot_timeout_s={self.boot_timeout_s} "
                f"until they are ready; set more"
            )
        if self.log_folder is not None:
            for fault in find_path_faults(f"{self.log_folder}/", shared=SHARED):
                raise ValueError(f"log_folder{fault}")
        if 2 * self.shm_gib > self.gpu.memory_gib:
            raise ValueError(
                f"shm_gib={self.shm_gib} is more than half of gpu.memory_gib={self.gpu.memory_gib}, of which it is a "
                f"part; lower it"
            )
        for work, command in (("train", self.commands.train), ("preprocess", self.commands.preprocess)):
            group = self.gpu if work == "train" else self.cpu
            check_command(command, key=f"commands.{work}", work=work, group=group, shared=SHARED)
            if "'" in command:
                raise ValueError(f"commands.{work}={command}: KubeRay and Ray quote it again; write it without '")
        return self
