"""The values that a user fills in: one class for each kind of cluster, read from cluster/values/*.yaml.

Each name and number of a cluster is written only in its values file, and cluster/render copies it into all files that
need it. Values that cannot work are refused when they are read, so no file is made from them.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from cluster import CLUSTER, PREPROCESSING
from cluster.render.pods import PodValues
from pipeline.settings import Settings, load_settings

VALUES = CLUSTER / "values"

SHARED = "/shared"
"""Folder at which every node mounts the shared file system."""
HOME = "/home/cloze"
"""Home folder of the user in the images (cluster/images)."""
SHORTEST_BOOT_S = 1200
"""Smallest value of boot_timeout_s allowed. Ray's own defaults (900 s and 600 s) are too short for a GPU node to
boot."""
SCRIPTS = {"train": "trainer/run.py", "preprocess": "pipeline/run.py"}
"""Maps each kind of job to the script that it runs, as a path in the repository."""


def _check_image(image: str) -> str:
    tag = image.rpartition("/")[2].partition(":")[2]
    if "@sha256:" not in image and tag in ("", "latest"):
        raise ValueError("name a version other than latest, so that all nodes run the same image")
    return image


Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Price = Annotated[float, Field(gt=0.0)]
Name = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,28}[a-z0-9])?$")]
"""The name of a cluster: at most 30 lowercase letters, digits and hyphens. The names of its jobs begin with this name,
and KubeRay allows them 47 characters."""
Image = Annotated[str, AfterValidator(_check_image)]
"""A container image with a version."""
Word = Annotated[str, Field(pattern=r"^[^\s\"'`$\\;&|<>()]+$")]
"""A text that is written without quotes into a shell script, so it may not have spaces or special characters."""
Line = Annotated[str, Field(pattern=r"^[^\n\"]+$")]
"""A text of one line that is written in double quotes into a shell script."""


class Group(Settings):
    """A group of nodes of one kind. The nodes start when a job asks for them and stop when idle."""

    machine: str = ""
    """Machine type, as the provider names it."""
    cpus: Positive
    """Logical CPUs of a node."""
    memory_gib: Annotated[int, Field(ge=2)]
    """Memory of a node in GiB."""
    gpus: Count = 0
    """Number of GPUs of a node."""
    min_nodes: Count = 0
    """Number of nodes that keep running even without work."""
    max_nodes: Positive
    """Largest number of nodes at a time."""
    disk_gib: Positive = 200
    """Local disk of a node in GiB."""
    price_per_hour: Price | None = None
    """Price of an on-demand node in dollars per hour, for the cost table of cluster/README.md."""
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

    name: Name
    """Name of the cluster. The names of its jobs begin with it."""
    idle_minutes: Annotated[int, Field(ge=1, le=60)] = 5
    """Minutes after which an idle node stops."""
    boot_timeout_s: Positive = 1500
    """Longest wait in seconds from the request for a node until the node has its image and is ready. The trainer's
    start_timeout_s must be longer."""

    @model_validator(mode="after")
    def _check_gpus(self) -> ClusterValues:
        for name in ("head", "cpu", "gpu"):
            group: Group | None = getattr(self, name, None)
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


class Fsx(Settings):
    """An FSx for Lustre file system."""

    dns_name: str
    """DNS name of the file system, fs-....fsx.REGION.amazonaws.com."""
    mount_name: str
    """Mount name of the file system, as FSx shows it."""


class AwsValues(ScalingValues):
    """Values for Ray's launcher (`ray up`) on EC2."""

    region: str
    """AWS region."""
    availability_zone: str
    """Availability zone of the GPU machines."""
    head_subnet: str
    """Public subnet in availability_zone. Only the head has a public address."""
    worker_subnet: str
    """Private subnet in availability_zone, with a NAT gateway, since nodes with several cards get no public address."""
    security_group: str
    """Security group of all nodes. It allows SSH from your address, and all traffic between its members (EFA needs both
    directions)."""
    head_instance_profile: str
    """ARN of an instance profile that may start instances, pass the workers' role and resolve the AMI's name."""
    worker_instance_profile: str
    """ARN of an instance profile that may read the registry and the bucket."""
    machine_image: str
    """AMI with NVIDIA and EFA drivers and docker. resolve:ssm:NAME stands for the newest AMI of an SSM parameter."""
    registry: str
    """Host of the container registry that nodes log in to."""
    fsx: Fsx | None = None
    """File system mounted at /shared; if null, give data and output as s3:// addresses."""
    efa_interfaces: Count = 32
    """EFA network cards of a GPU node."""
    capacity_reservation: str | None = None
    """Capacity reservation for on-demand GPU nodes; if null, nodes come from free capacity."""
    capacity_block: bool = False
    """Whether capacity_reservation is a Capacity Block."""
    images: Images
    """Container images."""
    head: Group
    """The head, which runs no work."""
    cpu: Group
    """Nodes that preprocess."""
    gpu: Group
    """Nodes that train."""


class GcpValues(ScalingValues):
    """Values for Ray's launcher (`ray up`) on Compute Engine."""

    project: str
    """Google Cloud project."""
    region: str
    """Google Cloud region."""
    zone: str
    """Zone of the GPU machines."""
    network: str
    """Subnetwork of head and nodes, as projects/P/regions/R/subnetworks/S."""
    data_networks: tuple[str, ...] = ()
    """Further subnetworks, one for each data network card of a GPU node."""
    service_account: str
    """Service account of the nodes. It may read the registry and the bucket, and start instances, as the head does."""
    machine_image: str
    """Image of nodes without GPUs, with docker."""
    gpu_machine_image: str
    """Image of GPU nodes, with docker and the NVIDIA driver."""
    registry: str
    """Host of the container registry that nodes log in to."""
    filestore: str | None = None
    """NFS export HOST:/PATH mounted at /shared; if null, give data and output as gs:// addresses."""
    images: Images
    """Container images."""
    head: Group
    """The head, which runs no work."""
    cpu: Group
    """Nodes that preprocess."""
    gpu: Group
    """Nodes that train."""


class HostsValues(ScalingValues):
    """Values for Ray's launcher (`ray up`) on existing hosts."""

    ssh_user: str
    """User on all hosts. This user may run docker, and has user id 1000, like the user in the images."""
    ssh_private_key: str
    """File of the private key on your machine."""
    head_host: str = Field(min_length=1)
    """Address of the head."""
    cpu_hosts: tuple[str, ...] = ()
    """Addresses of hosts that preprocess."""
    gpu_hosts: tuple[str, ...]
    """Addresses of hosts that train."""
    shared_folder: str
    """Folder that all hosts mount; containers see it as /shared."""
    network_interface: str
    """Network card that NCCL uses between the GPU hosts. ^lo,docker0 lets NCCL choose."""
    image: Image
    """Training image. Hosts that preprocess use it too."""
    cpu: Group
    """A host that preprocesses."""
    gpu: Group
    """A host that trains."""

    @model_validator(mode="after")
    def _check_hosts(self) -> HostsValues:
        hosts = [self.head_host, *self.cpu_hosts, *self.gpu_hosts]
        repeated = sorted({host for host in hosts if hosts.count(host) > 1})
        if repeated:
            raise ValueError(f"{', '.join(repeated)}: give each host once, as head_host, in cpu_hosts or in gpu_hosts")
        for name in ("cpu", "gpu"):
            group, count = getattr(self, name), len(getattr(self, f"{name}_hosts"))
            if group.max_nodes != max(1, count):
                raise ValueError(f"{name}.max_nodes={group.max_nodes}, but {name}_hosts has {count}; make them equal")
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
    efa_interfaces: Count = 0
    """Number of EFA devices of a GPU pod (vpc.amazonaws.com/efa); 0 without EFA."""
    shm_gib: Positive = 64
    """Size of /dev/shm in a GPU pod, in GiB. It counts as memory of the pod."""
    kueue_queue: str
    """Name of the LocalQueue of Kueue that rayjob-train-kueue.yaml uses."""
    kueue_autoscaling: bool = False
    """Whether this job grows and shrinks within Kueue's quota. Needs Kueue 0.18 or later, where elastic jobs are on."""
    volcano_queue: str
    """Name of the queue of Volcano that rayjob-train-volcano.yaml uses."""
    retries: Count = 2
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
        if 2 * self.shm_gib > self.gpu.memory_gib:
            raise ValueError(
                f"shm_gib={self.shm_gib} is more than half of gpu.memory_gib={self.gpu.memory_gib}, of which it is a "
                f"part; lower it"
            )
        for work, command in (("train", self.commands.train), ("preprocess", self.commands.preprocess)):
            check_command(command, key=f"commands.{work}", work=work, group=self.gpu if work == "train" else self.cpu)
            if "'" in command:
                raise ValueError(f"commands.{work}={command}: KubeRay and Ray quote it again; write it without '")
        return self


class SlurmValues(ClusterValues):
    """Values for Slurm, which runs the job without containers."""

    account: Word
    """Slurm account of the job."""
    partition: Word
    """Partition of the GPU nodes."""
    hours: Positive
    """Time limit of the job in hours. Before the end, the job writes a checkpoint and goes back into the queue."""
    repository: Line
    """Checkout of this repository on storage that all nodes mount, with `make setup` done there."""
    network_interface: Word
    """Network card that NCCL uses between the nodes. ^lo,docker0 lets NCCL choose."""
    command: Annotated[str, Field(pattern=r"^[^\n]+$")]
    """Command of the job, run from the repository; one line."""
    gpu: Group
    """Nodes that train; the job asks for all max_nodes."""

    @model_validator(mode="after")
    def _check_command(self) -> SlurmValues:
        check_command(self.command, key="command", work="train", group=self.gpu)
        return self


class SkyValues(ClusterValues):
    """Values for SkyPilot."""

    infra: str
    """Cloud to use, as CLOUD or CLOUD/REGION."""
    accelerators: str
    """GPUs of a node, as NAME:COUNT."""
    use_spot: bool
    """Whether to take spot nodes."""
    command: str
    """Command of the job, run from the repository. Its data and output must be addresses of an object store."""
    gpu: Group
    """Nodes that train; the job asks for all max_nodes."""

    @model_validator(mode="after")
    def _check_command(self) -> SkyValues:
        check_command(self.command, key="command", work="train", group=self.gpu)
        return self


def check_command(command: str, *, key: str, work: str, group: Group) -> None:
    """Check `command`, the command of a job of the kind `work` (train or preprocess). `key` names this value in errors.

    Raises ValueError if the command does not run the script for `work`, or asks for more workers than `group` has room
    for. A command that preprocesses must also set `workers`, which decides how many nodes start. It must set
    `ray.resource` too, because otherwise GPU nodes may start.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"{key}={command}: a shell cannot read it: {error}") from error
    if words[:2] != ["python", SCRIPTS[work]]:
        raise ValueError(f"{key}={command}: begin with `python {SCRIPTS[work]}`")
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    unit, room = ("GPUs", group.gpus * group.max_nodes) if work == "train" else ("CPUs", group.cpus * group.max_nodes)
    for name in ("workers", "min_workers") if work == "train" else ("workers",):
        number = settings.get(name, "1" if work == "train" else "")
        if not number.isdecimal() or not 1 <= int(number) <= room:
            raise ValueError(f"{key}: {name}={number}: give 1 to {room}, the {unit} of all nodes")
    if work == "preprocess" and settings.get("ray.resource") != PREPROCESSING:
        raise ValueError(f"{key}={command}: add ray.resource={PREPROCESSING}, or GPU nodes may start for it")


KINDS: dict[str, type[ClusterValues]] = {
    "aws": AwsValues,
    "gcp": GcpValues,
    "hosts": HostsValues,
    "kubernetes": KubernetesValues,
    "slurm": SlurmValues,
    "skypilot": SkyValues,
}
"""Maps each kind of cluster (the name of its values file without .yaml) to the class of its values."""


def read_values(kind: str, *, folder: Path = VALUES) -> ClusterValues:
    """Return the values of a kind of cluster, read from KIND.yaml in `folder`. Raises ConfigError that names file, key,
    value and remedy."""
    return load_settings(KINDS[kind], file=folder / f"{kind}.yaml")
