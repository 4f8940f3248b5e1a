"""What a user fills in, a class for each kind of cluster: read from cluster/values/*.yaml, checked where declared.

Every number and name of a cluster stands in its values file alone; cluster/render puts it where it belongs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from cluster import CLUSTER
from pipeline.settings import Settings, load_settings

VALUES = CLUSTER / "values"

SHARED = "/shared"
"""Where every node sees the shared file system."""
HOME = "/home/cloze"
"""Of the images' user (cluster/images)."""
Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Price = Annotated[float, Field(gt=0.0)]
Name = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,28}[a-z0-9])?$")]
"""Small letters, digits, hyphens; at most 30, since what is made from it may have 47 (KubeRay's limit for jobs)."""


Word = Annotated[str, Field(pattern=r"^[^\s\"'`$\\;&|<>()]+$")]
"""Stands in a shell script as it is."""
Line = Annotated[str, Field(pattern=r"^[^\n\"]+$")]
"""One line, to be quoted."""


class Group(Settings):
    """Nodes of one kind, that come when work asks for them and go when idle."""

    machine: str = ""
    """Machine type by the provider's name."""
    cpus: Positive
    """Logical CPUs of a node that Ray gives out."""
    memory_gib: Positive
    """Memory of a node."""
    gpus: Count = 0
    """GPUs of a node."""
    min_nodes: Count = 0
    """Nodes that stay without work."""
    max_nodes: Positive
    """Nodes that there may be."""
    disk_gib: Positive = 200
    """Local disk of a node."""
    price_per_hour: Price | None = None
    """What a node costs an hour; for the cost table of cluster/README.md ."""
    spot_price_per_hour: Price | None = None
    """The same where the provider may take it back."""

    @model_validator(mode="after")
    def _check_range(self) -> Group:
        if self.min_nodes > self.max_nodes:
            raise ValueError(f"min_nodes={self.min_nodes} exceeds max_nodes={self.max_nodes}; lower it")
        return self


class Images(Settings):
    """Container images; `make images` builds them, cluster/README.md says how to push them."""

    preprocessing: str
    """Of CPU nodes."""
    training: str
    """Of GPU nodes and the head."""


class Commands(Settings):
    """What the cluster's jobs run, from the repository."""

    preprocess: str
    """Of the preprocessing job."""
    train: str
    """Of the training job."""


class ClusterValues(Settings):
    """What every cluster has."""

    name: Name
    """Of the cluster; jobs and files are called by it."""
    idle_minutes: Positive = 5
    """A node without work goes after so many minutes."""
    boot_timeout_s: Positive = 1500
    """Longest that a node takes from being asked for to being ready, image included; the trainer's start_timeout_s must
    exceed it."""

    @model_validator(mode="after")
    def _check_gpus(self) -> ClusterValues:
        for name in ("head", "cpu", "gpu"):
            group: Group | None = getattr(self, name, None)
            if group is not None and (group.gpus > 0) != (name == "gpu"):
                remedy = "give those of a node" if name == "gpu" else "machines with GPUs belong to the group gpu alone"
                raise ValueError(f"{name}.gpus={group.gpus}: {remedy}")
        return self


class Fsx(Settings):
    """An FSx for Lustre file system."""

    dns_name: str
    """fs-....fsx.REGION.amazonaws.com"""
    mount_name: str
    """Its mount name."""


class AwsValues(ClusterValues):
    """Ray's launcher on EC2."""

    region: str
    """Region."""
    availability_zone: str
    """Zone in which the GPU machines are."""
    head_subnet: str
    """Public subnet of that zone: the head alone has an address outside."""
    worker_subnet: str
    """Private subnet of that zone, with a NAT gateway: nodes with several network cards cannot have one."""
    security_group: str
    """Security group: SSH from where you are, everything between its members (EFA needs both directions)."""
    head_instance_profile: str
    """ARN of an instance profile that may start instances, pass the workers' role and look up the AMI's name."""
    worker_instance_profile: str
    """ARN of an instance profile that may read the registry and the bucket."""
    machine_image: str
    """AMI with NVIDIA and EFA drivers and docker; resolve:ssm: names the newest of its kind."""
    registry: str
    """Host of the container registry that nodes log in to."""
    fsx: Fsx | None = None
    """Mounted at /shared; null: give data and output as s3:// addresses."""
    efa_interfaces: Count = 32
    """EFA network cards of a GPU node."""
    capacity_reservation: str | None = None
    """Capacity reservation for the GPU nodes on demand; null: what is free."""
    capacity_block: bool = False
    """The reservation is a Capacity Block, which is bought for a time."""
    images: Images
    """Container images."""
    head: Group
    """The head; it does no work."""
    cpu: Group
    """Nodes that preprocess."""
    gpu: Group
    """Nodes that train."""


class GcpValues(ClusterValues):
    """Ray's launcher on Compute Engine."""

    project: str
    """Project."""
    region: str
    """Region."""
    zone: str
    """Zone in which the GPU machines are."""
    network: str
    """Subnetwork of head and nodes, as projects/P/regions/R/subnetworks/S."""
    data_networks: tuple[str, ...] = ()
    """Further subnetworks, one for each data network card of a GPU node."""
    service_account: str
    """Account of the nodes: may read the registry and the bucket, and on the head start instances."""
    machine_image: str
    """Image of nodes without GPUs, with docker."""
    gpu_machine_image: str
    """Image of GPU nodes, with docker and the NVIDIA driver."""
    registry: str
    """Host of the container registry that nodes log in to."""
    filestore: str | None = None
    """NFS export HOST:/PATH mounted at /shared."""
    images: Images
    """Container images."""
    head: Group
    """The head; it does no work."""
    cpu: Group
    """Nodes that preprocess."""
    gpu: Group
    """Nodes that train."""


class HostsValues(ClusterValues):
    """Ray's launcher on hosts that are there already."""

    ssh_user: str
    """User on all hosts, who may run docker; with user id 1000, as in the images."""
    ssh_private_key: str
    """Key file on your machine."""
    head_host: str = Field(min_length=1)
    """Address of the head."""
    cpu_hosts: tuple[str, ...] = ()
    """Addresses of hosts that preprocess."""
    gpu_hosts: tuple[str, ...]
    """Addresses of hosts that train."""
    shared_folder: str
    """Folder that all hosts mount; it is /shared in the containers."""
    network_interface: str
    """Network card between the GPU hosts, for NCCL; ^lo,docker0 leaves the choice to NCCL."""
    image: str
    """The training image, which preprocesses too."""
    cpu: Group
    """What a host that preprocesses has."""
    gpu: Group
    """What a host that trains has."""

    @model_validator(mode="after")
    def _check_hosts(self) -> HostsValues:
        hosts = [self.head_host, *self.cpu_hosts, *self.gpu_hosts]
        twice = sorted({host for host in hosts if hosts.count(host) > 1})
        if twice:
            raise ValueError(f"host {', '.join(twice)} is named twice; the head does no work, a worker has one kind")
        for name in ("cpu", "gpu"):
            group, count = getattr(self, name), len(getattr(self, f"{name}_hosts"))
            if group.max_nodes != max(1, count):
                raise ValueError(f"{name}.max_nodes={group.max_nodes}, but {name}_hosts names {count}; make them equal")
        return self


class KubernetesValues(ClusterValues):
    """KubeRay."""

    namespace: str
    """Namespace; it must exist."""
    service_account: str | None = None
    """Service account of the pods, where the bucket's rights hang on it."""
    storage_claim: str
    """PersistentVolumeClaim (ReadWriteMany), mounted at /shared."""
    gpu_node_selector: dict[str, str]
    """Labels of nodes with GPUs."""
    cpu_node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of nodes for everything else; {}: any."""
    gpu_taint: str = "nvidia.com/gpu"
    """Taint of GPU nodes that the training pods tolerate."""
    efa_interfaces: Count = 0
    """EFA devices of a GPU pod (vpc.amazonaws.com/efa); 0 without EFA."""
    shm_gib: Positive = 64
    """/dev/shm of a GPU pod; part of its memory."""
    kueue_queue: str
    """LocalQueue of Kueue, for rayjob-train-kueue.yaml."""
    volcano_queue: str
    """Queue of Volcano, for rayjob-train-volcano.yaml."""
    retries: Count = 2
    """Times that a failed job is begun again; the run's lease keeps two from training in one folder."""
    images: Images
    """Container images."""
    commands: Commands
    """What the jobs run."""
    head: Group
    """The head; it does no work."""
    cpu: Group
    """Pods that preprocess."""
    gpu: Group
    """Pods that train."""


class SlurmValues(ClusterValues):
    """Slurm, without containers."""

    account: Word
    """Account."""
    partition: Word
    """Partition of the GPU nodes."""
    hours: Positive
    """Time limit; the job asks to be queued again before it ends."""
    repository: Line
    """Checkout of this repository on storage that all nodes mount, with `make setup` done there."""
    network_interface: Word
    """Network card between the nodes, for NCCL; ^lo,docker0 leaves the choice to NCCL."""
    command: Annotated[str, Field(pattern=r"^[^\n]+$")]
    """What runs, from the repository; one line."""
    gpu: Group
    """Nodes that train; all max_nodes are asked for."""


class SkyValues(ClusterValues):
    """SkyPilot."""

    infra: str
    """Cloud, or cloud/region."""
    accelerators: str
    """NAME:COUNT of a node."""
    use_spot: bool
    """Nodes that the provider may take back."""
    command: str
    """What runs, from the repository; data and output are addresses of an object store."""
    gpu: Group
    """Nodes that train; all max_nodes are asked for."""


KINDS: dict[str, type[ClusterValues]] = {
    "aws": AwsValues,
    "gcp": GcpValues,
    "hosts": HostsValues,
    "kubernetes": KubernetesValues,
    "slurm": SlurmValues,
    "skypilot": SkyValues,
}
"""Values file, without .yaml, -> class."""

Kind = Literal["aws", "gcp", "hosts", "kubernetes", "slurm", "skypilot"]


def read_values(kind: str, *, folder: Path = VALUES) -> ClusterValues:
    """The values of a cluster; ConfigError names file, key, value and remedy."""
    return load_settings(KINDS[kind], file=folder / f"{kind}.yaml")
